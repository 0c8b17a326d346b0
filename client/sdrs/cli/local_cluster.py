"""A cluster on this machine, brought up."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sdrs.cli import local_processes
from sdrs.cli.catalog_file import refuse_snapshot
from sdrs.cli.local_daemons import (
    SCHEDULER,
    controller_daemons,
    etcd_daemons,
    node_daemons,
    purge_etcd_parts,
    scheduler_daemon,
)
from sdrs.cli.local_layout import (
    DEFAULT_NODE_COUNT,
    DEFAULT_PORT,
    ETCD_COUNT,
    HOST,
    EtcdPorts,
    Layout,
    folder_lock,
    read_layout,
    write_layout,
)
from sdrs.cli.local_processes import Process, find_processes
from sdrs.cli.local_start import (
    START_SECONDS,
    Launch,
    Tell,
    halted_because,
    pending_controllers,
    pending_etcds,
    pending_nodes,
    start_scheduler,
)
from sdrs.cli.pointer import Pointer, write_pointer
from sdrs_core.cluster import DEFAULT_POOL, Pool
from sdrs_core.codes import Code
from sdrs_core.errors import AlreadyExistsError, RefusedError, SdrsError
from sdrs_core.levels import Level

if TYPE_CHECKING:
    from sdrs import Cluster

T = TypeVar("T")

# Of the pool `default`, where there is a node for each fragment.
DEFAULT_CODE = Code(4, 2)
# Below those that the system gives to outgoing connections: etcd cannot move to another port after a restart.
_ETCD_PORTS = range(20_000, 32_000)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; None leaves it as it is, or to the default."""

    node_count: int | None = None
    port: int | None = None
    disks_per_node: int = 1
    etcd: bool = False
    # A catalog to begin with, as `sdrs meta export` wrote it.
    import_file: Path | None = None
    scheduler: bool = True


@dataclass(frozen=True, slots=True)
class UpOutcome:
    url: str
    dir: Path
    started: tuple[str, ...]
    node_count: int
    store: str
    # The one that saves go to unless told; None: there is none.
    pool: Pool | None = None
    # What an operator has to do before the cluster works; empty: it does.
    halted: str = ""
    has_scheduler: bool = False
    # Why there is none, though one was asked for; empty: it runs, or nobody did.
    no_scheduler: str = ""


def bring_up(directory: Path, wish: Wish, tell: Tell) -> UpOutcome:
    """Start what is missing, wait until all of it works, and leave the pointer. ``tell`` hears what is waited for."""
    missing = local_processes.missing_modules()
    if missing:
        raise SdrsError(f"the daemon needs {', '.join(missing)}, not installed here: pip install 'sdrs[server]'")
    if wish.import_file is not None:
        refuse_snapshot(wish.import_file)
    read_layout(directory)  # refuses a folder that is not ours before anything is written into it
    directory.mkdir(parents=True, exist_ok=True)
    tell(f"waiting for another `sdrs up` or `down` in {directory}")
    with folder_lock(directory, START_SECONDS):
        known = read_layout(directory)
        running = find_processes(directory)
        layout = decide_layout(known, wish, is_running=bool(running), is_free=port_is_free)
        _check_ports(layout, {process.name for process in running})
        if layout.etcd is not None and local_processes.find_etcd() is None:
            raise local_processes.no_etcd()
        if known is not None and known.etcd is None and layout.etcd is not None:
            # The marker says SQLite until the catalog is moved: what is there of etcd is of a move that failed.
            purge_etcd_parts(directory)
        else:
            write_layout(directory, layout)
        outcome = _launch(directory, layout, wish, running, tell)
        if any(process.name == SCHEDULER for process in running):
            outcome = replace(outcome, has_scheduler=True)
        elif wish.scheduler and not outcome.halted:
            outcome = _with_scheduler(outcome, layout, tell)
        write_pointer(Pointer(layout.url, directory))
    return outcome


def _launch(directory: Path, layout: Layout, wish: Wish, running: Iterable[Process], tell: Tell) -> UpOutcome:
    etcds, nodes = etcd_daemons(directory, layout), node_daemons(directory, layout)
    controllers = controller_daemons(directory, layout)
    with Launch(running, tell) as launch:
        if etcds:
            launch.start(etcds)
            launch.wait(lambda: pending_etcds(etcds, layout))
        launch.start(controllers)
        file = wish.import_file
        if file is not None:
            # Before the nodes: they belong to the cluster in the file, not to the new one that the controllers made.
            launch.wait(lambda: pending_controllers(controllers, layout))
            tell(f"importing {file}")
            imported = _asked(layout.url, lambda cluster: cluster.import_meta(file))
            # The controller starts anew on it; until then it may still answer for the cluster that it was.
            launch.wait(lambda: pending_controllers(controllers, layout, imported.cluster_id))
            write_layout(directory, layout)
        launch.start(nodes)
        launch.wait(lambda: pending_controllers(controllers, layout))
        halted = launch.ask(layout.url, lambda cluster: halted_because(cluster, nodes))
        pool = None
        if not halted:
            launch.wait(lambda: pending_nodes(layout.url, launch.pids(nodes)))
            pool = launch.ask(layout.url, lambda cluster: _default_pool(cluster, len(nodes)))
        store = "sqlite" if layout.etcd is None else "etcd"
        return UpOutcome(layout.url, directory, launch.started, len(nodes), store, pool, halted)


