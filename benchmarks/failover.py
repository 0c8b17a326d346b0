"""How long a save and a restore take when the primary has just died, or has just been frozen.

From the kill to the end of the first save, and of the first restore, that began after it. Both begin at once, each in a
thread of its own; the node is then brought back, and the next kill waits until the cluster is whole again.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import sdrs
from benchmarks.processes import AS_DEPLOYED
from benchmarks.results import Result
from tests.support.cluster import DaemonProcess, LocalCluster, running_cluster
from tests.support.states import MIB, make_state, same
from tests.support.waiting import wait_for

KILLS = 20
FREEZES = 10
STATE_BYTES = 4 * MIB
WHOLE_SECONDS = 60.0


def failover(folder: Path) -> Iterator[Result]:
    with (
        running_cluster(folder, node_count=4, controller=AS_DEPLOYED) as cluster,
        cluster.connect() as client,
        cluster.connect(staging_bytes=0) as cold,  # reads from disks what a daemon of this host still has in memory
    ):
        client.create_pool("fast", "L2", mirrors=2)
        trial = _Trial(cluster, client, cold)
        killed = [trial.strike(DaemonProcess.kill, DaemonProcess.start) for _ in range(KILLS)]
        frozen = [trial.strike(DaemonProcess.freeze, DaemonProcess.thaw) for _ in range(FREEZES)]
    yield from _figures("killed", killed)
    yield from _figures("frozen", frozen)
    yield Result("failover_failed_calls", trial.failed_count, "saves and restores", f"{KILLS + FREEZES} faults")


def _figures(what: str, times: list[tuple[float, float]]) -> Iterator[Result]:
    for name, seconds in zip(("save", "restore"), zip(*times, strict=True), strict=True):
        yield Result(f"failover_{what}_{name}_p50", statistics.median(seconds), "s", f"median of {len(seconds)}")
        yield Result(f"failover_{what}_{name}_p99", max(seconds), "s", f"longest of {len(seconds)}")


class _Trial:
    def __init__(self, cluster: LocalCluster, client: sdrs.Cluster, cold: sdrs.Cluster) -> None:
        self._cluster = cluster
        self._client = client
        self._ckpts = client.checkpoints("bench", pool="fast")
        self._cold = cold.checkpoints("bench", pool="fast")
        self._steps = itertools.count(1)
        self._daemons = {daemon.name: daemon for daemon in cluster.nodes}
        self.failed_count = 0
        self._save()

    def _save(self) -> None:
        step = next(self._steps)
        self._ckpts.save(step=step, state=make_state(step, STATE_BYTES)).wait("L2")

    def _restore(self) -> None:
        state = self._cold.restore()
        assert same(state, make_state(state["seed"], STATE_BYTES))

    def strike(
        self, fault: Callable[[DaemonProcess], None], undo: Callable[[DaemonProcess], None]
    ) -> tuple[float, float]:
        """Seconds to the next save and to the next restore."""
        wait_for(self._is_whole, "the cluster to be whole", WHOLE_SECONDS)
        self._save()
        # Ranks of this host are sent to the first group: its primary is hit.
        victim = self._daemons[self._client.pool("fast").groups[0].primary]
        took: dict[str, float] = {}

        def measure(name: str, work: Callable[[], None]) -> None:
            try:
                work()
            except sdrs.SdrsError as error:
                self.failed_count += 1
                print(f"{name} failed: {error}")
            took[name] = time.monotonic() - struck

        struck = time.monotonic()
        fault(victim)
        threads = [
            threading.Thread(target=measure, args=("save", self._save)),
            threading.Thread(target=measure, args=("restore", self._restore)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        undo(victim)
        return took["save"], took["restore"]

    def _is_whole(self) -> bool:
        nodes_up = all(node.state == "up" for node in self._client.nodes())
        return nodes_up and not any(group.problem for group in self._client.pool("fast").groups)
