"""An object store that speaks S3, through botocore."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sdrs_core.backup.targets import Target
from sdrs_core.checksums import Buffer
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_storaged.bucket.credentials import session_with
from sdrs_storaged.bucket.failures import understood, where
from sdrs_storaged.bucket.patience import Patience
from sdrs_storaged.bucket.store import ByteStream, ObjectStore, Part, StoredObject, Upload

_DEFAULT_REGION = "us-east-1"
_KEYS_PER_DELETE = 1000
# How often bytes are sent again that the store confirms wrongly.
_TRIES_TO_CONFIRM = 3
# As a HEAD has no body, these tell no reason: a small GET does.
_MUTE = {"400", "401", "403", "301"}


def s3_client(target: Target, patience: Patience) -> Any:
    config = Config(
        connect_timeout=patience.connect_seconds,
        read_timeout=patience.read_seconds,
        retries={"mode": "standard", "total_max_attempts": patience.quick_tries},
        # Uploads and read-ahead of several objects share them; more than that are made and thrown away.
        max_pool_connections=4 * max(1, target.concurrency),
        # "auto" is path where an endpoint is named, virtual at AWS.
        s3={"addressing_style": target.addressing},
        # Newer checksums are refused by some stores. Content-MD5, which all know, is sent with each put and part.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        tcp_keepalive=True,
        user_agent_extra="sdrs",
    )
    if target.ca_file and not Path(target.ca_file).is_file():
        raise InvalidArgumentError(
            f"{where(target)}: its ca_file {target.ca_file} is not on this machine: put it there"
        )
    session = session_with(target.credentials)
    try:
        client = session.create_client(
            "s3",
            region_name=target.region or (_DEFAULT_REGION if target.endpoint else None),
            endpoint_url=target.endpoint or None,
            verify=target.ca_file or None,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidArgumentError(f"{where(target)} cannot be opened: {error}") from error
    client.meta.events.register("before-call.s3.DeleteObjects", _add_md5)
    return client


def _add_md5(params: dict[str, Any], **_: object) -> None:
    """Deleting many at once needs a checksum, and stores other than AWS want the oldest one."""
    body = params["body"]
    digest = hashlib.md5(body.encode() if isinstance(body, str) else body, usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
    params["context"].pop("checksum", None)
    params["headers"].pop("x-amz-sdk-checksum-algorithm", None)


class S3Store(ObjectStore):
    def __init__(self, target: Target, patience: Patience) -> None:
        self._target = target
        self._patience = patience
        self._client = s3_client(target, patience)
        prefix = target.prefix.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""

    def __repr__(self) -> str:
        return f"<{where(self._target)}>"

    def head(self, key: str) -> StoredObject:
        try:
            answer = self._client.head_object(**self._at(key))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in _MUTE:
                self.open(key, 0, 1).close()
            raise understood(error, "HeadObject", self._target, key) from error
        except _STORE_ERRORS as error:
            raise understood(error, "HeadObject", self._target, key) from error
        return StoredObject(key, answer["ContentLength"], _etag(answer), _unix_ms(answer.get("LastModified")))

    def get(self, key: str, max_bytes: int) -> bytes:
        return self._patience.persist(lambda: self._get(key, max_bytes))

    def _get(self, key: str, max_bytes: int) -> bytes:
        answer = self._call("GetObject", key, self._client.get_object, **self._at(key))
        with _Stream(answer["Body"], self._target, key) as stream:
            if answer["ContentLength"] > max_bytes:
                raise RefusedError(
                    f"{where(self._target)}: {key} has {answer['ContentLength']} bytes, expected are at most "
                    f"{max_bytes}: it is not one of ours"
                )
            data = bytearray(answer["ContentLength"])
            fill(stream, memoryview(data))
            return bytes(data)

    def open(self, key: str, offset: int, size_bytes: int) -> ByteStream:
        end = offset + size_bytes - 1
        answer = self._call("GetObject", key, self._client.get_object, **self._at(key), Range=f"bytes={offset}-{end}")
        stream = _Stream(answer["Body"], self._target, key)
        given = answer.get("ContentRange", "").partition("/")[0]
        if given == f"bytes {offset}-{end}" or (not given and not offset and answer["ContentLength"] == size_bytes):
            return stream
        stream.close()
        if given.startswith(f"bytes {offset}-"):
            raise CorruptDataError(f"{where(self._target)}: {key} is shorter than its record says: it ends in {given}")
        raise UnsupportedError(
            f"{where(self._target)}: the store does not answer with the range of {key} that it is asked for"
        )

    def put(self, key: str, data: Buffer, *, only_if_absent: bool = False) -> None:
        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        self._confirmed("PutObject", key, self._client.put_object, data, **condition)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for page in self._pages("list_objects_v2", "ListObjectsV2", prefix):
            for found in page.get("Contents", ()):
                key = found["Key"].removeprefix(self._prefix)
                yield StoredObject(key, found["Size"], _etag(found), _unix_ms(found.get("LastModified")))

    def delete(self, keys: Sequence[str]) -> dict[str, SdrsError]:
        refused: dict[str, SdrsError] = {}
        for start in range(0, len(keys), _KEYS_PER_DELETE):
            batch = keys[start : start + _KEYS_PER_DELETE]
            try:
                refused.update(self._delete_batch(batch))
            except UnsupportedError:
                for key in batch:
                    refused.update(self._delete_one(key))
        return refused

    def _delete_batch(self, keys: Sequence[str]) -> dict[str, SdrsError]:
        wanted = {"Objects": [{"Key": self._prefix + key} for key in keys], "Quiet": True}
        answer = self._call(
            "DeleteObjects",
            f"{len(keys)} objects",
            self._client.delete_objects,
            Bucket=self._target.bucket,
            Delete=wanted,
        )
        refused: dict[str, SdrsError] = {}
        for failed in answer.get("Errors", ()):
            key = failed["Key"].removeprefix(self._prefix)
            error = understood(ClientError({"Error": failed}, "DeleteObjects"), "DeleteObjects", self._target, key)
            if isinstance(error, UnavailableError):
                raise error
            if not isinstance(error, NotFoundError):
                refused[key] = error
        return refused

    def _delete_one(self, key: str) -> dict[str, SdrsError]:
        try:
            self._call("DeleteObject", key, self._client.delete_object, **self._at(key))
        except NotFoundError:
            pass
        except (PermissionDeniedError, RefusedError) as error:
            return {key: error}
        return {}

    def begin_upload(self, key: str) -> str:
        answer = self._call("CreateMultipartUpload", key, self._client.create_multipart_upload, **self._at(key))
        return str(answer["UploadId"])

    def uploads(self, prefix: str) -> Iterator[Upload]:
        for page in self._pages("list_multipart_uploads", "ListMultipartUploads", prefix):
            for found in page.get("Uploads", ()):
                key = found["Key"].removeprefix(self._prefix)
                yield Upload(key, found["UploadId"], _unix_ms(found.get("Initiated")))

    def parts(self, key: str, upload_id: str) -> Iterator[Part]:
        pages = self._client.get_paginator("list_parts").paginate(**self._at(key), UploadId=upload_id)
        for page in self._told(pages, "ListParts", key):
            for found in page.get("Parts", ()):
                yield Part(found["PartNumber"], found["Size"], _etag(found))

    def put_part(self, key: str, upload_id: str, number: int, data: Buffer) -> Part:
        answer = self._confirmed(
            "UploadPart", key, self._client.upload_part, data, UploadId=upload_id, PartNumber=number
        )
        return Part(number, len(data), _etag(answer))

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        listed = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in parts]
        self._call(
            "CompleteMultipartUpload",
            key,
            self._client.complete_multipart_upload,
            **self._at(key),
            UploadId=upload_id,
            MultipartUpload={"Parts": listed},
        )

    def abort_upload(self, key: str, upload_id: str) -> None:
        try:
            self._call(
                "AbortMultipartUpload", key, self._client.abort_multipart_upload, **self._at(key), UploadId=upload_id
            )
        except NotFoundError:
            return

    def close(self) -> None:
        self._client.close()

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._target.bucket, "Key": self._prefix + key}

    def _call(self, operation: str, key: str, method: Callable[..., Any], **arguments: object) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = method(**arguments)
            return answer
        except _STORE_ERRORS as error:
            raise understood(error, operation, self._target, key) from error

    def _confirmed(
        self, operation: str, key: str, method: Callable[..., Any], data: Buffer, **arguments: object
    ) -> Mapping[str, Any]:
        """Sends ``data`` with its MD5, which the store compares; and compares what the store says that it has."""
        digest = hashlib.md5(data, usedforsecurity=False)
        md5 = base64.b64encode(digest.digest()).decode()
        answer: Mapping[str, Any] = {}
        for _ in range(_TRIES_TO_CONFIRM):
            answer = self._call(
                operation,
                key,
                method,
                **self._at(key),
                Body=_Body(data),
                ContentLength=len(data),
                ContentMD5=md5,
                **arguments,
            )
            if not _has_md5(answer) or _etag(answer) == digest.hexdigest():
                return answer
        raise CorruptDataError(
            f"{where(self._target)}: {operation} {key} was confirmed with MD5 {_etag(answer)}, sent were bytes with "
            f"{digest.hexdigest()}, {_TRIES_TO_CONFIRM} times: something between here and the store changes them"
        )

    def _pages(self, paginator: str, operation: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        pages = self._client.get_paginator(paginator).paginate(Bucket=self._target.bucket, Prefix=self._prefix + prefix)
        return self._told(pages, operation, prefix)

    def _told(self, pages: Any, operation: str, key: str) -> Iterator[Mapping[str, Any]]:
        try:
            yield from pages
        except _STORE_ERRORS as error:
            raise understood(error, operation, self._target, key) from error


# botocore lets some errors of the layers below it through; ValueErrors are those of ill-formed answers.
_STORE_ERRORS = (BotoCoreError, ClientError, OSError, ValueError)


class _Body:
    """Bytes as a file, so that they are neither copied nor sent in one piece."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> memoryview:
        end = len(self._view) if size is None or size < 0 else self._position + size
        piece = self._view[self._position : end]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position


class _Stream:
    def __init__(self, body: Any, target: Target, key: str) -> None:
        self._body = body
        self._target = target
        self._key = key

    def readinto(self, into: memoryview) -> int:
        try:
            count: int = self._body.readinto(into)
            return count
        except _STORE_ERRORS as error:
            raise understood(error, "GetObject", self._target, self._key) from error

    def close(self) -> None:
        self._body.close()

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fill(stream: ByteStream, into: memoryview) -> None:
    """All of it, or an UnavailableError: what was announced did not come."""
    while into:
        count = stream.readinto(into)
        if not count:
            raise UnavailableError(f"the store ended its answer {len(into)} bytes early")
        into = into[count:]


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _has_md5(answer: Mapping[str, Any]) -> bool:
    """With keys of a key service or of the customer it is something else; multipart objects have a dash in it."""
    is_other = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer
    etag = _etag(answer)
    return not is_other and len(etag) == 32 and all(digit in "0123456789abcdef" for digit in etag)


def _unix_ms(moment: datetime | None) -> int:
    return int(moment.timestamp() * 1000) if moment else 0
