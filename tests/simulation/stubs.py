"""Calls and streams as production code makes them: stubs over the simulated network, in the place of gRPC's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from sdrs_core.errors import SdrsError, UnavailableError
from tests.simulation.loop import Process
from tests.simulation.network import Deliver, Network, Served


class Channels:
    """Stands in for ``rpc.channels.Channels``: stubs of one process, over the simulated network."""

    def __init__(self, network: Network, caller: Process) -> None:
        self._network = network
        self._caller = caller

    def stub(self, address: str, service: Any) -> Any:
        return _Stub(self._network, self._caller, address.partition(":")[0])


class _Stub:
    def __init__(self, network: Network, caller: Process, address: str) -> None:
        self._network = network
        self._caller = caller
        self._address = address

    def heartbeat(self, requests: AsyncIterator[Any]) -> StreamCall:
        return StreamCall(self._network, self._caller, self._address, "heartbeat", requests)

    async def verify_fragment(self, request: Any, timeout: float) -> AsyncIterator[Any]:
        for response in await self._network.call(self._caller, self._address, "verify_fragment", request, timeout):
            yield response

    async def write_blob(self, frames: AsyncIterator[Any], timeout: float) -> Any:
        gathered = [frame async for frame in frames]
        return await self._network.call(self._caller, self._address, "write_blob", gathered, timeout)

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def unary(request: Any, timeout: float) -> Awaitable[Any]:
            return self._network.call(self._caller, self._address, method, request, timeout)

        return unary


class StreamCall:
    """A stream in both directions, as ``grpc.aio`` gives it to the caller: ``read`` and ``cancel``."""

    def __init__(
        self, network: Network, caller: Process, address: str, method: str, requests: AsyncIterator[Any]
    ) -> None:
        self._network = network
        self._caller = caller
        self._address = address
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._is_over = False
        caller.on_death[self] = self._hang_up
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        self._send(partial(self._accept, method))
        self._sending = asyncio.ensure_future(self._send_all(requests))

    async def _send_all(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            self._send(partial(self._outbox.put_nowait, request))

    def _send(self, deliver: Deliver) -> None:
        self._network.send(self._caller.name, self._address, deliver, is_stream=True)

    def _hang_up(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._caller.on_death.pop(self, None)
            self._send(partial(self._outbox.put_nowait, None))

    def cancel(self) -> None:
        self._sending.cancel()
        self._hang_up()

    async def read(self) -> Any:
        item = await self._inbox.get()
        if isinstance(item, SdrsError):
            raise item
        return item

    # The other side

    def _accept(self, method: str) -> None:
        served = self._network.find(self._address)
        if served is None or not served.process.is_alive:
            self._answer(UnavailableError(f"{self._address}: connection refused"))
            return
        reset = UnavailableError(f"{self._address}: connection reset")
        served.process.on_death[self] = partial(self._answer, reset)
        served.streams.append(served.process.spawn(self._serve(served, method)))

    async def _serve(self, served: Served, method: str) -> None:
        try:
            async with aclosing(served.find(method)(self._requests())) as responses:
                async for response in responses:
                    self._answer(response)
        except SdrsError as error:
            self._answer(error)
        except asyncio.CancelledError:
            self._answer(UnavailableError(f"{self._address} ended the stream"))
        except Exception as error:
            self._network.defect(f"{method} of {self._address}", error)
        else:
            self._answer(grpc.aio.EOF)
        served.process.on_death.pop(self, None)

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self._outbox.get()) is not None:
            yield request

    def _answer(self, item: Any) -> None:
        deliver = partial(self._inbox.put_nowait, item)
        self._network.send(self._address, self._caller.name, deliver, is_stream=True)
