"""Every error that SDRS raises: ``sdrs_core.errors`` under the SDK's own name. The tree is drawn there."""

from sdrs_core.errors import (
    AlreadyExistsError,
    AttemptRequiredError,
    CorruptDataError,
    DeadlineExceededError,
    DiskFailedError,
    FullError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    NotRestorableError,
    PermissionDeniedError,
    ProtocolError,
    RefusedError,
    SaveFailedError,
    SaveSkippedError,
    SdrsError,
    StaleAttemptError,
    StaleEpochError,
    StaleTermError,
    UnavailableError,
    UnsupportedError,
    UnsupportedObjectError,
    WorldSizeMismatchError,
)

__all__ = [
    "AlreadyExistsError",
    "AttemptRequiredError",
    "CorruptDataError",
    "DeadlineExceededError",
    "DiskFailedError",
    "FullError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "NotRestorableError",
    "PermissionDeniedError",
    "ProtocolError",
    "RefusedError",
    "RestoreWarning",
    "SaveFailedError",
    "SaveSkippedError",
    "SdrsError",
    "StaleAttemptError",
    "StaleCatalogWarning",
    "StaleEpochError",
    "StaleTermError",
    "UnavailableError",
    "UnsupportedError",
    "UnsupportedObjectError",
    "WorldSizeMismatchError",
]


class RestoreWarning(UserWarning):
    """A restore went back to an older generation; the text says which ones were passed over, and why."""


class StaleCatalogWarning(UserWarning):
    """The controller cannot reach its metadata store: what it tells may be the past; there may be newer ones (P17)."""
