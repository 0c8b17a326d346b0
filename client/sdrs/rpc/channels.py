"""gRPC channels, one for each address, opened when first used."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from sdrs.forks import GATE
from sdrs.rpc.cutoff import Cutoff
from sdrs_core.errors import RefusedError, UnavailableError
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import Stub
from sdrs_proto.status import from_rpc_error

_OPTIONS = {
    **dict(CHANNEL_OPTIONS),
    # Without it a forked child would find its parent's connection in gRPC's global pool, and write into it.
    "grpc.use_local_subchannel_pool": 1,
    # A node that came back serves at once, whatever was tried meanwhile: while gRPC pauses, every call fails.
    "grpc.initial_reconnect_backoff_ms": 50,
    "grpc.max_reconnect_backoff_ms": 500,
}


class InterruptedByForkError(Exception):
    """A long poll was cut short because this process forks: ask again."""


class Channels:
    """Belongs to one process: after a fork a new one is made, and this one is never touched again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[tuple[str, str], Stub] = {}
        self._is_closed = False

    def stub(self, address: str, service: ServiceDescriptor) -> Stub:
        with self._lock:
            if self._is_closed:
                raise RefusedError("the connection to the cluster is closed: connect again")
            key = (address, service.full_name)
            if key not in self._stubs:
                if address not in self._channels:
                    self._channels[address] = grpc.insecure_channel(address, options=list(_OPTIONS.items()))
                self._stubs[key] = Stub(self._channels[address], service)
            return self._stubs[key]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._stubs.clear()


def call_once(
    method: Any,
    request: Any,
    *,
    timeout_seconds: float,
    peer: str,
    long_poll: bool = False,
    cutoff: Cutoff | None = None,
) -> Any:
    """One unary call; raises one of our errors, or InterruptedByForkError from a long poll."""
    with GATE.call() as call:
        if not long_poll and cutoff is None:
            with _our_errors(peer):
                return method(request, timeout=timeout_seconds)
        # A future, because a blocking call cannot be cancelled.
        with _our_errors(peer):
            future = method.future(request, timeout=timeout_seconds)
        if cutoff is not None:
            with cutoff.breaking(future.cancel), _our_errors(peer):
                return future.result()
        call.on_fork(future.cancel)
        try:
            with _our_errors(peer):
                return future.result()
        except CancelledCallError as error:
            raise InterruptedByForkError from error


class CancelledCallError(UnavailableError):
    """A call ended without an answer, because either side stopped it."""


@contextmanager
def _our_errors(peer: str) -> Iterator[None]:
    try:
        yield
    except grpc.FutureCancelledError as error:
        raise CancelledCallError(f"the call to {peer} was stopped before it was answered", peer=peer) from error
    except grpc.RpcError as error:
        raise from_rpc_error(error, peer) from error
    except ValueError as error:
        if "closed channel" not in str(error):
            raise
        raise RefusedError(f"the connection to {peer} was closed: connect again") from error


def send_requests(method: Any, requests: Iterable[Any], *, timeout_seconds: float, peer: str) -> Any:
    """The one answer to a stream of requests; raises one of our errors."""
    with GATE.call(), _our_errors(peer):
        return method(iter(requests), timeout=timeout_seconds)


def stream_responses(
    method: Any, request: Any, *, timeout_seconds: float, peer: str, cutoff: Cutoff | None = None
) -> Generator[Any, None, None]:
    """The answers of a server stream; leaving the loop early cancels the call."""
    with GATE.call():
        stream = method(request, timeout=timeout_seconds)
        try:
            with cutoff.breaking(stream.cancel) if cutoff is not None else nullcontext():
                yield from stream
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer) from error
        finally:
            stream.cancel()
