"""A cluster on this machine: brought up, and taken down again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdrs.cli import local_processes
from sdrs.cli.local_layout import (
    DEFAULT_NODE_COUNT,
    DEFAULT_PORT,
    HOST,
    Daemon,
    Layout,
    controller_daemon,
    folder_lock,
    is_ours,
    node_daemons,
    purge,
    read_layout,
    write_layout,
)
from sdrs.cli.local_processes import Process, Started, find_processes
from sdrs.cli.pointer import Pointer, remove_pointer, write_pointer
from sdrs_core.cluster import NodeState
from sdrs_core.errors import AlreadyExistsError, DeadlineExceededError, RefusedError, SdrsError, UnavailableError

START_SECONDS = 30.0
DRAIN_SECONDS = 15.0
# For daemons that never served: there is nothing to drain.
_ABANDON_SECONDS = 3.0
_POLL_SECONDS = 0.05
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for; None leaves it as it is, or to the default."""

    node_count: int | None = None
    port: int | None = None
    disks_per_node: int = 1


@dataclass(frozen=True, slots=True)
class UpOutcome:
    url: str
    dir: Path
    started: tuple[str, ...]
    node_count: int


@dataclass(frozen=True, slots=True)
class DownOutcome:
    dir: Path
    stopped: tuple[str, ...]
    killed: tuple[str, ...]
    purged: bool = False
    left: tuple[Path, ...] = ()


def bring_up(directory: Path, wish: Wish, tell: Callable[[str], None]) -> UpOutcome:
    """Start what is missing, wait until all of it works, and leave the pointer. ``tell`` hears what is waited for."""
    missing = local_processes.missing_modules()
    if missing:
        raise SdrsError(f"the daemon needs {', '.join(missing)}, not installed here: pip install 'sdrs[server]'")
    read_layout(directory)  # refuses a folder that is not ours before anything is written into it
    directory.mkdir(parents=True, exist_ok=True)
    tell(f"waiting for another `sdrs up` or `down` in {directory}")
    with folder_lock(directory, START_SECONDS):
        known = read_layout(directory)
        running = {process.name: process for process in find_processes(directory)}
        layout = decide_layout(known, wish, is_running=bool(running), is_free=port_is_free)
        controller, nodes = controller_daemon(directory, layout.port), node_daemons(directory, layout)
        if controller.name not in running and not port_is_free(layout.port):
            raise _port_taken(layout.port)
        write_layout(directory, layout)
        missing_daemons = [daemon for daemon in [controller, *nodes] if daemon.name not in running]
        url = f"sdrs://{HOST}:{layout.port}"
        _start(missing_daemons, nodes, running, url, tell)
        write_pointer(Pointer(url, directory))
    return UpOutcome(url, directory, tuple(daemon.name for daemon in missing_daemons), len(nodes))


def decide_layout(known: Layout | None, wish: Wish, *, is_running: bool, is_free: Callable[[int], bool]) -> Layout:
    """The layout to run with. Nodes that exist stay; the port moves only while nothing runs."""
    if known is None:
        port = DEFAULT_PORT if wish.port is None else wish.port or free_port()
        return Layout(port, ()).grown(wish.node_count or DEFAULT_NODE_COUNT, wish.disks_per_node)
    port = wish.port or known.port
    if is_running and port != known.port:
        raise RefusedError(
            f"this cluster is running on port {known.port}: stop it first to move it to port {port} (`sdrs down`)",
            port=known.port,
        )
    if wish.port == 0 and not is_running and not is_free(known.port):
        port = free_port()
    return Layout(port, known.disk_counts).grown(wish.node_count or 0, wish.disks_per_node)


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


def _port_taken(port: int) -> SdrsError:
    return AlreadyExistsError(
        f"port {port} on {HOST} is taken by another program, or by a cluster in another folder: "
        "choose another with --port, or --port 0 for any free one",
        port=port,
    )


def _start(
    daemons: list[Daemon], nodes: list[Daemon], running: dict[str, Process], url: str, tell: Callable[[str], None]
) -> None:
    started: list[Started] = []
    try:
        for daemon in daemons:
            tell(f"starting {daemon.name}")
            started.append(local_processes.start(daemon))
        pids = {process.name: process.pid for process in [*running.values(), *(one.process for one in started)]}
        _wait_until_ready(started, {node.name: pids[node.name] for node in nodes}, url, tell)
    except BaseException:
        # Half a cluster that nobody asked for must not stay behind; what ran before goes on.
        tell("stopping what was started")
        local_processes.stop([one.process for one in started], _ABANDON_SECONDS)
        raise


def _wait_until_ready(started: list[Started], node_pids: dict[str, int], url: str, tell: Callable[[str], None]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        for one in started:
            code = one.child.poll()
            if code is not None:
                raise _not_ready(f"{one.daemon.name} ended while it was starting (exit code {code}).", one)
        pending = _missing(url, node_pids)
        if not pending:
            return
        tell(f"waiting for {', '.join(pending)}")
        if time.monotonic() > deadline:
            message = f"{pending[0]} did not come up within {START_SECONDS:.0f} s."
            blamed = next((one for one in started if one.daemon.name == pending[0]), None)
            if blamed is None:
                raise SdrsError(f"{message} It was running before: stop all with `sdrs down`, then try again")
            raise _not_ready(message, blamed)
        time.sleep(_POLL_SECONDS)


def _not_ready(message: str, one: Started) -> SdrsError:
    return SdrsError(
        f"{message}\nThe last lines of its log, {one.daemon.log}:\n{one.log_tail(_TAIL_LINES)}", daemon=one.daemon.name
    )


def _missing(url: str, node_pids: dict[str, int]) -> list[str]:
    """Who is not up yet, as the controller sees it."""
    import sdrs

    try:
        with sdrs.connect(url) as cluster:
            nodes = cluster.nodes()
    except (UnavailableError, DeadlineExceededError):
        return ["controller"]
    # The pid tells a node that was just started from its forerunner, which may still count as up.
    up = {str(node.id) for node in nodes if node.state is NodeState.UP and node.pid == node_pids.get(node.id)}
    return [name for name in node_pids if name not in up]


def take_down(directory: Path, *, delete_data: bool) -> DownOutcome:
    """Stop what runs: nodes first, so that what they finish can still be recorded by the controller."""
    if delete_data:
        read_layout(directory)  # refuses a folder that is not ours before anything in it is touched
    if not is_ours(directory) and not find_processes(directory):
        return DownOutcome(directory, (), ())
    directory.mkdir(parents=True, exist_ok=True)  # removed under running daemons: they are to be stopped all the same
    with folder_lock(directory, START_SECONDS):
        running = find_processes(directory)
        nodes = [process for process in running if process.name != "controller"]
        controllers = [process for process in running if process.name == "controller"]
        killed = local_processes.stop(nodes, DRAIN_SECONDS) + local_processes.stop(controllers, DRAIN_SECONDS)
        remove_pointer(directory)
        layout = read_layout(directory) if delete_data else None
        left = purge(directory, layout) if layout is not None else []
    return DownOutcome(
        directory,
        stopped=tuple(process.name for process in running),
        killed=tuple(process.name for process in killed),
        purged=layout is not None,
        left=tuple(left),
    )
