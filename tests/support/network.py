"""The network between real daemons on one machine: bytes can get lost from any one to any other, one way only too.

Every daemon is reached through a proxy of its own, which tells callers apart by the process that owns the other end of
the connection. What is lost is held back and arrives after ``heal``, as TCP would have it: nobody is told anything.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.cluster import DaemonProcess, LocalCluster
from tests.support.waiting import let_others_run, stop_serving

CLIENT = "client"
CONTROLLER = "controller"
_CHUNK_BYTES = 1 << 16


class Network:
    def __init__(self, daemons: Callable[[], list[DaemonProcess]]) -> None:
        self._daemons = daemons
        self._lost: set[tuple[str, str]] = set()
        self._loop = asyncio.new_event_loop()
        self._healed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    # Faults

    def lose(self, source: str, destination: str) -> None:
        """Bytes from ``source`` to ``destination`` do not arrive from now on."""
        self._change({*self._lost, (source, destination)})

    def cut(self, one: str, other: str) -> None:
        self._change({*self._lost, (one, other), (other, one)})

    def heal(self) -> None:
        self._change(set())

    def _change(self, lost: set[tuple[str, str]]) -> None:
        async def change() -> None:
            self._lost = lost
            healed, self._healed = self._healed, asyncio.Event()
            healed.set()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result()

    # Ways in

    def expose(self, daemon: DaemonProcess, fact: str) -> str:
        """The address of a way to what ``daemon`` says in ``run.json`` under ``fact``."""
        return asyncio.run_coroutine_threadsafe(self._expose(daemon, fact), self._loop).result()

    async def _expose(self, daemon: DaemonProcess, fact: str) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task
            self._connections.add(task)
            try:
                with suppress(asyncio.CancelledError):  # the end of the test: asyncio would tell it as a failure
                    await self._serve(daemon, fact, reader, writer)
            finally:
                self._connections.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(
        self, daemon: DaemonProcess, fact: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        caller = self._owner(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1])
        try:
            host, _, port = (await self._target(daemon, fact)).rpartition(":")
            upstream_reader, upstream = await asyncio.open_connection(host, int(port))
        except (OSError, AssertionError):
            return  # nobody there: the connection is reset
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, upstream, caller, daemon.name))
                pumps.create_task(self._pump(upstream_reader, writer, daemon.name, caller))
        except* OSError:
            pass
        finally:
            upstream.transport.abort()

    async def _target(self, daemon: DaemonProcess, fact: str) -> str:
        """A daemon listens a moment before it says where."""
        await asyncio.to_thread(daemon.wait_until_ready)
        return str(daemon.running()[fact])

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, destination: str
    ) -> None:
        try:
            while True:
                data = await reader.read(_CHUNK_BYTES)
                while (source, destination) in self._lost:
                    await self._healed.wait()
                if not data:
                    return
                writer.write(data)
                await writer.drain()
        finally:
            with suppress(RuntimeError):
                writer.close()  # after what was written; the other way ends by that

    def _owner(self, port: int, to_port: int) -> str:
        """Whose end of the connection that is; the client's if it is no daemon's."""
        inodes = _sockets(port, to_port)
        for daemon in self._daemons():
            if daemon.process and any(f"socket:[{inode}]" in _descriptors(daemon.pid) for inode in inodes):
                return daemon.name
        return CLIENT

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                await stop_serving(server)
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            # What was aborted is closed a turn later: nothing is left for the garbage collector to complain about.
            await let_others_run()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _sockets(port: int, to_port: int) -> set[str]:
    """The inode of the end at ``port``; gRPC speaks IPv4 over sockets of IPv6."""
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}", encoding="ascii") as table:
            for fields in map(str.split, table):
                if fields[1].endswith(f"0100007F:{port:04X}") and fields[2].endswith(f"0100007F:{to_port:04X}"):
                    found.add(fields[9])
    return found


def _descriptors(pid: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


@contextmanager
def networked(cluster: LocalCluster) -> Iterator[Network]:
    """Put a network between the daemons of a cluster that is not started yet. Clients reach its controller directly."""
    network = Network(lambda: [cluster.controller, *cluster.nodes])
    try:
        controller = network.expose(cluster.controller, CONTROLLER)
        for node in cluster.nodes:
            node.settings += [
                f'node.controllers=["{controller}"]',
                f"node.advertise={network.expose(node, 'grpc')}",
                f"node.data_advertise={network.expose(node, 'data')}",
                "node.unix_socket=false",
            ]
        yield network
    finally:
        network.close()
