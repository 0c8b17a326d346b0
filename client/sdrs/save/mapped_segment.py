"""A segment of the daemon's, mapped into this process, and copying a shard straight into it.

There is no buffer in between. Large pieces are split over a few threads: one core alone does not saturate the memory of
a machine with many.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sdrs.save.payload import Payload, PayloadBlob
from sdrs_core.errors import SaveFailedError
from sdrs_proto.staging import BLOB_ALIGN_BYTES, round_up
from sdrs_proto.v1.staging_pb2 import StagedShard

MAX_THREADS = 8
# What is worth handing to another thread.
PIECE_BYTES = 4 << 20


@dataclass(eq=False, slots=True)
class MappedSegment:
    """Belongs to one process and one session. Its pages stay warm: the next save into it costs no page faults."""

    id: str
    size_bytes: int
    memory: mmap.mmap

    @classmethod
    def of(cls, segment_id: str, size_bytes: int, fd: int) -> MappedSegment:
        """Takes ``fd`` over."""
        try:
            memory = mmap.mmap(fd, size_bytes)
        finally:
            os.close(fd)
        with suppress(OSError, AttributeError):
            memory.madvise(mmap.MADV_DONTFORK)  # a forked worker has no business in a checkpoint
        with suppress(OSError, AttributeError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return cls(segment_id, size_bytes, memory)


@dataclass(frozen=True, slots=True)
class SegmentBlob:
    segment: MappedSegment
    offset: int
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        yield memoryview(self.segment.memory)[self.offset : self.offset + self.size_bytes]


@dataclass(frozen=True, slots=True)
class SegmentPayload:
    """What was copied into a segment, to be sent by this process itself: its daemon is gone, the memory is not."""

    blobs: tuple[SegmentBlob, ...]

    @classmethod
    def of(cls, segment: MappedSegment, shard: StagedShard) -> SegmentPayload:
        return cls(tuple(SegmentBlob(segment, blob.offset, blob.size_bytes) for blob in shard.blobs))

    @property
    def total_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


def layout(sizes_bytes: Sequence[int]) -> tuple[list[int], int]:
    """Where each blob begins, and how long all of it is."""
    offsets, end = [], 0
    for size_bytes in sizes_bytes:
        offsets.append(end)
        end = round_up(end + size_bytes, BLOB_ALIGN_BYTES)
    return offsets, end


class Copier:
    """Belongs to one process. Its threads are made when they are first needed."""

    def __init__(self, thread_count: int | None = None) -> None:
        self._count = thread_count or max(1, min(MAX_THREADS, len(os.sched_getaffinity(0))))
        self._threads: ThreadPoolExecutor | None = None

    def copy(self, payload: Payload, offsets: Sequence[int], segment: MappedSegment) -> None:
        with memoryview(segment.memory) as whole:
            for blob, offset in zip(payload.blobs, offsets, strict=True):
                with whole[offset : offset + blob.size_bytes] as target:
                    self._copy_blob(blob, target)

    def _copy_blob(self, blob: PayloadBlob, target: memoryview) -> None:
        position = 0
        for piece in blob.segments():
            if position + len(piece) > len(target):
                raise SaveFailedError("an array of the state changed its size while it was saved: save a copy of it")
            with target[position : position + len(piece)] as room:
                self._copy_piece(room, piece)
            position += len(piece)
        if position != len(target):
            raise SaveFailedError("an array of the state changed its size while it was saved: save a copy of it")

    def _copy_piece(self, room: memoryview, piece: memoryview) -> None:
        # A piece is valid until the next is asked for: all threads are done with it when this returns.
        share_bytes = round_up(-(-len(piece) // self._count), BLOB_ALIGN_BYTES)
        if self._count == 1 or share_bytes < PIECE_BYTES:
            _copy(room, piece, 0, len(piece))
            return
        others, copied = [], share_bytes
        with suppress(RuntimeError):  # an interpreter that is shutting down starts no more threads
            while copied < len(piece):
                others.append(self._pool().submit(_copy, room, piece, copied, copied + share_bytes))
                copied += share_bytes
        try:
            _copy(room, piece, 0, share_bytes)
            _copy(room, piece, copied, len(piece))
        finally:
            for other in others:
                other.result()

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._count - 1, "sdrs-copy")
        return self._threads

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()


def _copy(room: memoryview, piece: memoryview, start: int, end: int) -> None:
    if start >= len(piece):
        return
    import numpy as np

    # numpy's copy lets other threads run, that of a memoryview does not.
    np.copyto(np.frombuffer(room, np.uint8)[start:end], np.frombuffer(piece, np.uint8)[start:end])
