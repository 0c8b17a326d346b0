"""Calls to several etcds as if they were one: the next endpoint is tried wherever that is safe.

A request goes out only on a connection that stands, so "refused" and "sent, and then nothing" are told apart. Reads are
repeated after either, changes only after the former (what may have happened is never done again silently). Every call
carries etcd's ``hasleader``: a member that is cut off from the others refuses at once instead of waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from sdrs_core.errors import InvalidArgumentError, PermissionDeniedError, RefusedError, UnavailableError
from sdrs_proto.etcd import etcd_pb2 as pb
from sdrs_proto.services import Stub
from sdrs_storaged.config import EtcdConfig
from sdrs_storaged.control.meta.etcd_errors import (
    NothingDoneError,
    TokenRefusedError,
    UnknownOutcomeError,
    classify,
)

KV, WATCH, LEASE, MAINTENANCE, AUTH = (
    pb.DESCRIPTOR.services_by_name[name] for name in ("KV", "Watch", "Lease", "Maintenance", "Auth")
)

# A request has at most 1.5 MiB, and etcd cuts what it sends to watches to little more.
MAX_RECEIVED_BYTES = 8 << 20
# More would only wait inside etcd (I10).
MAX_CALLS = 256
_CONNECT_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_HAS_LEADER = ("hasleader", "true")

_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_RECEIVED_BYTES),
    # A silent peer is noticed while a watch waits for it. etcd takes pings faster than every 5 s for an attack.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # what newer versions of gRPC wait for, whatever the line above says
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    # Two stores of one process do not wait for each other's connections.
    ("grpc.use_local_subchannel_pool", 1),
]

Metadata = tuple[tuple[str, str], ...]
Ask = Callable[["Endpoint", Metadata, float], Awaitable[Any]]


class Endpoint:
    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self._unreachable = f"etcd at {address} cannot be reached"
        if credentials:
            self._unreachable += ", or one side refuses the other's certificate"  # gRPC does not tell which
            self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stubs: dict[str, Stub] = {}
        self.close = self._channel.close

    def stub(self, service: ServiceDescriptor) -> Stub:
        if service.name not in self._stubs:
            self._stubs[service.name] = Stub(self._channel, service)
        return self._stubs[service.name]

    async def connect(self) -> None:
        """Return once a connection stands; NothingDoneError if none can be had soon."""
        state = self._channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                while state is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise NothingDoneError(self._unreachable)
                    await self._channel.wait_for_state_change(state)
                    state = self._channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise NothingDoneError(f"etcd at {self.address} does not take connections") from None


class EtcdClient:
    """It belongs to the event loop that it was made on."""

    def __init__(self, config: EtcdConfig) -> None:
        credentials = _credentials(config) if config.uses_tls else None
        self._user = config.user
        self._password = _password(config.password_file) if config.password_file else ""
        self._token = ""
        self._authenticating = asyncio.Lock()
        self._call_seconds = config.call_seconds
        # In the order in which they are tried; whoever fails goes to the end.
        self._endpoints = [Endpoint(address, credentials) for address in config.addresses]
        self.name = "etcd at " + ", ".join(config.addresses)
        self._slots = asyncio.Semaphore(MAX_CALLS)
        self._calls: set[asyncio.Future[Any]] = set()
        self._streams: set[Any] = set()
        self.is_closed = False

    @property
    def endpoints(self) -> list[Endpoint]:
        return sorted(self._endpoints, key=lambda endpoint: endpoint.address)

    def refuse_if_closed(self) -> None:
        if self.is_closed:
            raise UnavailableError(f"the metadata store {self.name} is closed: open it again")

    # Calls

    async def call(
        self,
        service: ServiceDescriptor,
        method: str,
        request: Any,
        *,
        repeatable: bool,
        seconds: float = 0,
        needs_leader: bool = True,
    ) -> Any:
        """Ask one endpoint after the other, for ``seconds`` in all. UnavailableError: none answered, or nobody knows
        whether one that was asked to change something did it. ``needs_leader`` False: also one that is cut off may
        answer.
        """

        async def ask(endpoint: Endpoint, metadata: Metadata, timeout: float) -> Any:
            if not needs_leader:
                metadata = tuple(pair for pair in metadata if pair[0] != _HAS_LEADER[0])
            return await getattr(endpoint.stub(service), method)(request, metadata=metadata, timeout=timeout)

        return await self.ask(ask, repeatable=repeatable, seconds=seconds)

    async def ask(self, ask: Ask, *, repeatable: bool, seconds: float = 0) -> Any:
        async with self._slots:
            self.refuse_if_closed()
            # Waited for by ``close``: a call under way gets its answer.
            done = asyncio.get_running_loop().create_future()
            self._calls.add(done)
            try:
                return await self._ask_in_turn(ask, repeatable, seconds or self._call_seconds)
            finally:
                self._calls.discard(done)
                done.set_result(None)

    async def _ask_in_turn(self, ask: Ask, repeatable: bool, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            failure: Exception | None = None
            for endpoint in list(self._endpoints):
                left_seconds = max(deadline - time.monotonic(), seconds / 4)
                # A read leaves the next endpoint time to answer as well.
                timeout = min(left_seconds, seconds / 2) if repeatable and len(self._endpoints) > 1 else left_seconds
                try:
                    return await self._ask_one(ask, endpoint, timeout)
                except NothingDoneError as error:
                    failure = error
                except UnknownOutcomeError as error:
                    if not repeatable:
                        self._put_last(endpoint)
                        raise UnavailableError(
                            f"{error}: whether the change was made is not known, read before trying again"
                        ) from None
                    failure = error
                self._put_last(endpoint)
                if time.monotonic() > deadline:
                    break
            if time.monotonic() + _PAUSE_SECONDS > deadline:
                raise UnavailableError(f"the metadata store {self.name} is out of reach: {failure}") from None
            await asyncio.sleep(_PAUSE_SECONDS)
            self.refuse_if_closed()

    async def _ask_one(self, ask: Ask, endpoint: Endpoint, timeout: float) -> Any:
        await endpoint.connect()
        try:
            return await self._with_token(ask, endpoint, timeout)
        except TokenRefusedError:
            # It ran out, the etcd that gave it restarted, or rights were changed. Once, then it is another endpoint's.
            self._token = ""
            return await self._with_token(ask, endpoint, timeout)

    async def _with_token(self, ask: Ask, endpoint: Endpoint, timeout: float) -> Any:
        metadata = await self.metadata(endpoint, timeout)
        try:
            return await ask(endpoint, metadata, timeout)
        except grpc.aio.AioRpcError as error:
            raise classify(error, endpoint.address, has_password=bool(self._user)) from None

    def _put_last(self, endpoint: Endpoint) -> None:
        if self._endpoints[0] is endpoint:
            self._endpoints.append(self._endpoints.pop(0))

    # Passwords

    async def metadata(self, endpoint: Endpoint, timeout: float) -> Metadata:
        if self._user and not self._token:
            async with self._authenticating:
                if not self._token:
                    self._token = await self._authenticate(endpoint, timeout)
        return (_HAS_LEADER, *((("token", self._token),) if self._token else ()))

    async def _authenticate(self, endpoint: Endpoint, timeout: float) -> str:
        request = pb.AuthenticateRequest(name=self._user, password=self._password)
        try:
            response = await endpoint.stub(AUTH).authenticate(request, metadata=(_HAS_LEADER,), timeout=timeout)
            return str(response.token)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise PermissionDeniedError(
                    f"etcd at {endpoint.address} has authentication switched off, yet [controller.etcd] names the "
                    f"user {self._user!r}: enable it there, or remove user and password_file here"
                ) from None
            failure = classify(error, endpoint.address, has_password=False)
            # Whether or not a token was given, it changed nothing.
            raise NothingDoneError(str(failure)) if isinstance(failure, UnknownOutcomeError) else failure from None

    def forget_token(self) -> None:
        self._token = ""

    # Streams

    @asynccontextmanager
    async def stream(self, service: ServiceDescriptor, method: str) -> AsyncIterator[Any]:
        """An open call at the first endpoint that takes one; it has no deadline.

        NothingDoneError or UnknownOutcomeError if it breaks, and the next one is opened elsewhere. UnavailableError
        once the client was closed.
        """
        self.refuse_if_closed()
        endpoint = self._endpoints[0]
        call: Any = None
        try:
            await endpoint.connect()
            metadata = await self.metadata(endpoint, self._call_seconds)
            self.refuse_if_closed()
            call = getattr(endpoint.stub(service), method)(metadata=metadata)
            self._streams.add(call)
            yield call
        except (NothingDoneError, UnknownOutcomeError):
            self._put_last(endpoint)
            raise
        except grpc.aio.AioRpcError as error:
            self._put_last(endpoint)
            raise classify(error, endpoint.address, has_password=bool(self._user)) from None
        except asyncio.InvalidStateError:
            # gRPC's word for writing to a call that has ended.
            self._put_last(endpoint)
            raise UnknownOutcomeError(f"etcd at {endpoint.address} ended the stream") from None
        except asyncio.CancelledError:
            # gRPC says the same word when ``close`` ended the call. Only a task that was cancelled itself passes it on.
            task = asyncio.current_task()
            if self.is_closed and task and not task.cancelling():
                self.refuse_if_closed()
            raise
        finally:
            if call is not None:
                self._streams.discard(call)
                call.cancel()

    async def close(self) -> None:
        """Streams end at once, calls get their answers."""
        self.is_closed = True
        for call in list(self._streams):
            call.cancel()
        while self._calls:
            await asyncio.wait(list(self._calls))
        for endpoint in self._endpoints:
            await endpoint.close()


def backoff() -> Iterator[float]:
    pause_seconds = _PAUSE_SECONDS
    while True:
        yield pause_seconds
        pause_seconds = min(2 * pause_seconds, 1.0)


def _credentials(config: EtcdConfig) -> grpc.ChannelCredentials:
    def read(name: str, path: Path | None) -> bytes | None:
        try:
            return path.read_bytes() if path else None
        except OSError as error:
            raise InvalidArgumentError(f"controller.etcd.{name} {path} cannot be read: {error.strerror}") from error

    return grpc.ssl_channel_credentials(
        read("ca_file", config.ca_file), read("key_file", config.key_file), read("cert_file", config.cert_file)
    )


def _password(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o007:
            raise RefusedError(
                f"controller.etcd.password_file {path} can be read by everybody on this machine: chmod o-rwx {path}"
            )
        return path.read_text().rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"controller.etcd.password_file {path} cannot be read: {error}") from error
