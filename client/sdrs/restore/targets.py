"""Where verified bytes go: to memory that stays, or through a small buffer to somewhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from sdrs.memory import allocate, round_up
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES

Write = Callable[[Blob, int, memoryview], None]


class MemoryTarget:
    def __init__(self, blobs: Sequence[Blob]) -> None:
        self._memory = {blob.id: allocate(blob.size_bytes) for blob in blobs}

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        return self._memory[blob.id][start : round_up(end)]

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        pass

    def buffer(self, blob: Blob) -> memoryview:
        return self._memory[blob.id][: blob.size_bytes]


class BufferedTarget:
    """A block's buffer for each reading thread; ``write`` gets (blob, offset, bytes)."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._local = threading.local()

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = allocate(BLOCK_BYTES)
        buffer: memoryview = self._local.buffer
        return buffer[: round_up(end - start)]

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        self._write(blob, start, verified)
