"""Opens a target: credentials and keys are resolved on this machine, and stay here."""

from __future__ import annotations

from sdrs_core.backup.targets import Target
from sdrs_storaged.bucket.bucket import Bucket


def open_bucket(target: Target) -> Bucket:
    """Reads what the target names on this machine; asks the store nothing yet.

    InvalidArgumentError for a target that makes no sense, PermissionDeniedError for credentials or keys that are
    missing, malformed or open to others. Each says what to do.
    """
    raise NotImplementedError
