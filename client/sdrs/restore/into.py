"""Reading a state straight into arrays that are there: no second copy of it in memory.

The first blob has the index and little else; it is read, and everything is compared, before anything is written. The
others come through a block's buffer in each thread, and only verified bytes leave those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from sdrs.restore.readings import Reading
from sdrs.restore.shard_reader import ShardReader, whole_blocks
from sdrs.restore.targets import BufferedTarget, MemoryTarget
from sdrs.state import Overlay, Slot, decode_index, header_end, overlay, parse_header
from sdrs_core.checkpoints import Blob
from sdrs_core.errors import CorruptDataError

MIXED = "the arrays that were given to restore into may hold a mixture by now: fill them anew before you use them"


def read_into(readers: Sequence[ShardReader], into: Any) -> Reading:
    (reader,) = readers
    blobs = reader.shard.blobs
    memory = MemoryTarget(blobs[:1])
    reader.read(blobs[:1], memory)
    first = memory.buffer(blobs[0])
    index = decode_index(first)
    if len(blobs) != index.blob_count:
        raise CorruptDataError(f"this state has {index.blob_count} blobs, but {len(blobs)} are on record")
    laid = overlay(index, [blob.raw_bytes for blob in blobs], into)
    spread = _Spread(laid, len(blobs))
    try:
        spread.take_head(blobs[0], first)
        heads = [(blob, 0, min(1, blob.raw_bytes)) for blob in blobs[1:]]
        reader.read_ranges(heads, BufferedTarget(lambda blob, _, verified: spread.take_head(blob, verified)))
        for blob in spread.long_headed:
            # Rare: thousands of small tensors. Only the pages that are read take memory.
            memory = MemoryTarget([blob])
            reader.read_range(blob, 0, spread.read_ends[blob.ordinal], memory)
            spread.take_head(blob, memory.buffer(blob)[: spread.read_ends[blob.ordinal]])
        rest = [(blob, spread.read_ends[blob.ordinal], blob.raw_bytes) for blob in blobs[1:]]
        reader.read_ranges(rest, BufferedTarget(spread.write))
    except BaseException as error:
        error.add_note(MIXED)
        raise
    return Reading(finish=laid.state)


class _Spread:
    """Gives each piece of a blob to the arrays that it belongs to."""

    def __init__(self, laid: Overlay, blob_count: int) -> None:
        self.long_headed: list[Blob] = []
        # By blob: up to where it is read, after its head.
        self.read_ends = [0] * blob_count
        self._slots: list[dict[str, Slot]] = [{} for _ in range(blob_count)]
        for slot in laid.slots:
            self._slots[slot.record.blob][slot.record.tensor] = slot
        # By blob: where each array starts, in order, and the arrays.
        self._starts: list[list[int]] = [[] for _ in range(blob_count)]
        self._placed: list[list[Slot]] = [[] for _ in range(blob_count)]

    def take_head(self, blob: Blob, head: memoryview) -> None:
        """The first bytes of a blob. If its header is longer, ``read_ends`` says what has to be read of it."""
        what = f"blob {blob.ordinal}"
        end = header_end(head, what, blob.raw_bytes)
        if end > len(head):
            self.read_ends[blob.ordinal] = whole_blocks(blob, 0, end)[1]
            self.long_headed.append(blob)
            return
        self._place(blob, head, what)
        self.read_ends[blob.ordinal] = len(head)
        self.write(blob, 0, head)

    def _place(self, blob: Blob, head: memoryview, what: str) -> None:
        spans = parse_header(head, what, blob.raw_bytes)
        placed = []
        for name, slot in self._slots[blob.ordinal].items():
            span = spans.get(name)
            if span is None or span.end - span.start != slot.size_bytes:
                raise CorruptDataError(
                    f"array {name[:80]!r} of {what} does not fit its description: restore another step"
                )
            if slot.size_bytes:
                placed.append((span.start, slot))
        placed.sort(key=lambda pair: pair[0])
        self._starts[blob.ordinal] = [start for start, _ in placed]
        self._placed[blob.ordinal] = [slot for _, slot in placed]

    def write(self, blob: Blob, offset: int, verified: memoryview) -> None:
        starts, placed = self._starts[blob.ordinal], self._placed[blob.ordinal]
        end = offset + len(verified)
        for position in range(max(0, bisect_right(starts, offset) - 1), len(starts)):
            start, slot = starts[position], placed[position]
            if start >= end:
                break
            first, last = max(start, offset), min(start + slot.size_bytes, end)
            if first < last:
                slot.fill(first - start, verified[first - offset : last - offset])
