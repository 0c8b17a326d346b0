"""A TCP proxy inside a test's event loop, to cut, mute, slow and heal the connection between two real processes.

``proxies`` gives tests without an event loop of their own one in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

from tests.support.waiting import let_others_run, stop_serving

_CHUNK_BYTES = 65536
_MAX_HELD = 1000


class Proxy:
    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""
        # While set, what the target answers is thrown away.
        self.is_mute = False
        # Everything is so late, either way.
        self.delay_seconds = 0.0

    async def start(self) -> None:
        port = int(self.address.rpartition(":")[2]) if self.address else 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def cut(self) -> None:
        """End all connections, and refuse new ones until ``start``."""
        assert self._server
        await stop_serving(self._server)
        while self._connections:
            for writer in list(self._writers):
                writer.transport.abort()
            await asyncio.wait(list(self._connections), timeout=0.05)
        # What is aborted is closed a turn later, and nothing is left for the garbage collector to complain about.
        await let_others_run()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._connections.add(task)
        try:
            upstream_reader, upstream = await asyncio.open_connection(*self._target)
            self._writers |= {writer, upstream}
            try:
                await asyncio.gather(
                    self._pump(reader, upstream, answers=False), self._pump(upstream_reader, writer, answers=True)
                )
            finally:
                self._writers -= {writer, upstream}
                upstream.transport.abort()
        except OSError:
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        # With the moment at which each piece goes on: they are late, not fewer, and none overtakes another.
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MAX_HELD)
        now = asyncio.get_running_loop().time

        async def pass_on() -> None:
            with suppress(OSError):
                while True:
                    due, data = await held.get()
                    await asyncio.sleep(max(0.0, due - now()))
                    writer.write(data)
                    await writer.drain()

        passing = asyncio.ensure_future(pass_on())
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if not (answers and self.is_mute):
                    await held.put((now() + self.delay_seconds, data))
        except OSError:
            pass
        finally:
            passing.cancel()
            # Whoever ends first ends both ways.
            writer.transport.abort()


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.cut()


@contextmanager
def proxies(targets: Sequence[str]) -> Iterator[list[Proxy]]:
    """One to each target. They may be slowed and muted from outside; the rest is for their own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxies")
    thread.start()
    made = [Proxy(target) for target in targets]
    try:
        for proxy in made:
            asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(10)
        yield made
        for proxy in made:
            asyncio.run_coroutine_threadsafe(proxy.cut(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
