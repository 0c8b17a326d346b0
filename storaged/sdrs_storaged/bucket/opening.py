"""Opens a target: credentials and keys are resolved on this machine, and stay here."""

from __future__ import annotations

from urllib.parse import urlsplit

from sdrs_core.backup.targets import Target
from sdrs_core.errors import InvalidArgumentError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.encryption import DataKeys
from sdrs_storaged.bucket.key_files import read_keys
from sdrs_storaged.bucket.patience import Patience
from sdrs_storaged.bucket.s3 import S3Store
from sdrs_storaged.bucket.transfer_memory import TransferMemory

_ADDRESSING = ("auto", "path", "virtual")


def open_bucket(target: Target, patience: Patience | None = None, memory: TransferMemory | None = None) -> Bucket:
    """Reads what the target names on this machine; asks the store nothing yet.

    InvalidArgumentError for a target that makes no sense, PermissionDeniedError for credentials or keys that are
    missing, malformed or open to others. Each says what to do.
    """
    _check(target)
    patience = patience or Patience()
    # Keys first: a client that is made and not used would have to be closed.
    keys = read_keys(target)
    store = S3Store(target, patience)
    return Bucket(target, store, DataKeys(store, keys, target) if keys else None, patience, memory)


def _check(target: Target) -> None:
    if target.addressing not in _ADDRESSING:
        raise InvalidArgumentError(f"addressing {target.addressing!r} is none of {', '.join(_ADDRESSING)}")
    if not target.bucket:
        raise InvalidArgumentError(f"target {target.name} names no bucket")
    if any(part in ("", ".", "..") for part in target.prefix.strip("/").split("/")) and target.prefix.strip("/"):
        raise InvalidArgumentError(f"prefix {target.prefix!r} has empty parts or dots in it: use names between slashes")
    if target.endpoint:
        parts = urlsplit(target.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidArgumentError(
                f"endpoint of target {target.name} is not http://HOST:PORT or https://HOST:PORT, without a user in it"
            )
