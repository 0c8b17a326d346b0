"""gRPC channels, one for each address, opened when first used."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from sdrs.forks import GATE
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import Stub
from sdrs_proto.status import from_rpc_error

# Without it a forked child would find its parent's connection in gRPC's global pool, and write into it.
_OPTIONS = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


class InterruptedByForkError(Exception):
    """A long poll was cut short because this process forks: ask again."""


class Channels:
    """Belongs to one process: after a fork a new one is made, and this one is never touched again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[tuple[str, str], Stub] = {}

    def stub(self, address: str, service: ServiceDescriptor) -> Stub:
        with self._lock:
            key = (address, service.full_name)
            if key not in self._stubs:
                if address not in self._channels:
                    self._channels[address] = grpc.insecure_channel(address, options=_OPTIONS)
                self._stubs[key] = Stub(self._channels[address], service)
            return self._stubs[key]

    def close(self) -> None:
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._stubs.clear()


def call_once(method: Any, request: Any, *, timeout_seconds: float, peer: str, long_poll: bool = False) -> Any:
    """One unary call; raises one of our errors, or InterruptedByForkError from a long poll."""
    with GATE.call() as call:
        try:
            if not long_poll:
                return method(request, timeout=timeout_seconds)
            # A future, because a blocking call cannot be cancelled.
            future = method.future(request, timeout=timeout_seconds)
            call.on_fork(future.cancel)
            return future.result()
        except grpc.FutureCancelledError as error:
            raise InterruptedByForkError from error
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer) from error


def send_requests(method: Any, requests: Iterable[Any], *, timeout_seconds: float, peer: str) -> Any:
    """The one answer to a stream of requests; raises one of our errors."""
    with GATE.call():
        try:
            return method(iter(requests), timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer) from error


def stream_responses(method: Any, request: Any, *, timeout_seconds: float, peer: str) -> Generator[Any, None, None]:
    """The answers of a server stream; leaving the loop early cancels the call."""
    with GATE.call():
        stream = method(request, timeout=timeout_seconds)
        try:
            yield from stream
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer) from error
        finally:
            stream.cancel()
