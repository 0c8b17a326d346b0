"""Page-aligned memory for O_DIRECT, used again and again: fresh pages cost more than the hashing of them."""

from __future__ import annotations

import mmap
import threading

from sdrs_core.checksums import BLOCK_BYTES

BLOCKS_PER_BUFFER = 2
BUFFER_BYTES = BLOCKS_PER_BUFFER * BLOCK_BYTES
BUFFERS_PER_WRITER = 3  # one filled while two are written: more did not measure better
# A committed block stays as it is while so many later ones are begun: who sends it on must be done with it by then.
BLOCKS_KEPT = BLOCKS_PER_BUFFER * (BUFFERS_PER_WRITER - 1)


class BufferPool:
    """Keeps at most ``max_idle`` buffers for the next taker (I10).

    Taking never waits, so that writers cannot block each other. What is in use is bounded by the callers' slots (P21),
    ``BUFFERS_PER_WRITER`` each.
    """

    def __init__(self, max_idle: int) -> None:
        self._max_idle = max_idle
        self._idle: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def take(self) -> mmap.mmap:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give(self, buffer: mmap.mmap) -> None:
        """Only for a buffer that nobody can still write into: the next owner trusts its bytes."""
        with self._lock:
            if len(self._idle) < self._max_idle:
                self._idle.append(buffer)
