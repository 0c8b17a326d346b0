"""L1: one fsynced copy on one node, against writing and reading the same bytes raw."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED, STAGED, cpu_seconds, watching
from benchmarks.results import Result, alternate
from sdrs import Checkpoints
from tests.support.cluster import LocalCluster, running_cluster

GIB = raw.GIB
ROUNDS = 5


def pids_of(cluster: LocalCluster) -> list[int]:
    return [os.getpid(), *(daemon.pid for daemon in [cluster.controller, *cluster.nodes])]


def saver(
    cluster: LocalCluster, ckpts: Checkpoints, state: dict[str, np.ndarray], level: str
) -> tuple[Callable[[], float], list[float]]:
    """What saves ``state`` and returns the seconds until it is at ``level``; and the CPU seconds of each save."""
    steps = itertools.count()
    cpu: list[float] = []

    def save() -> float:
        step = next(steps)
        raw.change(state.values(), step)
        before = cpu_seconds(pids_of(cluster))
        start = time.perf_counter()
        ckpts.save(step=step, state=state).wait(level)
        elapsed = time.perf_counter() - start
        cpu.append(cpu_seconds(pids_of(cluster)) - before)
        return elapsed

    return save, cpu


def l1_save(folder: Path) -> Iterator[Result]:
    """Save-to-durable of a 1 GiB state."""
    arrays = raw.arrays_of(GIB, 16)
    state = {f"layer{index}": array for index, array in enumerate(arrays)}
    with (
        running_cluster(folder, node_count=1, controller=AS_DEPLOYED, node=STAGED) as cluster,
        cluster.connect() as client,
    ):
        save, cpu = saver(cluster, client.checkpoints("bench"), state, "L1")
        save()
        ours, theirs = alternate(ROUNDS, save, lambda: raw.write_and_sync(folder / "raw", arrays))
    yield Result("l1_save", GIB / ours / 1e9, "GB/s", "raw write+fsync of the same bytes", theirs / ours)
    yield Result("l1_save_cpu", sorted(cpu)[len(cpu) // 2], "CPU s/GiB", "client and daemons together")


def l1_restore(folder: Path) -> Iterator[Result]:
    """Restore of a 1 GiB state, nothing of it cached."""
    arrays = raw.arrays_of(GIB, 16)
    with running_cluster(folder, node_count=1, controller=AS_DEPLOYED) as cluster, cluster.connect() as client:
        ckpts = client.checkpoints("bench")
        ckpts.save(step=1, state={f"layer{index}": array for index, array in enumerate(arrays)}).wait("L1")
        raw.write_and_sync(folder / "raw", arrays)
        restored: list[dict[str, np.ndarray]] = []
        cpu: list[float] = []

        def restore() -> float:
            restored.clear()
            for fragment in cluster.fragments():
                raw.forget(fragment)
            raw.warm_memory(GIB)
            before = cpu_seconds(pids_of(cluster))
            start = time.perf_counter()
            restored.append(ckpts.restore())
            elapsed = time.perf_counter() - start
            cpu.append(cpu_seconds(pids_of(cluster)) - before)
            return elapsed

        ours, theirs = alternate(ROUNDS, restore, lambda: raw.read_and_hash(folder / "raw"))
        for index, array in enumerate(arrays):
            assert np.array_equal(restored[0][f"layer{index}"].view(np.uint8), array.view(np.uint8))
    yield Result("l1_restore", GIB / ours / 1e9, "GB/s", "raw read+hash of the same bytes", theirs / ours)
    yield Result("l1_restore_cpu", sorted(cpu)[len(cpu) // 2], "CPU s/GiB", "client and daemons together")


def rss_bytes(folder: Path) -> Iterator[Result]:
    """How much a single blob of 4 GiB moves the daemon's and the client's resident memory."""
    state = {"blob": np.ones(4 * GIB // 8)}
    with running_cluster(folder, node_count=1, controller=AS_DEPLOYED) as cluster, cluster.connect() as client:
        ckpts = client.checkpoints("bench")
        ckpts.save(step=0, state={"small": np.ones(1 << 20)}).wait()
        node, own = cluster.nodes[0].pid, os.getpid()
        with watching(node, own) as (node_peak, own_peak):
            ckpts.save(step=1, state=state).wait()
        yield Result("rss_bytes", node_peak.grown_bytes, "bytes", "256 MiB", node_peak.grown_bytes / (256 << 20))
        yield Result(
            "rss_client_bytes", own_peak.grown_bytes, "bytes", "the state's 4 GiB", own_peak.grown_bytes / (4 * GIB)
        )
        del state
        with watching(node) as (node_peak,):
            ckpts.restore(step=1)
        yield Result(
            "rss_restore_bytes", node_peak.grown_bytes, "bytes", "256 MiB", node_peak.grown_bytes / (256 << 20)
        )
