"""The daemon ``storaged``: reads its configuration, wires its roles, serves until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import signal
import socket
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from sdrs_core.cluster import Endpoints, Node
from sdrs_core.errors import RefusedError, SdrsError, UnavailableError
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import CONTROL, MEMBERSHIP, STORAGE, handler
from sdrs_storaged.config import Config, load_config, split_address
from sdrs_storaged.control.archives import Archives
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.leadership import Leadership
from sdrs_storaged.control.loops import run_until_one_fails
from sdrs_storaged.control.meta.etcd import EtcdMetaStore
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.meta.store import MetaStore, Term
from sdrs_storaged.controller_metrics import ControllerMetrics
from sdrs_storaged.data_dir import DataDir
from sdrs_storaged.logs import configure_logs, get_log
from sdrs_storaged.metrics import DiskMetrics, GroupMetrics, NodeMetrics, new_registry, serve_metrics
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.receipts import ReceiptQueue
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.node.snapshots import SnapshotShelf
from sdrs_storaged.node.transfers import Slots, Tickets
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.channels import Channels
from sdrs_storaged.rpc.control_service import ControlService
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.rpc.data_channel import DataChannelServer
from sdrs_storaged.rpc.edge import serve
from sdrs_storaged.rpc.membership_service import MembershipService
from sdrs_storaged.rpc.node_client import NodeClient
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.rpc.pulling import Pulling
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.sealing import Sealing
from sdrs_storaged.rpc.snapshot_service import SnapshotService
from sdrs_storaged.rpc.standby import Switchboard
from sdrs_storaged.rpc.storage_service import StorageService
from sdrs_storaged.rpc.witness_client import WitnessClient
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.rpc.writing import Writing
from sdrs_storaged.store.capacity import Thresholds
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.version import VERSION

E = TypeVar("E", bound=Exception)

log = get_log("storaged")

_DRAIN_SECONDS = 10.0
_VERIFY_SLOTS = 2  # a disk reads no faster for more
_PUSH_WORKERS = 4
_LOOK_WORKERS = 4
# A second daemon must not share the port: it would take half of the calls.
_SERVER_OPTIONS = [*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)]
_LONGEST_UNIX_PATH = 100


class Daemon:
    """One process. ``run`` starts what its roles need, in order, and stops it in the opposite order."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._registry: CollectorRegistry = new_registry()
        self._metrics_endpoint = ""
        self._channels = Channels()
        self.is_serving = False
        self._facts: dict[str, Any] = {"version": VERSION, "roles": list(config.roles)}

    async def run(self, stop: asyncio.Event) -> None:
        async with AsyncExitStack() as cleanup, asyncio.TaskGroup() as tasks:
            data_dir = DataDir(self._config.data_dir)
            cleanup.callback(data_dir.close)
            cleanup.push_async_callback(self._channels.close)
            if self._config.metrics:
                self._metrics_endpoint, stop_metrics = serve_metrics(
                    self._registry, *split_address(self._config.metrics)
                )
                cleanup.callback(stop_metrics)
                self._facts["metrics"] = self._metrics_endpoint
            try:
                if "controller" in self._config.roles:
                    await self._start_controller(cleanup, tasks)
                if "node" in self._config.roles:
                    await self._start_node(cleanup, tasks)
                await asyncio.to_thread(data_dir.announce, self._facts)
                self.is_serving = True
                log.info("ready", pid=os.getpid(), version=VERSION)
                await stop.wait()
                log.info("stopping")
            finally:
                await cleanup.aclose()

    async def _serve(self, cleanup: AsyncExitStack, listen: str, handlers: list[grpc.GenericRpcHandler]) -> str:
        """Start a gRPC server with a health service; the address it took."""
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        server.add_generic_rpc_handlers(handlers)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        host, _ = split_address(listen)
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise UnavailableError(
                f"cannot listen on {listen}: the port is in use, or not ours to take ({error})"
            ) from error
        await server.start()
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        cleanup.push_async_callback(server.stop, 1.0)
        cleanup.push_async_callback(checks.set, "", health_pb2.HealthCheckResponse.NOT_SERVING)
        return f"{host}:{port}"

    async def _start_controller(self, cleanup: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        config = self._config.controller
        folder = self._config.data_dir / "controller"
        folder.mkdir(exist_ok=True)
        store = await self._open_store(folder)
        cleanup.push_async_callback(store.close)
        nodes = NodeClient(self._channels)
        switchboard = Switchboard(lambda: leadership.active_address)
        fronts = [handler(service, switchboard.front(service), serve) for service in (CONTROL, MEMBERSHIP)]
        address = await self._serve(cleanup, config.listen, fronts)

        async def lead(term: Term) -> None:
            controller = await Controller.start(store, term, Clock(), nodes, config)
            archives = Archives(controller, WitnessClient(self._channels), Clock(), folder)
            services: dict[str, object] = {
                CONTROL.name: ControlService(controller, archives, lambda: self._metrics_endpoint),
                MEMBERSHIP.name: MembershipService(controller),
            }
            metrics = ControllerMetrics(controller)
            self._registry.register(metrics)
            try:
                with switchboard.switched_to(services):
                    leadership.settled.set()
                    await run_until_one_fails(controller.run(), archives.run())
            finally:
                self._registry.unregister(metrics)

        leadership = Leadership(store, f"{_advertised(address)} {os.getpid()}", lead)
        cleanup.push_async_callback(_end, tasks.create_task(leadership.run()))
        await leadership.settled.wait()
        self._facts["controller"] = address
        log.info("controller_ready", address=address)

    async def _open_store(self, folder: Path) -> MetaStore:
        config = self._config.controller
        if config.store == "etcd":
            return await EtcdMetaStore.open(config.etcd)
        return await SqliteMetaStore.open(folder / "meta.db")

    async def _start_node(self, cleanup: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        config = self._config.node
        identity = await asyncio.to_thread(Identity.open, self._config.data_dir / "node.json", config.id)
        groups = Groups(identity)
        client = ControllerClient(self._channels, config.controllers, identity, groups)
        if not identity.cluster_id:
            await asyncio.to_thread(identity.join, await client.find_cluster())
        store = FragmentStore(await asyncio.to_thread(self._open_disks, identity), Clock().unix_seconds)
        cleanup.callback(store.close)
        receipts = ReceiptQueue(client.send_receipts)
        reports = MemberReports(client.report_member)
        tickets = Tickets()
        # P21: slots and threads of their own for each kind, so that no kind waits for another.
        writes, members = Slots("write", config.write_slots), Slots("member", config.member_slots)
        reads, repairs = Slots("read", config.read_slots), Slots("repair", config.repair_slots)
        verifies = Slots("verify", _VERIFY_SLOTS)
        write_workers = self._workers(cleanup, "write", config.write_slots)
        member_workers = self._workers(cleanup, "member", config.member_slots)
        read_workers = self._workers(cleanup, "read", config.read_slots + _VERIFY_SLOTS)
        repair_workers = self._workers(cleanup, "repair", config.repair_slots)
        pushes, looks = self._workers(cleanup, "push", _PUSH_WORKERS), self._workers(cleanup, "look", _LOOK_WORKERS)
        metrics = NodeMetrics(self._registry)
        blobs = BlobStore(store, groups, metrics)
        peers = Peers(self._channels, config.slow_member_seconds)
        replication = Replication(store, groups, peers, reports, metrics)
        transfers = {"write": writes, "member": members, "read": reads, "repair": repairs}
        self._registry.register(DiskMetrics(store, lambda: {kind: slots.taken for kind, slots in transfers.items()}))
        self._registry.register(GroupMetrics(groups, identity.node_id))
        writing = Writing(
            blobs,
            groups,
            replication,
            tickets,
            slots=writes,
            member_slots=members,
            workers=write_workers,
            member_workers=member_workers,
        )
        sealing = Sealing(
            store,
            groups,
            replication,
            peers,
            reports,
            receipts,
            looks=looks,
            pushes=pushes,
            slow_seconds=config.slow_member_seconds,
        )
        pulling = Pulling(store, peers, metrics, identity.node_id, slots=repairs, workers=repair_workers)
        service = StorageService(
            store,
            blobs,
            identity,
            groups,
            tickets,
            writing=writing,
            sealing=sealing,
            pulling=pulling,
            reads=reads,
            verifies=verifies,
            read_workers=read_workers,
            looks=looks,
        )
        node: Node | None = None
        shelf = await asyncio.to_thread(SnapshotShelf, self._config.data_dir / "snapshots", identity)
        snapshots = SnapshotService(shelf, identity, lambda: node)
        address = await self._serve(cleanup, config.listen, [handler(STORAGE, service, serve, snapshots)])
        data_server = DataChannelServer(blobs, replication, tickets)
        cleanup.callback(data_server.close)
        data_address = data_server.listen_tcp(*split_address(config.data_listen))
        endpoints = Endpoints(
            grpc=config.advertise or _advertised(address),
            data=config.data_advertise or _advertised(data_address),
            unix=data_server.listen_unix(_unix_path(self._config.data_dir)) if config.unix_socket else "",
            metrics=self._metrics_endpoint,
            host=socket.gethostname(),
        )
        node = Node(identity.node_id, endpoints, config.domain or endpoints.host, os.getpid(), VERSION)
        linked = asyncio.Event()
        cleanup.callback(tasks.create_task(receipts.run()).cancel)
        cleanup.callback(tasks.create_task(reports.run()).cancel)
        cleanup.callback(tasks.create_task(client.run(node, store.disks, linked)).cancel)
        await linked.wait()

        async def drain() -> None:
            # Nobody new; those inside may finish, because their clients have sent most of it.
            kinds = transfers.values()
            await asyncio.gather(*(asyncio.to_thread(slots.drain, _DRAIN_SECONDS) for slots in kinds))

        cleanup.push_async_callback(drain)
        self._facts |= {"id": identity.node_id, "grpc": address, "data": data_address, "unix": endpoints.unix}
        log.info("node_ready", node=identity.node_id, address=address)

    def _workers(self, cleanup: AsyncExitStack, name: str, count: int) -> Workers:
        workers = Workers(name, count)
        # Off the loop: those who are still at work may wait for a call that is made on it.
        cleanup.push_async_callback(asyncio.to_thread, workers.shutdown)
        return workers

    def _open_disks(self, identity: Identity) -> list[Disk]:
        config = self._config.node
        folders = config.disks or (self._config.data_dir / "disk-1",)
        thresholds = Thresholds(config.near_full_percent / 100, config.full_percent / 100)
        disks: list[Disk] = []
        try:
            for folder in folders:
                disk = Disk.open(
                    folder,
                    cluster_id=identity.cluster_id,
                    node_id=identity.node_id,
                    thresholds=thresholds,
                    capacity_bytes=config.disk_capacity_bytes or None,
                )
                disks.append(disk)
        except BaseException:
            for disk in disks:
                disk.close()
            raise
        return disks


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _advertised(address: str) -> str:
    """Where others reach what is served at ``address``; of a daemon that listens everywhere, by this host's name."""
    host, port = split_address(address)
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "::") else address


def _unix_path(data_dir: Path) -> Path:
    """Socket paths are short by law: that of a deep data_dir gets a private folder of its own in the temporary one."""
    path = data_dir.resolve() / "data.sock"
    if len(str(path)) <= _LONGEST_UNIX_PATH:
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"sdrs-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RefusedError(f"{folder} belongs to somebody else: remove it, or choose a shorter data_dir")
    return folder / "data.sock"


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    daemon = Daemon(config)
    running = asyncio.ensure_future(daemon.run(stop))

    def ask_to_stop() -> None:
        # The first signal drains; before the daemon serves, and on a second one, there is nothing to wait for.
        if stop.is_set() or not daemon.is_serving:
            running.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    await running


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="storaged", description="The storage daemon of SDRS: roles controller and node."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; see deploy/storaged.example.toml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one key, as in node.domain=rack-7"
    )
    parser.add_argument("--insecure", action="store_true", help="allow to listen beyond loopback in the clear")
    parser.add_argument("--check", action="store_true", help="validate the configuration and exit")
    parser.add_argument("--version", action="version", version=f"storaged {VERSION}")
    flags = parser.parse_args()
    overrides = [*flags.set, *(["insecure=true"] if flags.insecure else [])]
    try:
        config = load_config(flags.config, os.environ, overrides)
        config.check_exposure()
        if flags.check:
            return
        configure_logs(config.log_level, config.log_format)
        asyncio.run(_run(config))
    except* SdrsError as group:
        error = _first(group)
        sys.stderr.write(f"storaged: {error.message}\n")
        sys.exit(error.exit_code)
    except* OSError as group:
        # Of the system, not of ours: a disk that is full or gone while the daemon starts.
        sys.stderr.write(f"storaged: {_first(group)}: check the disk, the path and its rights\n")
        sys.exit(1)
    except* (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)


def _first(group: BaseExceptionGroup[E]) -> E:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
