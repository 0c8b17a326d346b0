"""Memory for what is on its way to buckets and from them: one bound for all transfers of a process (I10).

Each transfer always gets one buffer, so that none waits for another and one whose store hangs holds up only itself;
more than that as long as all of them together keep within the bound.
"""

from __future__ import annotations

import mmap
import threading

# A part of an object, or a span of one with what encryption adds to it.
BUFFER_BYTES = (8 << 20) + mmap.PAGESIZE
SHARED_BYTES = 4 * BUFFER_BYTES


class TransferMemory:
    """Safe for use by several threads; nothing in here waits."""

    def __init__(self, shared_bytes: int = SHARED_BYTES) -> None:
        self._shared_bytes = shared_bytes
        self._lock = threading.Lock()
        self._lent_bytes = 0
        self._loans = 0
        self._idle: list[mmap.mmap] = []

    def loan(self) -> Loan:
        """For one transfer, which closes it."""
        with self._lock:
            self._loans += 1
        return Loan(self)

    def take(self, size_bytes: int, *, is_own: bool) -> memoryview | None:
        """For loans: None if what all share is in use."""
        with self._lock:
            if not is_own and self._lent_bytes + size_bytes > self._shared_bytes:
                return None
            self._lent_bytes += 0 if is_own else size_bytes
            if self._idle and len(self._idle[-1]) >= size_bytes:
                return memoryview(self._idle.pop())
        # Mapped, so that it goes back to the system as a whole: heaps of many threads keep such pieces for long.
        return memoryview(mmap.mmap(-1, max(size_bytes, BUFFER_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give(self, buffer: memoryview, shared_bytes: int) -> None:
        with self._lock:
            self._lent_bytes -= shared_bytes
            memory = buffer.obj
            assert isinstance(memory, mmap.mmap), "it was taken here"
            # Odd sizes fit nobody else.
            if len(memory) == BUFFER_BYTES:
                self._idle.append(memory)
            if not self._loans or len(memory) != BUFFER_BYTES:
                _empty(memory)

    def end(self) -> None:
        with self._lock:
            self._loans -= 1
            if not self._loans:
                # Not before: fresh pages cost time.
                for memory in self._idle:
                    _empty(memory)


def _empty(memory: mmap.mmap) -> None:
    """Its pages go back at once, whoever still refers to it: the S3 client does, in cycles that live for long."""
    memory.madvise(mmap.MADV_DONTNEED)


class Loan:
    """What one transfer has of it. Safe for use by several threads."""

    def __init__(self, memory: TransferMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        # What each that is out counts of what all share; the transfer's own counts nothing.
        self._out: dict[int, int] = {}
        self._is_own_out = False
        self._is_closed = False

    def take(self, size_bytes: int) -> memoryview | None:
        """At least so large. None only if another of this loan is out: that one comes back."""
        with self._lock:
            is_own = not self._is_own_out
            buffer = self._memory.take(size_bytes, is_own=is_own)
            if buffer is not None:
                self._is_own_out = True
                self._out[id(buffer)] = 0 if is_own else size_bytes
            return buffer

    def give(self, buffer: memoryview) -> None:
        """The very one that was taken, once nobody can write into it any more; also after ``close``."""
        with self._lock:
            shared_bytes = self._out.pop(id(buffer))
            self._is_own_out = self._is_own_out and shared_bytes > 0
            self._memory.give(buffer, shared_bytes)

    def close(self) -> None:
        """Nothing more is taken. What is out still counts until it is given."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._memory.end()
