"""Every error that SDRS raises, in one tree.

::

    SdrsError
    ├── InvalidArgumentError (ValueError)     the request can never work as it is
    │   ├── UnsupportedObjectError (TypeError)  an object in the state cannot be stored
    │   ├── AttemptRequiredError              world_size > 1 and nobody said which attempt this is
    │   └── WorldSizeMismatchError            ranks of one save disagree about its size
    ├── NotFoundError (LookupError)           no such job, checkpoint, pool, node, save ...
    ├── AlreadyExistsError                    the name is taken by something else
    ├── StaleAttemptError                     a newer attempt of the job took over
    ├── StaleEpochError                       the group moved on; ask for the map again
    ├── StaleTermError                        a command of a controller that is no longer the active one
    ├── RefusedError                          possible, but unsafe or undecidable now
    │   └── UnsupportedError                  not built yet, or not on this cluster
    ├── PermissionDeniedError                 the caller may not do this
    ├── FullError                             a pool, disk or quota has no room
    ├── CorruptDataError                      bytes that do not match their checksum; never returned
    ├── NotRestorableError                    no generation that was asked for can be restored now
    ├── SaveFailedError                       a save ended without a commit
    │   └── SaveSkippedError                  it was never begun: too many are under way, and it may be skipped
    ├── UnavailableError (ConnectionError)    a peer or the data is out of reach; may come back
    ├── DeadlineExceededError (TimeoutError)  it took longer than the caller allows
    ├── DiskFailedError                       a disk broke a promise (I9) and is out of use
    ├── ProtocolError                         a malformed or oversized message
    └── InternalError                         a defect in SDRS

``reason`` is stable and travels over the wire; ``facts`` are the strings that belong to one occurrence;
``exit_code`` is what the command line returns.
"""

from __future__ import annotations

from typing import ClassVar

DOMAIN = "sdrs"


class SdrsError(Exception):
    """The root. The message says what happened, to what, and what to do."""

    reason: ClassVar[str] = "UNKNOWN"
    status: ClassVar[str] = "UNKNOWN"  # the name of the gRPC status code
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, str] = {name: str(value) for name, value in facts.items()}

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(kind: type[SdrsError], message: str, facts: dict[str, str]) -> SdrsError:
    return kind(message, **facts)


class InvalidArgumentError(SdrsError, ValueError):
    reason = "INVALID_ARGUMENT"
    status = "INVALID_ARGUMENT"
    exit_code = 2


class UnsupportedObjectError(InvalidArgumentError, TypeError):
    reason = "UNSUPPORTED_OBJECT"


class AttemptRequiredError(InvalidArgumentError):
    reason = "ATTEMPT_REQUIRED"


class WorldSizeMismatchError(InvalidArgumentError):
    reason = "WORLD_SIZE_MISMATCH"


class NotFoundError(SdrsError, LookupError):
    reason = "NOT_FOUND"
    status = "NOT_FOUND"


class AlreadyExistsError(SdrsError):
    reason = "ALREADY_EXISTS"
    status = "ALREADY_EXISTS"


class StaleAttemptError(SdrsError):
    reason = "STALE_ATTEMPT"
    status = "FAILED_PRECONDITION"


class StaleEpochError(SdrsError):
    reason = "STALE_EPOCH"
    status = "FAILED_PRECONDITION"


class StaleTermError(SdrsError):
    reason = "STALE_TERM"
    status = "FAILED_PRECONDITION"


class RefusedError(SdrsError):
    reason = "REFUSED"
    status = "FAILED_PRECONDITION"
    exit_code = 4


class UnsupportedError(RefusedError):
    reason = "UNSUPPORTED"
    status = "UNIMPLEMENTED"


class PermissionDeniedError(SdrsError):
    reason = "PERMISSION_DENIED"
    status = "PERMISSION_DENIED"
    exit_code = 5


class FullError(SdrsError):
    reason = "FULL"
    status = "RESOURCE_EXHAUSTED"


class CorruptDataError(SdrsError):
    reason = "CORRUPT_DATA"
    status = "DATA_LOSS"


class NotRestorableError(SdrsError):
    reason = "NOT_RESTORABLE"
    status = "FAILED_PRECONDITION"


class SaveFailedError(SdrsError):
    reason = "SAVE_FAILED"
    status = "ABORTED"


class SaveSkippedError(SaveFailedError):
    reason = "SAVE_SKIPPED"


class UnavailableError(SdrsError, ConnectionError):
    reason = "UNAVAILABLE"
    status = "UNAVAILABLE"
    exit_code = 6


class DeadlineExceededError(SdrsError, TimeoutError):
    reason = "DEADLINE_EXCEEDED"
    status = "DEADLINE_EXCEEDED"


class DiskFailedError(SdrsError):
    reason = "DISK_FAILED"
    status = "INTERNAL"


class ProtocolError(SdrsError):
    reason = "PROTOCOL"
    status = "INVALID_ARGUMENT"


class InternalError(SdrsError):
    reason = "INTERNAL"
    status = "INTERNAL"


def _walk(root: type[SdrsError]) -> dict[str, type[SdrsError]]:
    found = {root.reason: root}
    for child in root.__subclasses__():
        found.update(_walk(child))
    return found


BY_REASON: dict[str, type[SdrsError]] = _walk(SdrsError)


def is_answered(error: SdrsError) -> bool:
    """Whether a peer said this, as opposed to having been out of reach."""
    return "peer" not in error.facts
