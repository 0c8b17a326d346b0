"""Who competes in benchmarks/peers.py, and by which rules."""

from __future__ import annotations

import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.seaweed import Seaweed
from sdrs import Checkpoints
from tests.support.cluster import LocalCluster
from tests.support.waiting import wait_for

Arrays = dict[str, np.ndarray]
# A collector that runs every second drops what the largest state left on six nodes.
DROP_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long the job stood still, and how long it took until the state was stored. From the same start."""

    stall_seconds: float
    stored_seconds: float


class Contender(ABC):
    """Stores and restores one state. In each round these are called once, in this order:

    1. ``prepare``: what a job that saves every few minutes has behind it, warm buffers above all
    2. ``save``: timed
    3. ``forget``: puts what was stored out of the page cache
    4. ``restore``: timed; what it returns is compared with what was saved
    5. ``clean_up``: gives disk and memory back to the others
    """

    key: str
    restores = True

    def pids(self) -> list[int]:
        """The processes that work for it."""
        return [os.getpid()]

    def prepare(self) -> None:  # noqa: B027
        """Nothing, for most."""

    @abstractmethod
    def save(self) -> Times: ...

    def forget(self) -> None:
        for file in self.files():
            raw.forget(file)

    def files(self) -> Iterator[Path]:
        yield from ()

    @abstractmethod
    def restore(self) -> dict[str, Any]: ...

    @abstractmethod
    def clean_up(self) -> None: ...


class Memcpy(Contender):
    """The least that any save can stall: a copy into mapped memory that is there already."""

    key = "memcpy"
    restores = False

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._map: mmap.mmap | None = None

    def prepare(self) -> None:
        self._map = mmap.mmap(-1, sum(array.nbytes for array in self._arrays.values()))
        np.frombuffer(self._map, dtype=np.uint8).fill(1)

    def save(self) -> Times:
        assert self._map
        into, position = np.frombuffer(self._map, dtype=np.uint8), 0
        start = time.perf_counter()
        for array in self._arrays.values():
            np.copyto(into[position : position + array.nbytes], array.view(np.uint8))
            position += array.nbytes
        elapsed = time.perf_counter() - start
        return Times(elapsed, elapsed)

    def restore(self) -> dict[str, Any]:
        raise NotImplementedError("it stores nothing")

    def clean_up(self) -> None:
        assert self._map
        self._map.close()
        self._map = None


class RawDisk(Contender):
    """One file, written in blocks and fsynced; read into new arrays."""

    key = "raw"

    def __init__(self, folder: Path, arrays: Arrays) -> None:
        self._path = folder / "raw"
        self._arrays = arrays

    def save(self) -> Times:
        elapsed = raw.write_and_sync(self._path, list(self._arrays.values()))
        return Times(elapsed, elapsed)

    def files(self) -> Iterator[Path]:
        yield self._path

    def restore(self) -> dict[str, Any]:
        # Array by array, as the others do: whether memory is fresh or warm from the heap depends on its size.
        restored = {name: np.empty_like(array) for name, array in self._arrays.items()}
        with self._path.open("rb", buffering=0) as file:
            for array in restored.values():
                view, position = memoryview(array).cast("B"), 0
                while position < len(view):  # one read returns 2 GiB at most
                    position += file.readinto(view[position:])
        return restored

    def clean_up(self) -> None:
        self._path.unlink()


class SeaweedS3(Contender):
    """Two copies over S3, one object for each array."""

    key = "seaweed"

    def __init__(self, seaweed: Seaweed, arrays: Arrays) -> None:
        self._seaweed = seaweed
        self._arrays = arrays

    def pids(self) -> list[int]:
        return [os.getpid(), *self._seaweed.pids]

    def save(self) -> Times:
        start = time.perf_counter()
        self._seaweed.put(self._arrays)
        elapsed = time.perf_counter() - start
        return Times(elapsed, elapsed)

    def files(self) -> Iterator[Path]:
        yield from self._seaweed.files()

    def restore(self) -> dict[str, Any]:
        return self._seaweed.get(list(self._arrays))

    def clean_up(self) -> None:
        self._seaweed.delete(list(self._arrays))


class Sdrs(Contender):
    """A pool at one level. ``cold`` reads from disks what the daemon of this host still has in memory."""

    def __init__(
        self, level: str, cluster: LocalCluster, ckpts: Checkpoints, cold: Checkpoints, state: dict[str, Any]
    ) -> None:
        self.key = f"sdrs_{level.lower()}"
        self._level = level
        self._cluster = cluster
        self._ckpts = ckpts
        self._cold = cold
        self._state = state
        self._step = 0
        self._fragment_count = 0

    def pids(self) -> list[int]:
        return [os.getpid(), *(daemon.pid for daemon in [self._cluster.controller, *self._cluster.nodes])]

    def prepare(self) -> None:
        if self._step == 0:
            self.save()
            self.clean_up()

    def save(self) -> Times:
        self._step += 1
        self._fragment_count = len(self._cluster.fragments())
        start = time.perf_counter()
        saving = self._ckpts.save(step=self._step, state=self._state)
        stall = time.perf_counter() - start
        saving.wait(self._level)
        return Times(stall, time.perf_counter() - start)

    def files(self) -> Iterator[Path]:
        yield from self._cluster.fragments()

    def restore(self) -> dict[str, Any]:
        return dict(self._cold.restore(step=self._step))

    def clean_up(self) -> None:
        """A job always has its last checkpoint; the one before goes."""
        if self._step == 1:
            return
        self._ckpts.delete(self._step - 1)
        wait_for(
            lambda: len(self._cluster.fragments()) <= self._fragment_count,
            "what was deleted to be dropped",
            DROP_SECONDS,
        )