def _with_scheduler(outcome: UpOutcome, layout: Layout, tell: Tell) -> UpOutcome:
    """Last, and apart from the others: without it checkpoints are as safe."""
    missing = local_processes.missing_scheduler_modules()
    if missing:
        return replace(outcome, no_scheduler=f"it needs {', '.join(missing)}: pip install 'sdrs[server]'")
    failure = start_scheduler(scheduler_daemon(outcome.dir, layout), tell)
    if failure:
        return replace(outcome, no_scheduler=failure)
    return replace(outcome, started=(*outcome.started, SCHEDULER), has_scheduler=True)


def _asked(url: str, question: Callable[[Cluster], T]) -> T:
    """The answer of a cluster that works, asked for once."""
    import sdrs

    with sdrs.connect(url) as cluster:
        return question(cluster)


def _default_pool(cluster: Cluster, node_count: int) -> Pool | None:
    """Made here at the highest level that the nodes allow, if there are no pools at all; never changed later."""
    pools = cluster.pools()
    if not pools:
        if node_count >= DEFAULT_CODE.total:
            pools = [cluster.create_pool(DEFAULT_POOL, Level.L3, ec=str(DEFAULT_CODE))]
        else:
            pools = [cluster.create_pool(DEFAULT_POOL, Level.L2 if node_count >= 2 else Level.L1)]
    return next((info.pool for info in pools if info.pool.name == DEFAULT_POOL), None)


def decide_layout(known: Layout | None, wish: Wish, *, is_running: bool, is_free: Callable[[int], bool]) -> Layout:
    """The layout to run with. Nodes that exist stay; ports move only while nothing runs, the store only by import."""
    if known is None:
        port = DEFAULT_PORT if wish.port is None else wish.port or free_port()
        etcd = _etcd_ports(is_free, port) if wish.etcd else None
        return Layout(port, (), etcd).grown(wish.node_count or DEFAULT_NODE_COUNT, wish.disks_per_node)
    port = wish.port or known.port
    if is_running and port != known.port:
        raise RefusedError(
            f"this cluster is running on port {known.port}: stop it first to move it to port {port} (`sdrs down`)",
            port=known.port,
        )
    if wish.port == 0 and not is_running and not is_free(known.port):
        port = free_port()
    etcd = known.etcd
    if wish.etcd and etcd is None:
        if wish.import_file is None or is_running:
            raise RefusedError(
                "this cluster keeps its catalog in SQLite. To move it to etcd: `sdrs meta export FILE`, `sdrs down`, "
                "`sdrs up --etcd --import FILE`; or make a new cluster with another --dir"
            )
        etcd = _etcd_ports(is_free, port)
    return replace(known, port=port, etcd=etcd).grown(wish.node_count or 0, wish.disks_per_node)


def _etcd_ports(is_free: Callable[[int], bool], taken: int) -> EtcdPorts:
    shuffled = random.sample(_ETCD_PORTS, len(_ETCD_PORTS))
    free = (port for port in shuffled if port != taken and is_free(port))
    ports = [port for port, _ in zip(free, range(1 + 2 * ETCD_COUNT), strict=False)]
    if len(ports) < 1 + 2 * ETCD_COUNT:
        raise RefusedError(f"no free ports are left from {_ETCD_PORTS.start} to {_ETCD_PORTS.stop} for etcd")
    return EtcdPorts(ports[0], tuple(ports[1 : 1 + ETCD_COUNT]), tuple(ports[1 + ETCD_COUNT :]))


def _check_ports(layout: Layout, running: set[str]) -> None:
    """Those of daemons that are about to be started must be free."""
    if layout.etcd is None:
        ports = {layout.port: "controller"}
    else:
        ports = {layout.port: "controller-1", layout.etcd.standby: "controller-2"}
        for taken in (layout.etcd.clients, layout.etcd.peers):
            ports |= {port: f"etcd-{number}" for number, port in enumerate(taken, start=1)}
    for port, name in ports.items():
        if name not in running and not port_is_free(port):
            raise _port_taken(port, is_controllers=port == layout.port)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Ports of connections that were closed a moment ago count as free, those that are listened on do not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def _port_taken(port: int, *, is_controllers: bool) -> SdrsError:
    advice = (
        "choose another with --port, or --port 0 for any free one"
        if is_controllers
        else "end what uses it, the cluster cannot move to another"
    )
    return AlreadyExistsError(
        f"port {port} on {HOST} is taken by another program, or by a cluster in another folder: {advice}", port=port
    )
