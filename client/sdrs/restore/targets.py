"""Where verified bytes go: to memory that stays, or through a small buffer to somewhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from sdrs.memory import allocate, round_up
from sdrs.views import Report
from sdrs_core.checkpoints import Blob

Write = Callable[[Blob, int, memoryview], None]


class Target(Protocol):
    """Where a blob's bytes go, as they were saved. Called from several threads, for different stripes."""

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        """Memory for these bytes, page-aligned and up to the end of the last page."""

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        """The window is filled with verified bytes."""


class ByteCount:
    """How far a restore is; ``report`` is told (read, total), from one thread at a time."""

    def __init__(self, report: Report | None = None, total_bytes: int = 0) -> None:
        self.read_bytes = 0
        self.total_bytes = total_bytes
        self._report = report
        self._lock = threading.Lock()

    def tell(self, done_bytes: int, total_bytes: int) -> None:
        """Of what has to be done before anything can be read."""
        with self._lock:
            if self._report:
                self._report(done_bytes, total_bytes)

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.read_bytes += size_bytes
            if self._report:
                self._report(self.read_bytes, self.total_bytes)


class MemoryTarget:
    def __init__(self, blobs: Sequence[Blob]) -> None:
        self._memory = {blob.id: allocate(blob.raw_bytes) for blob in blobs}

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        return self._memory[blob.id][start : round_up(end)]

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        pass

    def buffer(self, blob: Blob) -> memoryview:
        return self._memory[blob.id][: blob.raw_bytes]


class BufferedTarget:
    """A stripe's buffer for each reading thread; ``write`` gets (blob, offset, bytes)."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._local = threading.local()

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        size_bytes = round_up(end - start)
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < size_bytes:
            buffer = self._local.buffer = allocate(size_bytes)
        return buffer[:size_bytes]

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        self._write(blob, start, verified)
