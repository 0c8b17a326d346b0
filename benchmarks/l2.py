"""L2: two fsynced copies on two nodes, against writing both copies raw at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.l1 import saver
from benchmarks.processes import AS_DEPLOYED, STAGED
from benchmarks.results import Result, alternate
from tests.support.cluster import running_cluster

GIB = raw.GIB
ROUNDS = 5


def _write_both(folder: Path, arrays: list[np.ndarray]) -> float:
    """Seconds until both copies are durable, each written by a thread of its own."""
    start = time.perf_counter()
    writers = [threading.Thread(target=raw.write_and_sync, args=(folder / f"raw-{n}", arrays)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return time.perf_counter() - start


def l2_save(folder: Path) -> Iterator[Result]:
    """Save of a 1 GiB state until two copies are durable and it is committed."""
    arrays = raw.arrays_of(GIB, 16)
    state = {f"layer{index}": array for index, array in enumerate(arrays)}
    with (
        running_cluster(folder, node_count=2, controller=AS_DEPLOYED, node=STAGED) as cluster,
        cluster.connect() as client,
    ):
        client.create_pool("fast", "L2", mirrors=2)
        save, cpu = saver(cluster, client.checkpoints("bench", pool="fast"), state, "L2")
        save()
        ours, theirs = alternate(ROUNDS, save, lambda: _write_both(folder, arrays))
    yield Result("l2_save", GIB / ours / 1e9, "GB/s", "raw write+fsync of both copies", theirs / ours)
    yield Result("l2_save_cpu", sorted(cpu)[len(cpu) // 2], "CPU s/GiB", "client and daemons together")
