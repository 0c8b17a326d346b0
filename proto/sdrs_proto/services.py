"""Stubs and handlers, made from the descriptors.

The generated ``*_pb2_grpc`` modules are not used: blob frames need their own codec, and training images pin old gRPC
runtimes, which newer generated stubs refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from sdrs_proto import framing
from sdrs_proto.v1 import control_pb2, membership_pb2, storage_pb2

CONTROL: ServiceDescriptor = control_pb2.DESCRIPTOR.services_by_name["Control"]
MEMBERSHIP: ServiceDescriptor = membership_pb2.DESCRIPTOR.services_by_name["Membership"]
STORAGE: ServiceDescriptor = storage_pb2.DESCRIPTOR.services_by_name["Storage"]

_FRAME = storage_pb2.BlobFrame.DESCRIPTOR.full_name


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    path: str
    shape: str  # as grpc names it: unary_unary, stream_unary, ...
    encode_request: Callable[[Any], bytes]
    decode_request: Callable[[bytes], Any]
    encode_response: Callable[[Any], bytes]
    decode_response: Callable[[bytes], Any]

    @property
    def python_name(self) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()


def _codec(message: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    if message.full_name == _FRAME:
        return framing.encode_frame, framing.decode_frame
    kind = message._concrete_class
    return kind.SerializeToString, kind.FromString


def methods(service: ServiceDescriptor) -> Iterator[Method]:
    for method in service.methods:
        shape = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        yield Method(
            method.name,
            f"/{service.full_name}/{method.name}",
            shape,
            *_codec(method.input_type),
            *_codec(method.output_type),
        )


class Stub:
    """``stub.begin_save(request, timeout=...)`` for each method of a service, on a sync or an async channel."""

    def __init__(self, channel: Any, service: ServiceDescriptor) -> None:
        for method in methods(service):
            call = getattr(channel, method.shape)(method.path, method.encode_request, method.decode_response)
            setattr(self, method.python_name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name}")


def handler(
    service: ServiceDescriptor, implementation: object, wrap: Callable[[Method, Any], Any], *others: object
) -> grpc.GenericRpcHandler:
    """The handler that serves ``service`` with the methods of ``implementation`` and of ``others``, each passed through
    ``wrap``. A method that none of them has is answered as unknown.

    Requests arrive at ``wrap`` as bytes: only there can a malformed one be answered with an error of ours.
    """
    table = {}
    for method in methods(service):
        make = getattr(grpc, f"{method.shape}_rpc_method_handler")
        for part in (implementation, *others):
            if hasattr(part, method.python_name):
                behavior = wrap(method, getattr(part, method.python_name))
                table[method.name] = make(behavior, None, method.encode_response)
                break
    return grpc.method_handlers_generic_handler(service.full_name, table)
