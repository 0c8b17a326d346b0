"""Starting the daemons of a cluster on this machine, and waiting until they work."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from sdrs.address import listens
from sdrs.cli import local_processes
from sdrs.cli.local_daemons import Daemon
from sdrs.cli.local_layout import HOST, Layout
from sdrs.cli.local_processes import Process, Started
from sdrs_core.cluster import NodeState
from sdrs_core.errors import DeadlineExceededError, SdrsError, UnavailableError

if TYPE_CHECKING:
    from sdrs import Cluster

START_SECONDS = 30.0
# For daemons that never served: there is nothing to drain.
_ABANDON_SECONDS = 3.0
_POLL_SECONDS = 0.05
_PROBE_SECONDS = 1.0
_TAIL_LINES = 15
# Until it has begun, or failed to: it is not needed to go on.
_SCHEDULER_SECONDS = 10.0
_RUN_FILE = "run.json"

T = TypeVar("T")
Tell = Callable[[str], None]


class Launch:
    """What one `sdrs up` starts, in order. If it fails on the way, all of that is stopped again.

    Half a cluster that nobody asked for must not stay behind; what ran before goes on.
    """

    def __init__(self, running: Iterable[Process], tell: Tell) -> None:
        self._pids = {process.name: process.pid for process in running}
        self._started: list[Started] = []
        self._tell = tell

    @property
    def started(self) -> tuple[str, ...]:
        return tuple(one.daemon.name for one in self._started)

    def pids(self, daemons: Sequence[Daemon]) -> dict[str, int]:
        return {daemon.name: self._pids[daemon.name] for daemon in daemons}

    def start(self, daemons: Sequence[Daemon]) -> None:
        for daemon in daemons:
            if daemon.name not in self._pids:
                self._tell(f"starting {daemon.name}")
                one = local_processes.start(daemon)
                self._started.append(one)
                self._pids[daemon.name] = one.child.pid

    def wait(self, find_pending: Callable[[], list[str]]) -> None:
        """Until nobody is pending: ``find_pending`` names who does not work yet."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            for one in self._started:
                code = one.child.poll()
                if code is not None:
                    raise _not_ready(f"{one.daemon.name} ended while it was starting (exit code {code}).", one)
            pending = find_pending()
            if not pending:
                return
            self._tell(f"waiting for {', '.join(pending)}")
            if time.monotonic() > deadline:
                message = f"{pending[0]} did not come up within {START_SECONDS:.0f} s."
                blamed = next((one for one in self._started if one.daemon.name == pending[0]), None)
                if blamed is None:
                    raise SdrsError(f"{message} It was running before: stop all with `sdrs down`, then try again")
                raise _not_ready(message, blamed)
            time.sleep(_POLL_SECONDS)

    def ask(self, url: str, question: Callable[[Cluster], T]) -> T:
        """The answer of the cluster; a controller that is being replaced by another is waited for."""
        answers: list[T] = []

        def find_pending() -> list[str]:
            _ask(url, lambda cluster: answers.append(question(cluster)))
            return [] if answers else ["an active controller"]

        self.wait(find_pending)
        return answers[0]

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._tell("stopping what was started")
            # Those that lean on others were started after them, and go first.
            local_processes.stop([one.process for one in reversed(self._started)], _ABANDON_SECONDS)


def _not_ready(message: str, one: Started) -> SdrsError:
    return SdrsError(
        f"{message}\nThe last lines of its log, {one.daemon.log}:\n{one.log_tail(_TAIL_LINES)}", daemon=one.daemon.name
    )


def start_scheduler(scheduler: Daemon, tell: Tell) -> str:
    """What went wrong; empty: it works, or is about to. The cluster does not depend on it, so it is never undone."""
    tell("starting the scheduler")
    (scheduler.data_dir / _RUN_FILE).unlink(missing_ok=True)
    one = local_processes.start(scheduler)
    deadline = time.monotonic() + _SCHEDULER_SECONDS
    while time.monotonic() < deadline:
        code = one.child.poll()
        if code is not None:
            return _not_ready(f"the scheduler ended while it was starting (exit code {code}).", one).message
        if (scheduler.data_dir / _RUN_FILE).exists():
            break
        time.sleep(_POLL_SECONDS)
    return ""


def pending_etcds(etcds: Sequence[Daemon], layout: Layout) -> list[str]:
    """Those that know no leader yet."""
    ports = layout.etcd.clients if layout.etcd is not None else ()
    return [daemon.name for daemon, port in zip(etcds, ports, strict=True) if not _etcd_is_healthy(port)]


def _etcd_is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read())["health"] == "true")
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False
    finally:
        connection.close()


def pending_controllers(controllers: Sequence[Daemon], layout: Layout, cluster_id: str = "") -> list[str]:
    """Those that do not listen; and all, while none of them is the active one, of ``cluster_id`` if that is given."""
    silent = [
        daemon.name
        for daemon, address in zip(controllers, layout.controller_addresses, strict=True)
        if not listens(address)
    ]
    if silent:
        return silent
    is_active = _ask(layout.url, lambda cluster: cluster_id in ("", cluster.id))
    return [] if is_active else [daemon.name for daemon in controllers]


def pending_nodes(url: str, node_pids: dict[str, int]) -> list[str]:
    """Who is not up yet, as the active controller sees it."""

    def find(cluster: Cluster) -> list[str]:
        # The pid tells a node that was just started from its forerunner, which may still count as up.
        up = {n.id for n in cluster.nodes() if n.state is NodeState.UP and n.pid == node_pids.get(n.id)}
        return [name for name in node_pids if name not in up]

    found = _ask(url, find)
    return list(node_pids) if found is None else found


def _ask(url: str, question: Callable[[Cluster], T]) -> T | None:
    """The answer of the cluster; None if no controller is active now."""
    import sdrs

    try:
        with sdrs.connect(url, timeout_seconds=_PROBE_SECONDS) as cluster:
            return question(cluster)
    except (UnavailableError, DeadlineExceededError):
        return None


def halted_because(cluster: Cluster, nodes: Sequence[Daemon]) -> str:
    """Why the nodes will not join, or nothing may be changed, until an operator has acted; empty: nothing of the kind.

    It is no failure of `up`: what the operator does next needs the daemons running.
    """
    info = cluster.info()
    if info.frozen_because:
        return (
            f"{info.frozen_because}. After `sdrs meta export FILE` that is: `sdrs down`, then `sdrs up --etcd --import "
            "FILE`"
        )
    for daemon in nodes:
        theirs = _cluster_of(daemon)
        if theirs and theirs != info.id:
            return (
                f"{daemon.name} belongs to cluster {theirs}, but the controller's catalog is another, new one "
                f"({info.id}): if the old catalog is lost for good, `sdrs meta rebuild` brings it back from the nodes"
            )
    return ""


def _cluster_of(daemon: Daemon) -> str:
    try:
        return str(json.loads((daemon.data_dir / "node.json").read_text(encoding="utf-8"))["cluster_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # a new one, or one whose own log will say what is wrong
