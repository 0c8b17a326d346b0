"""Errors to gRPC status and back: the one place.

An error travels as google.rpc.Status with one ErrorInfo: its reason, our domain, its facts as metadata.
"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from sdrs_core.errors import (
    BY_REASON,
    DOMAIN,
    DeadlineExceededError,
    InternalError,
    PermissionDeniedError,
    ProtocolError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
)

DETAILS_KEY = "grpc-status-details-bin"

_WITHOUT_DETAILS: dict[grpc.StatusCode, type[SdrsError]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,  # a peer that shuts down ends the calls under way like this
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.UNIMPLEMENTED: UnsupportedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ProtocolError,  # gRPC's own answer to an oversized message
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: PermissionDeniedError,
}


def to_status(error: SdrsError) -> Status:
    info = ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.facts)
    packed = AnyMessage()
    packed.Pack(info)
    return Status(code=code_of(error).value[0], message=error.message, details=[packed])


def code_of(error: SdrsError) -> grpc.StatusCode:
    return grpc.StatusCode[error.status]


def from_status(status: Status) -> SdrsError:
    for detail in status.details:
        info = ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            kind = BY_REASON.get(info.reason, InternalError)
            return kind(status.message, **dict(info.metadata))
    return InternalError(status.message)


def from_rpc_error(error: Any, peer: str) -> SdrsError:
    """The error that a failed call to ``peer`` stands for. ``error`` is a grpc.RpcError that has a code."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            return from_status(Status.FromString(value))
    code, details = error.code(), error.details() or ""
    kind = _WITHOUT_DETAILS.get(code, InternalError)
    if kind is UnavailableError:
        # gRPC's own words go from the general to the cause: "...; last error: UNKNOWN: ipv4:...: Connection refused".
        cause = details.rpartition(": ")[2].rstrip("]")
        return UnavailableError(
            f"{peer} cannot be reached: is it running, and is the address right? ({cause})", peer=peer, details=details
        )
    if kind is DeadlineExceededError:
        return DeadlineExceededError(f"{peer} did not answer in time: it may be overloaded or stopped", peer=peer)
    if kind is UnsupportedError:
        return UnsupportedError(
            f"{peer} does not know this call: it may run another version, or not be SDRS at all", peer=peer
        )
    return kind(f"{peer} answered {code.name}: {details}", peer=peer)
