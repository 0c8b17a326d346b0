"""What ``compress="zstd"`` saves and costs, against the same without: states that shrink, and one that does not."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.l1 import pids_of
from benchmarks.processes import AS_DEPLOYED, STAGED, cpu_seconds
from benchmarks.results import Result, alternate
from sdrs import Checkpoints
from tests.support.cluster import running_cluster

STATE_BYTES = raw.GIB // 2
ARRAYS = 8
ROUNDS = 3


def rounded() -> list[np.ndarray]:
    """Weights in float32 that were trained in bfloat16."""
    return [(array.view(np.uint32) & 0xFFFF0000).view(np.float32) for array in _normal()]


def sparse() -> list[np.ndarray]:
    """An optimizer's state of which nine in ten rows were never touched."""
    arrays = _normal()
    for array in arrays:
        array.reshape(-1, 1024)[np.arange(len(array) // 1024) % 10 != 0] = 0
    return arrays


def noise() -> list[np.ndarray]:
    return raw.arrays_of(STATE_BYTES, ARRAYS)


def _normal() -> list[np.ndarray]:
    random = np.random.default_rng(7)
    count = STATE_BYTES // ARRAYS // 4
    return [random.standard_normal(count, np.float32) for _ in range(ARRAYS)]


def compression(folder: Path) -> Iterator[Result]:
    """Of half a GiB at L1, staged: what is stored of it, and save-to-durable and restore in its own bytes a second."""
    with (
        running_cluster(folder, node_count=1, controller=AS_DEPLOYED, node=STAGED) as cluster,
        cluster.connect() as client,
    ):
        for make in (rounded, sparse, noise):
            arrays, name = make(), f"compress_{make.__name__}"
            state = {f"layer{index}": array for index, array in enumerate(arrays)}
            steps = itertools.count()
            packed = client.checkpoints(f"{name}-on", compress="zstd")
            plain = client.checkpoints(f"{name}-off", compress="none")
            cpu: list[float] = []

            def save(
                checkpoints: Checkpoints,
                state: dict[str, np.ndarray] = state,
                steps: Iterator[int] = steps,
                cpu: list[float] = cpu,
            ) -> float:
                raw.change(state.values(), step := next(steps))
                before = cpu_seconds(pids_of(cluster))
                start = time.perf_counter()
                checkpoints.save(step, state).wait()
                elapsed = time.perf_counter() - start
                cpu.append(cpu_seconds(pids_of(cluster)) - before)
                return elapsed

            def restore(checkpoints: Checkpoints) -> float:
                for fragment in cluster.fragments():
                    raw.forget(fragment)
                start = time.perf_counter()
                checkpoints.restore()
                return time.perf_counter() - start

            for checkpoints in (packed, plain):
                save(checkpoints)
            del cpu[:]
            saved, saved_plain = alternate(ROUNDS, *_each(save, packed, plain))
            restored, restored_plain = alternate(ROUNDS, *_each(restore, packed, plain))
            newest = packed.latest()
            assert newest is not None
            # They took turns: the first of each two is the compressed one.
            on, off = sorted(cpu[::2])[ROUNDS // 2], sorted(cpu[1::2])[ROUNDS // 2]
            share = newest.stored_bytes / newest.size_bytes
            yield Result(f"{name}_stored", share, "of its bytes", "all of them", share)
            rate, against = STATE_BYTES / saved / 1e9, "the same without"
            yield Result(f"{name}_save", rate, "GB/s", against, saved_plain / saved)
            yield Result(f"{name}_save_cpu", on * raw.GIB / STATE_BYTES, "CPU s/GiB", against, on / off)
            rate = STATE_BYTES / restored / 1e9
            yield Result(f"{name}_restore", rate, "GB/s", against, restored_plain / restored)


def _each(work: Callable[[Checkpoints], float], *given: Checkpoints) -> list[Callable[[], float]]:
    return [lambda checkpoints=checkpoints: work(checkpoints) for checkpoints in given]
