"""Memory of this process, where a save that no daemon stages is copied, so that the caller may go on changing it.

The memory is bounded and kept: page-faulting fresh memory costs ten times the copy. A save gets all that it needs or
waits (back-pressure); it never holds a part while it waits for the rest, so saves cannot wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sdrs.memory import allocate
from sdrs.save.payload import Payload, PayloadBlob

CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StagedBlob:
    """A blob at ``start`` of the bytes that ``chunks`` hold one after the other."""

    chunks: Sequence[memoryview]
    start: int
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        yield from _windows(self.chunks, self.start, self.size_bytes)


@dataclass(frozen=True, slots=True)
class StagedPayload:
    blobs: tuple[StagedBlob, ...]
    total_bytes: int
    chunks: tuple[memoryview, ...]


class Staging:
    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._changed = threading.Condition()
        # Last in, first out: what was used last is warm.
        self._free: list[memoryview] = []
        self._unused_count = -(-budget_bytes // CHUNK_BYTES)

    def holds(self, total_bytes: int) -> bool:
        return total_bytes <= self.budget_bytes

    def stage(self, payload: Payload, *, may_wait: bool = True) -> StagedPayload | None:
        """Copy ``payload``, after waiting for room; the result must be given to ``release``. None: it may not wait."""
        chunks = self._take(-(-payload.total_bytes // CHUNK_BYTES), may_wait)
        if chunks is None:
            return None
        try:
            blobs = []
            start = 0
            for blob in payload.blobs:
                _copy(blob, chunks, start)
                blobs.append(StagedBlob(chunks, start, blob.size_bytes))
                start += blob.size_bytes
        except BaseException:
            self._give(chunks)
            raise
        return StagedPayload(tuple(blobs), start, chunks)

    def release(self, staged: StagedPayload) -> None:
        self._give(staged.chunks)

    def _take(self, count: int, may_wait: bool) -> tuple[memoryview, ...] | None:
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: len(self._free) + self._unused_count >= count, None if may_wait else 0
            )
            if not has_room:
                return None
            missing = max(0, count - len(self._free))
            self._unused_count -= missing
            self._free += [allocate(CHUNK_BYTES) for _ in range(missing)]
            split = len(self._free) - count
            taken = tuple(self._free[split:])
            del self._free[split:]
        return taken

    def _give(self, chunks: tuple[memoryview, ...]) -> None:
        with self._changed:
            self._free += chunks
            self._changed.notify_all()


def _copy(blob: PayloadBlob, chunks: Sequence[memoryview], start: int) -> None:
    for segment in blob.segments():
        copied = 0
        for window in _windows(chunks, start, len(segment)):
            window[:] = segment[copied : copied + len(window)]
            copied += len(window)
        start += copied


def _windows(chunks: Sequence[memoryview], start: int, size_bytes: int) -> Iterator[memoryview]:
    """The pieces of ``chunks`` that hold ``size_bytes`` from ``start`` on."""
    position = start
    while position < start + size_bytes:
        index, offset = divmod(position, CHUNK_BYTES)
        window = chunks[index][offset : offset + start + size_bytes - position]
        yield window
        position += len(window)
