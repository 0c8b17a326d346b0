"""What a store's errors mean for us: one that passes, one that somebody has to mend, or a thing that is not there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from sdrs_core.backup.targets import Target
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_storaged.bucket.patience import RETRY_AFTER

# What each operation needs, in the words of a policy. Other stores have coarser ones: read, write, list.
PERMISSIONS = {
    "PutObject": "s3:PutObject",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
    "ListParts": "s3:ListMultipartUploadParts",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "ListObjectsV2": "s3:ListBucket",
    "GetObject": "s3:GetObject",
    "HeadObject": "s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "DeleteObjects": "s3:DeleteObject",
}

_THROTTLED = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "503", "429"}
# The bytes arrived damaged or late, or somebody else is at the same key: sent again, they may pass.
_PASSING = {
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "OperationAborted",
    "ConditionalRequestConflict",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "IncompleteBody",
}
_MISSING = {"NoSuchKey", "NoSuchUpload", "NotFound", "404"}
_WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
_CREDENTIALS = {
    "InvalidAccessKeyId": "the store does not know its access key: check access_key_id, and that it is for this store",
    "SignatureDoesNotMatch": "the store finds its signature wrong: check secret_access_key, the region and the clock",
    "ExpiredToken": "its session token has expired: renew it where the daemon reads it",
    "ExpiredTokenException": "its session token has expired: renew it where the daemon reads it",
    "TokenRefreshRequired": "its session token has expired: renew it where the daemon reads it",
    "InvalidToken": "the store does not accept its session token: check session_token",
}
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.NoAuthTokenError,
    boto.TokenRetrievalError,
    boto.UnauthorizedSSOTokenError,
)
_OUT_OF_REACH = (
    boto.HTTPClientError,
    boto.ConnectionError,
    boto.IncompleteReadError,
    ResponseParserError,
    HTTPError,
    OSError,
)


def where(target: Target) -> str:
    """The target in words: its name, bucket and endpoint."""
    at = f" at {target.endpoint}" if target.endpoint else ""
    prefix = f"/{target.prefix.strip('/')}" if target.prefix.strip("/") else ""
    return f"target {target.name} (bucket {target.bucket}{prefix}{at})"


def understood(error: Exception, operation: str, target: Target, key: str) -> SdrsError:
    """``operation`` as S3 calls it; ``key`` relative to the target's prefix."""
    place = where(target)
    if isinstance(error, boto.ClientError):
        return _of_answer(error.response, operation, target, key)
    if isinstance(error, boto.SSLError):
        return RefusedError(
            f"{place}: the store's certificate is not trusted ({_brief(error)}): name the file of its CA in the "
            "target's ca_file"
        )
    if isinstance(error, _NO_CREDENTIALS):
        return PermissionDeniedError(
            f"{place}: no credentials were found on this machine by {target.credentials.partition(':')[0]!r}: put them "
            "there, or name others in the target's credentials"
        )
    if isinstance(error, _OUT_OF_REACH):
        return UnavailableError(f"{place} cannot be reached for {operation} {key}: {_brief(error)}", peer=target.name)
    if isinstance(error, boto.ParamValidationError | boto.InvalidRegionError | boto.NoRegionError):
        return InvalidArgumentError(f"{place} cannot be asked for anything: {_brief(error)}")
    return RefusedError(f"{place}: {operation} {key} failed: {_brief(error)}")


def _of_answer(response: Mapping[str, Any], operation: str, target: Target, key: str) -> SdrsError:
    place = where(target)
    answer = response.get("Error", {})
    code, said = str(answer.get("Code", "")), str(answer.get("Message", "")).strip()
    metadata = response.get("ResponseMetadata", {})
    status, headers = int(metadata.get("HTTPStatusCode", 0)), metadata.get("HTTPHeaders", {})
    facts = {"code": code or status, "operation": operation, "target": target.name}
    words = f"{code or status}" + (f", {said[:300]}" if said and said != code else "")
    if code == "NoSuchBucket":
        return RefusedError(f"{place}: there is no such bucket: create it, or correct the target's bucket", **facts)
    if code in ("PreconditionFailed", "412"):
        return AlreadyExistsError(f"{place} has {key} already", **facts)
    if code in _MISSING:
        return NotFoundError(f"{place} has no {key}", **facts)
    if code in ("InvalidRange", "416"):
        return CorruptDataError(f"{place}: {key} is shorter than its record says", **facts)
    if code in _CREDENTIALS:
        # Without the store's words: some quote what was sent.
        return PermissionDeniedError(f"{place}: {_CREDENTIALS[code]} (credentials {target.credentials})", **facts)
    if code == "RequestTimeTooSkewed":
        return RefusedError(
            f"{place}: this machine's clock and the store's differ too much: set it by NTP (chronyc tracking)", **facts
        )
    if code in _WRONG_REGION:
        region = answer.get("Region") or headers.get("x-amz-bucket-region") or ""
        hint = f"it is in region {region}: set that" if region else "it is in another region: set the right one"
        return RefusedError(f"{place}: the bucket is not in region {target.region or 'us-east-1'}; {hint}", **facts)
    is_unknown = code in ("NotImplemented", "MethodNotAllowed") or status == 501
    if code in _THROTTLED or code in _PASSING or (status >= 500 and not is_unknown):
        wish = str(headers.get("retry-after", ""))
        if re.fullmatch(r"\d+", wish):
            facts[RETRY_AFTER] = wish
        return UnavailableError(f"{place} did not carry out {operation} {key}: {words}", peer=target.name, **facts)
    if is_unknown:
        return UnsupportedError(f"{place}: the store has no {operation} as it was asked for: {words}", **facts)
    if code in ("AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden") or status in (401, 403):
        needed = PERMISSIONS.get(operation, f"s3:{operation}")
        return PermissionDeniedError(
            f"{place}: {operation} {key} is denied ({words}): allow {needed} on it to its credentials "
            f"({target.credentials})",
            permission=needed,
            **facts,
        )
    return RefusedError(f"{place}: {operation} {key} was refused: {words}", **facts)


def _brief(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
