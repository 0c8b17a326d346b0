"""L3: a 4+2 state read from four of six nodes, against reading and hashing the same bytes raw."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED, cpu_seconds
from benchmarks.results import Result, alternate
from sdrs import Checkpoints
from tests.support.cluster import LocalCluster, running_cluster

GIB = raw.GIB
ROUNDS = 5
DATA, PARITY = 4, 2
# Repair would read the same disks, and bring the lost fragments back.
_NO_REPAIR = {"repair_after_seconds": 3600, "repair_last_copy_after_seconds": 3600}


def _restorer(
    cluster: LocalCluster, ckpts: Checkpoints, arrays: list[np.ndarray]
) -> tuple[Callable[[], float], list[float]]:
    """What restores the newest state, nothing of it cached, and returns the seconds; and the CPU seconds of each."""
    cpu: list[float] = []

    def restore() -> float:
        for fragment in cluster.fragments():
            raw.forget(fragment)
        raw.warm_memory(GIB)
        daemons = [cluster.controller, *cluster.nodes]
        pids = [os.getpid(), *(daemon.pid for daemon in daemons if daemon.process and daemon.process.poll() is None)]
        before = cpu_seconds(pids)
        start = time.perf_counter()
        state = ckpts.restore()
        elapsed = time.perf_counter() - start
        cpu.append(cpu_seconds(pids) - before)
        for index, array in enumerate(arrays):
            assert np.array_equal(state[f"layer{index}"].view(np.uint8), array.view(np.uint8))
        return elapsed

    return restore, cpu


def l3_restore(folder: Path) -> Iterator[Result]:
    """Restore of a 1 GiB state, nothing of it cached: with all nodes, and with two of them killed."""
    arrays = raw.arrays_of(GIB, 16)
    settings = {**AS_DEPLOYED, **_NO_REPAIR}
    nodes = DATA + PARITY
    with running_cluster(folder, node_count=nodes, controller=settings) as cluster, cluster.connect() as client:
        client.create_pool("prod", "L3", ec=f"{DATA}+{PARITY}")
        ckpts = client.checkpoints("bench", pool="prod")
        ckpts.save(step=1, state={f"layer{index}": array for index, array in enumerate(arrays)}).wait("L3")
        raw.write_and_sync(folder / "raw", arrays)
        for name, killed in (("l3_restore", 0), ("l3_restore_degraded", PARITY)):
            for daemon in cluster.nodes[:killed]:
                daemon.kill()
            restore, cpu = _restorer(cluster, ckpts, arrays)
            restore()
            ours, theirs = alternate(ROUNDS, restore, lambda: raw.read_and_hash(folder / "raw"))
            yield Result(name, GIB / ours / 1e9, "GB/s", "raw read+hash of the same bytes", theirs / ours)
            yield Result(f"{name}_cpu", sorted(cpu)[len(cpu) // 2], "CPU s/GiB", "client and daemons together")
