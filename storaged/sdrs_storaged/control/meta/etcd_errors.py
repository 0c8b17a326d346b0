"""What a failed call to etcd means for the caller: nothing was done, nobody knows, or an error that stays one.

etcd tells most of it in the text behind the status code; the texts are part of its API and have not changed since 3.0.
"""

from __future__ import annotations

import grpc

from sdrs_core.errors import (
    CorruptDataError,
    FullError,
    InvalidArgumentError,
    PermissionDeniedError,
    SdrsError,
)
from sdrs_storaged.control.meta.store import CompactedError


class NothingDoneError(Exception):
    """The endpoint refused before it looked at the request: another one may be asked, or this one later."""


class TokenRefusedError(NothingDoneError):
    """The same, and with a fresh token it will be taken."""


class UnknownOutcomeError(Exception):
    """The request may have been carried out, and may still be."""


class TooLargeError(Exception):
    """The answer is larger than this client takes: ask for less."""


class LeaseGoneError(Exception):
    """There is no such lease (any more)."""


_NOTHING_DONE = ("etcdserver: no leader", "etcdserver: not capable", "for learner", "etcdserver: too many requests")
_TOKEN_REFUSED = ("invalid auth token", "revision of auth store is old", "user name is empty")


def classify(error: grpc.aio.AioRpcError, address: str, *, has_password: bool) -> Exception:
    code, text = error.code(), error.details() or ""
    what = f"etcd at {address}: {text}"
    if any(known in text for known in _NOTHING_DONE):
        return NothingDoneError(what)
    if any(known in text for known in _TOKEN_REFUSED):
        if has_password:
            return TokenRefusedError(what)
        return PermissionDeniedError(f"{what}: it asks for a user, set user and password_file in [controller.etcd]")
    return _lasting(code, text, what) or UnknownOutcomeError(what)


def _lasting(code: grpc.StatusCode, text: str, what: str) -> SdrsError | TooLargeError | LeaseGoneError | None:
    """An answer that would be the same from any endpoint, and after which nothing was changed."""
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "space exceeded" in text:
            return FullError(
                f"{what}: compact and defragment it or raise --quota-backend-bytes, then `etcdctl alarm disarm`"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return TooLargeError(what)
        case grpc.StatusCode.OUT_OF_RANGE if "compacted" in text:
            return CompactedError(f"{what}: read the state anew")
        case grpc.StatusCode.OUT_OF_RANGE:
            return InvalidArgumentError(what)
        case grpc.StatusCode.INVALID_ARGUMENT if "authentication failed" in text:
            return PermissionDeniedError(f"{what}: check user and password_file in [controller.etcd]")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidArgumentError(what)
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.UNAUTHENTICATED:
            return PermissionDeniedError(f"{what}: grant the user read and write access to all keys under the prefix")
        case grpc.StatusCode.NOT_FOUND:
            return LeaseGoneError(what)
        case grpc.StatusCode.DATA_LOSS:
            return CorruptDataError(f"{what}: restore the cluster from a snapshot")
    return None
