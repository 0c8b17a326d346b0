"""Blobs that are stored compressed: targets that take what is stored, verified, and give on what was saved."""

from __future__ import annotations

from sdrs.memory import allocate, round_up
from sdrs.restore.stripes import Range
from sdrs.restore.targets import ByteCount, Target
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, UnsupportedError
from sdrs_core.packing import ZSTD, PackIndex, Packing, decode_head, head_bytes, parse_packing
from sdrs_core.zstd import Inflater


def packing_of(blob: Blob) -> Packing:
    packing = parse_packing(blob.packing)
    assert packing is not None, "only packed blobs are read here"
    if packing.method != ZSTD:
        raise UnsupportedError(
            f"blob {blob.id} is compressed with {packing.method}, which this sdrs does not read: upgrade it"
        )
    return packing


def _blocks_of(blob: Blob, start: int, end: int) -> Range:
    """The blocks, as stored, with these bytes."""
    return Range(blob, start // BLOCK_BYTES * BLOCK_BYTES, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, blob.size_bytes))


class _Window:
    """Memory for a stripe, as long as one range is read."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        if len(self._memory) < end - start:
            self._memory = allocate(end - start)
        return self._memory[: round_up(end - start)]


class HeadReading(_Window):
    """The head of a packed blob; ``index`` once ``part`` was read."""

    def __init__(self, blob: Blob) -> None:
        super().__init__()
        self._packing = packing_of(blob)
        self._blob = blob
        self._head = bytearray()
        self.part = _blocks_of(blob, 0, head_bytes(self._packing.raw_bytes))

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        self._head += verified

    def index(self) -> PackIndex:
        try:
            return decode_head(self._head, self._packing, self._blob.size_bytes)
        except CorruptDataError as error:
            raise _damaged(self._blob, error) from error


class Inflating(_Window):
    """``wanted`` is of what was saved, in whole chunks; ``part`` is what has to be read for it, in order."""

    def __init__(self, wanted: Range, index: PackIndex, target: Target, count: ByteCount) -> None:
        super().__init__()
        chunks = index.chunks(wanted.start, wanted.end)
        self._next, self._end = chunks.start, chunks.stop
        self._index = index
        self._target = target
        self._count = count
        self._inflater = Inflater(index.stride)
        # Of a chunk that begins in one stripe and ends in another: what has come of it.
        self._begun = bytearray()
        self.part = _blocks_of(wanted.blob, *index.stored_span(chunks))

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        stop = start + len(verified)
        while self._next < self._end:
            first, last = self._index.stored_span(range(self._next, self._next + 1))
            piece = verified[max(first - start, 0) : last - start]
            if last > stop:
                self._begun += piece
                return
            if self._begun:
                self._begun += piece
                piece = memoryview(self._begun)
            self._give(blob, self._next, piece)
            # Not cleared: a view of it may still be around.
            self._begun = bytearray()
            self._next += 1

    def _give(self, blob: Blob, number: int, stored: memoryview) -> None:
        start, end = self._index.raw_span(number)
        window = self._target.window(blob, start, end)
        try:
            self._inflater.inflate(self._index, number, stored, window)
        except CorruptDataError as error:
            raise _damaged(blob, error) from error
        self._target.accept(blob, start, window[: end - start])
        self._count.add(end - start)


def _damaged(blob: Blob, error: CorruptDataError) -> CorruptDataError:
    """What is stored is what was sent: no other holder has a better one."""
    return CorruptDataError(
        f"blob {blob.id} is damaged: {error}; it was stored so, restore another step", blob_id=blob.id
    )
