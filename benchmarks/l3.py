"""L3: a state cut into 4+2 fragments over six nodes, against writing as many bytes raw into six files at once."""

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
DATA, PARITY = 4, 2


def _write_fragments(folder: Path, arrays: list[np.ndarray]) -> float:
    """Seconds until as many bytes as all fragments have are durable, each file written by a thread of its own."""
    share = len(arrays) // DATA
    parts = [arrays[(index % DATA) * share :][:share] for index in range(DATA + PARITY)]
    start = time.perf_counter()
    writers = [
        threading.Thread(target=raw.write_and_sync, args=(folder / f"raw-{index}", part))
        for index, part in enumerate(parts)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return time.perf_counter() - start


def l3_save(folder: Path) -> Iterator[Result]:
    """Save of a 1 GiB state until all of its fragments are durable and it is committed."""
    arrays = raw.arrays_of(GIB, 16)
    state = {f"layer{index}": array for index, array in enumerate(arrays)}
    nodes = DATA + PARITY
    with (
        running_cluster(folder, node_count=nodes, controller=AS_DEPLOYED, node=STAGED) as cluster,
        cluster.connect() as client,
    ):
        client.create_pool("prod", "L3", ec=f"{DATA}+{PARITY}")
        save, cpu = saver(cluster, client.checkpoints("bench", pool="prod"), state, "L3")
        save()
        ours, theirs = alternate(ROUNDS, save, lambda: _write_fragments(folder, arrays))
    yield Result("l3_save", GIB / ours / 1e9, "GB/s", "raw write+fsync of 1.5x the bytes in 6 files", theirs / ours)
    yield Result("l3_save_cpu", sorted(cpu)[len(cpu) // 2], "CPU s/GiB", "client and daemons together")
