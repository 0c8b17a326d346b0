"""What the machine does without us, on the same bytes and the same file system."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from sdrs_core.checksums import BLOCK_BYTES, digest

GIB = 1 << 30


def arrays_of(total_bytes: int, count: int, seed: int = 7) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, total_bytes // count, dtype=np.uint8).view(np.float32) for _ in range(count)]


def change(arrays: Iterable[np.ndarray], number: int) -> None:
    """A few bytes of each, as a step of training changes all: what is unchanged need not be stored again."""
    for array in arrays:
        array.reshape(-1).view(np.uint8)[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)


def write_and_sync(path: Path, arrays: Sequence[np.ndarray]) -> float:
    """Seconds to write the arrays into one file, in blocks, with fsync of the file and of its folder."""
    path.unlink(missing_ok=True)
    start = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    for array in arrays:
        view = memoryview(array).cast("B")
        for offset in range(0, len(view), BLOCK_BYTES):
            os.write(fd, view[offset : offset + BLOCK_BYTES])
    os.fsync(fd)
    os.close(fd)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return time.perf_counter() - start


def read_and_hash(path: Path) -> float:
    """Seconds to read a file that is not cached into fresh memory, as a restore has to, and to hash its blocks."""
    forget(path)
    size = path.stat().st_size
    warm_memory(size)
    start = time.perf_counter()
    into = np.empty(size, dtype=np.uint8)
    view = memoryview(into).cast("B")
    with open(path, "rb", buffering=0) as file:
        for offset in range(0, size, BLOCK_BYTES):
            block = view[offset : offset + BLOCK_BYTES]
            file.readinto(block)
            digest(block)
    return time.perf_counter() - start


def forget(path: Path) -> None:
    """Out of the page cache."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # of an earlier round: it was collected since it was listed
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def warm_memory(state_bytes: int) -> None:
    """Leaves memory behind that the machine has at hand, for whoever restores a state next: as much as it fills, and as
    much as it may read through the page cache.

    On a virtual machine memory that lay free for a while is taken back by the host, and had again at a tenth of the
    speed. Whose turn follows one that used much memory would win by that alone.
    """
    np.ones(2 * state_bytes, dtype=np.uint8)


def sync_small_writes(path: Path, count: int) -> float:
    """Seconds for ``count`` small appends, each fsynced: the least that a durable commit can cost."""
    start = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * 512)
            os.fsync(file.fileno())
    return time.perf_counter() - start
