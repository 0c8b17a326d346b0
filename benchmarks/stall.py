"""How long ``save`` keeps the training waiting: a copy into memory that the daemon owns, against a plain copy."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import raw
from benchmarks.processes import AS_DEPLOYED, STAGED
from benchmarks.results import Result, alternate
from tests.support.cluster import running_cluster

GIB = raw.GIB
ROUNDS = 7
TARGET_RATIO = 1.3


def stall(folder: Path) -> Iterator[Result]:
    """Of a warm save of 1 GiB; of the first one, which meets fresh pages; and of torch.save + fsync."""
    import torch

    arrays = raw.arrays_of(GIB, 16)
    state = {f"layer{index}": array for index, array in enumerate(arrays)}
    tensors = {name: torch.from_numpy(array) for name, array in state.items()}
    mapped = np.frombuffer(mmap.mmap(-1, GIB), np.uint8)

    def copy() -> float:
        start = time.perf_counter()
        position = 0
        for array in arrays:
            np.copyto(mapped[position : position + array.nbytes], array.view(np.uint8))
            position += array.nbytes
        return time.perf_counter() - start

    def torch_save() -> float:
        start = time.perf_counter()
        with open(folder / "torch", "wb") as file:
            torch.save(tensors, file)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - start

    with (
        running_cluster(folder, node_count=1, controller=AS_DEPLOYED, node=STAGED) as cluster,
        cluster.connect() as client,
    ):
        ckpts = client.checkpoints("bench")
        steps = itertools.count()

        def save() -> float:
            step = next(steps)
            raw.change(arrays, step)
            start = time.perf_counter()
            saving = ckpts.save(step=step, state=state)
            stalled = time.perf_counter() - start
            saving.wait()
            return stalled

        cold = save()
        copy()
        ours, plain, theirs = alternate(ROUNDS, save, copy, torch_save)
    yield Result("stall", ours, "s/GiB", f"a plain copy of the same bytes (aim: {TARGET_RATIO})", ours / plain)
    yield Result("stall_cold", cold, "s/GiB", "a plain copy into warm memory", cold / plain)
    yield Result("stall_torch", theirs, "s/GiB", "torch.save + fsync, against our stall", theirs / ours)
