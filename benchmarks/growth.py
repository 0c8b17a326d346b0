"""How costs grow when the same bytes are cut finer: over 1 to 64 ranks, and into 1 to 100,000 tensors.

What comes with each rank or tensor, beyond its bytes, is what makes these curves rise.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import raw
from benchmarks.l1 import pids_of
from benchmarks.processes import AS_DEPLOYED, STAGED, cpu_seconds
from benchmarks.rank import running_ranks
from benchmarks.results import Result, alternate
from benchmarks.torch_contenders import TorchSave
from sdrs import Checkpoints
from tests.support.cluster import LocalCluster, running_cluster

RANKS = (1, 4, 16, 64)
TENSORS = (1, 10, 100, 1_000, 10_000, 100_000)
TOTAL_BYTES = 256 << 20
ROUNDS = 3
POOL = "mirrored"


@contextmanager
def _cluster(folder: Path) -> Iterator[LocalCluster]:
    """Two copies of everything, over three nodes."""
    with running_cluster(folder, node_count=3, controller=AS_DEPLOYED, node=STAGED) as cluster:
        with cluster.connect() as client:
            client.create_pool(POOL, "L2", mirrors=2)
        yield cluster


class Costs:
    """Counts the processor time of ``pids`` beside the seconds that a work measures itself."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._cpu_seconds: dict[str, list[float]] = {}

    def of(self, name: str, work: Callable[[], float]) -> float:
        before = cpu_seconds(self._pids)
        seconds = work()
        self._cpu_seconds.setdefault(name, []).append(cpu_seconds(self._pids) - before)
        return seconds

    def result(self, name: str, figure: str) -> Result:
        return Result(figure, statistics.median(self._cpu_seconds[name]), "CPU s", "clients and daemons together")


def growth_ranks(
    folder: Path, *, total_bytes: int = TOTAL_BYTES, counts: tuple[int, ...] = RANKS, rounds: int = ROUNDS
) -> Iterator[Result]:
    """One checkpoint of N ranks, each a process, from the order to save until all have seen the commit."""
    arrays = raw.arrays_of(total_bytes, 16)
    raw_file = folder / "raw"
    with _cluster(folder) as cluster:
        for count in counts:
            with running_ranks(cluster.url, POOL, f"ranks-{count}", count, total_bytes // count) as ranks:
                costs = Costs([*pids_of(cluster), *ranks.pids])
                steps = itertools.count(1)
                ranks.save(next(steps))  # warm

                def save(ranks: Any = ranks, costs: Costs = costs, steps: Iterator[int] = steps) -> float:
                    return costs.of("save", lambda: ranks.save(next(steps)))

                def restore(ranks: Any = ranks, costs: Costs = costs) -> float:
                    _forget(cluster)
                    raw.warm_memory(total_bytes)
                    return costs.of("restore", lambda: ranks.restore(1))

                saved, write, restored, read = alternate(
                    rounds,
                    save,
                    lambda: raw.write_and_sync(raw_file, arrays),
                    restore,
                    lambda: raw.read_and_hash(raw_file),
                )
            name = f"growth_ranks_{count}"
            yield Result(f"{name}_save", saved, "s", "raw write+fsync of the same bytes", saved / write)
            yield costs.result("save", f"{name}_save_cpu")
            yield Result(f"{name}_restore", restored, "s", "raw read+hash of the same bytes", restored / read)
            yield costs.result("restore", f"{name}_restore_cpu")


def growth_tensors(
    folder: Path, *, total_bytes: int = TOTAL_BYTES, counts: tuple[int, ...] = TENSORS, rounds: int = ROUNDS
) -> Iterator[Result]:
    """One state of N tensors: the stall of save, until it is committed, and a restore; against torch.save and load."""
    # Beside the tensors, their names and shapes are staged.
    staging_bytes = 2 * total_bytes + (64 << 20)
    with (
        _cluster(folder) as cluster,
        cluster.connect(staging_bytes=staging_bytes) as client,
        cluster.connect(staging_bytes=0) as cold,  # reads from disks what the daemon of this host still has in memory
    ):
        for count in counts:
            state = _state(total_bytes, count)
            warm, reader = (one.checkpoints(f"tensors-{count}", pool=POOL) for one in (client, cold))
            saver = _TensorSaver(cluster, warm, reader, state)
            torch_save = TorchSave(folder, state)
            saver.save()  # warm
            saver.stalls.clear()

            def torch_restore(torch_save: TorchSave = torch_save) -> float:
                torch_save.forget()
                raw.warm_memory(total_bytes)
                return _seconds(torch_save.restore)

            saved, theirs, restored, loaded = alternate(
                rounds,
                lambda saver=saver: saver.costs.of("save", saver.save),
                lambda torch_save=torch_save: torch_save.save().stored_seconds,
                saver.restore,
                torch_restore,
            )
            saver.check()
            name = f"growth_tensors_{count}"
            stall = statistics.median(saver.stalls)
            yield Result(f"{name}_stall", stall, "s", "torch.save+fsync", stall / theirs)
            yield Result(f"{name}_save", saved, "s", "torch.save+fsync", saved / theirs)
            yield saver.costs.result("save", f"{name}_save_cpu")
            yield Result(f"{name}_restore", restored, "s", "torch.load, uncached", restored / loaded)
            yield saver.costs.result("restore", f"{name}_restore_cpu")


class _TensorSaver:
    def __init__(
        self, cluster: LocalCluster, ckpts: Checkpoints, reader: Checkpoints, state: dict[str, torch.Tensor]
    ) -> None:
        self.stalls: list[float] = []
        self.costs = Costs(pids_of(cluster))
        self._cluster = cluster
        self._ckpts = ckpts
        self._reader = reader
        self._state = state
        self._step = 0

    def save(self) -> float:
        self._step += 1
        raw.change((tensor.numpy() for tensor in self._state.values()), self._step)
        start = time.perf_counter()
        saving = self._ckpts.save(self._step, self._state)
        self.stalls.append(time.perf_counter() - start)
        saving.wait()
        return time.perf_counter() - start

    def restore(self) -> float:
        _forget(self._cluster)
        raw.warm_memory(sum(tensor.nbytes for tensor in self._state.values()))
        return self.costs.of("restore", lambda: _seconds(lambda: self._reader.restore(self._step)))

    def check(self) -> None:
        restored = self._reader.restore(self._step)
        assert all(torch.equal(restored[name], tensor) for name, tensor in self._state.items())


def _state(total_bytes: int, count: int) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(7)
    part_bytes = total_bytes // count
    return {
        f"tensor{index}": torch.from_numpy(random.integers(0, 256, part_bytes, dtype=np.uint8))
        for index in range(count)
    }


def _forget(cluster: LocalCluster) -> None:
    """Puts all fragments out of the page cache. What was saved earlier is out of it already, so this costs little."""
    for fragment in cluster.fragments():
        raw.forget(fragment)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
