"""Parts of what one rank saved: single arrays, files and ranges of bytes, without reading the rest.

Blocks of 1 MiB are verified as a whole (I5), so that is what a range costs at least.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sdrs.process import Process
from sdrs.restore.shard_reader import ShardReader, open_shard, whole_blocks
from sdrs.restore.targets import BufferedTarget, ByteCount
from sdrs.state.arrays import ArrayRecord
from sdrs.state.container import FILES_TENSOR, TREE_TENSOR, Span, header_end, index_span, parse_header, parse_index
from sdrs.state.decode import array_bytes, array_of, state_index
from sdrs.state.files_index import files_index
from sdrs_core.checkpoints import Blob, ContentKind, Save
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, NotFoundError

# Enough for most headers, and no more than the block that is read anyway.
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """An array or a file of a shard. ``dtype`` and ``shape`` are an array's, as its library writes them."""

    name: str
    size_bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


class OpenShard:
    """Made by ``checkpoints.open(step, rank=)``; may be used from several threads.

    Names of arrays are their paths in the state, joined by dots, as ``sdrs ckpt pull`` writes them too; names of files
    are paths below the folder that was saved.
    """

    def __init__(self, process: Process, checkpoint: Save, rank: int) -> None:
        self.checkpoint = checkpoint
        self.rank = rank
        self._count = ByteCount()
        self._reader: ShardReader = open_shard(process, checkpoint, rank, self._count)
        self._blobs = self._reader.shard.blobs
        self._lock = threading.Lock()
        self._parts: dict[str, Part] | None = None
        self._arrays: dict[str, ArrayRecord] = {}
        self._places: dict[str, tuple[int, Span]] = {}
        self._spans: dict[int, dict[str, Span]] = {}

    @property
    def read_bytes(self) -> int:
        """What was read so far, in whole blocks."""
        return self._count.read_bytes

    def parts(self) -> list[Part]:
        return list(self._index().values())

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from ``start`` to ``end`` of an array (as it lies in memory) or of a file, verified."""
        size_bytes = self._part(name).size_bytes
        end = size_bytes if end is None else end
        if not 0 <= start <= end <= size_bytes:
            raise InvalidArgumentError(f"bytes {start} to {end} are not in {name!r}: it has {size_bytes}")
        number, span = self._find(name)
        return bytes(self._read(self._blobs[number], span.start + start, span.start + end))

    def array(self, name: str) -> Any:
        """One array of a state, of the library and dtype it was saved as."""
        self._part(name)
        if name not in self._arrays:
            raise InvalidArgumentError(f"{name!r} is a file: use read")
        number, span = self._find(name)
        return array_of(self._arrays[name], self._read(self._blobs[number], span.start, span.end))

    def _part(self, name: str) -> Part:
        parts = self._index()
        if name not in parts:
            raise NotFoundError(f"{self.checkpoint.title}, rank {self.rank} has no {name!r}: see parts()", name=name)
        return parts[name]

    def _find(self, name: str) -> tuple[int, Span]:
        if name in self._places:
            return self._places[name]
        record = self._arrays[name]
        span = self._spans_of(record.blob).get(record.tensor)
        if span is None or span.end - span.start != self._part(name).size_bytes:
            raise CorruptDataError(f"array {name[:80]!r} does not fit its description: restore another step")
        return record.blob, span

    def _index(self) -> dict[str, Part]:
        with self._lock:
            if self._parts is None:
                is_state = self.checkpoint.kind is ContentKind.STATE
                self._parts = {part.name: part for part in (self._arrays_of() if is_state else self._files_of())}
            return self._parts

    def _arrays_of(self) -> Iterable[Part]:
        index = state_index(self._read_index(TREE_TENSOR))
        if index.blob_count != len(self._blobs):
            raise CorruptDataError(f"this state has {index.blob_count} blobs, but {len(self._blobs)} are on record")
        for record in index.arrays:
            self._arrays[record.tensor] = record
            yield Part(record.tensor, array_bytes(record), str(record.type.dtype), record.type.shape)

    def _files_of(self) -> Iterable[Part]:
        raw = self._read_index(FILES_TENSOR)
        data_start = min(span.start for span in self._spans_of(0).values())
        index = files_index(raw, data_start, self._blobs[0].raw_bytes)
        if index.sizes_bytes != tuple(blob.raw_bytes for blob in self._blobs):
            raise CorruptDataError("the index of these files does not fit their blobs: restore another step")
        for entry in index.entries:
            if entry.kind == "file":
                start = index.data_starts[entry.blob] + entry.offset
                self._places[entry.name] = entry.blob, Span(start, start + entry.size_bytes)
                yield Part(entry.name, entry.size_bytes)

    def _read_index(self, tensor: str) -> dict[str, Any]:
        span = index_span(self._spans_of(0), tensor)
        return parse_index(self._read(self._blobs[0], span.start, span.end), tensor)

    def _spans_of(self, number: int) -> dict[str, Span]:
        if number not in self._spans:
            blob, what = self._blobs[number], f"blob {number}"
            head = self._read(blob, 0, min(_HEAD_BYTES, blob.raw_bytes))
            end = header_end(head, what, blob.raw_bytes)
            if end > len(head):
                head = self._read(blob, 0, end)
            self._spans[number] = parse_header(head, what, blob.raw_bytes)
        return self._spans[number]

    def _read(self, blob: Blob, start: int, end: int) -> memoryview:
        memory = memoryview(bytearray(end - start))

        def write(_: Blob, offset: int, verified: memoryview) -> None:
            first, last = max(offset, start), min(offset + len(verified), end)
            if first < last:
                memory[first - start : last - start] = verified[first - offset : last - offset]

        if end > start:
            self._reader.read_ranges([(blob, *whole_blocks(blob, start, end))], BufferedTarget(write))
        return memory
