"""The bytes of a plan, from the shards to their tensors: only the blocks that are needed, each once, several at a time.

Verified blocks are put where they belong as they come (I5), so a load takes no more memory than its target and a few
blocks. A planner's tensor is asked for when its first bytes are there and committed when its last are; one thread at a
time calls the planner.
"""

from __future__ import annotations

import io
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadPlanner, ReadItem

from sdrs.restore.shard_reader import ShardReader, whole_blocks
from sdrs.restore.targets import BufferedTarget
from sdrs.state.torch_arrays import assign, elements
from sdrs.torch.boxes import Box, merged, place, runs
from sdrs.torch.metadata import Place
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, InvalidArgumentError


class TensorRead:
    """One part of one stored tensor on its way into a tensor of the planner's."""

    def __init__(self, item: ReadItem, where: Place, planner: LoadPlanner, lock: threading.Lock) -> None:
        assert where.dtype is not None
        self.where = where
        self._item = item
        self._planner = planner
        self._dtype = where.dtype
        try:
            self._box = Box(where.shape, tuple(item.storage_offsets), tuple(item.lengths))
        except ValueError as error:
            raise CorruptDataError(f"{item.storage_index.fqn}: {error}") from error
        self._left = self._box.element_count
        self._target: torch.Tensor | None = None
        self._lock = lock

    def ranges(self) -> Iterable[tuple[int, int]]:
        """The bytes of the blob that it needs."""
        size, start = self._dtype.itemsize, self.where.start
        for first, end in runs(self._box, BLOCK_BYTES // size):
            yield start + first * size, start + end * size

    def finish_empty(self) -> None:
        if not self._left:
            self._planner.commit_tensor(self._item, self._resolve())

    def write(self, offset: int, data: memoryview) -> None:
        """``data``: the stored tensor's bytes from ``offset`` on. From several threads, for different bytes."""
        with self._lock:
            if not self._left:
                return  # between its parts, and it has them all
            target = self._target = self._resolve() if self._target is None else self._target
        count = place(target, self._box, offset // self._dtype.itemsize, elements(data, self._dtype), assign)
        with self._lock:
            self._left -= count
            if count and not self._left:
                self._planner.commit_tensor(self._item, target)
                self._target = None

    def _resolve(self) -> torch.Tensor:
        target = self._planner.resolve_tensor(self._item).detach()
        if tuple(target.shape) != self._box.lengths:
            raise InvalidArgumentError(
                f"{self._item.dest_index.fqn}: the tensor to load into has the shape {tuple(target.shape)}, the "
                f"plan says {self._box.lengths}"
            )
        return target


class BytesRead:
    """What DCP calls bytes: an object that its planner wrote with torch.save."""

    def __init__(self, where: Place, load: Callable[[io.BytesIO], None], lock: threading.Lock) -> None:
        self.where = where
        self._load = load
        self._bytes = bytearray()
        self._left = where.end - where.start
        self._lock = lock

    def ranges(self) -> Iterable[tuple[int, int]]:
        yield self.where.start, self.where.end

    def finish_empty(self) -> None:
        if not self._left:
            self._load(io.BytesIO())

    def write(self, offset: int, data: memoryview) -> None:
        with self._lock:
            if not self._bytes:  # by now the place is known to be inside of its blob
                self._bytes = bytearray(self.where.end - self.where.start)
            self._bytes[offset : offset + len(data)] = data
            self._left -= len(data)
            if not self._left:
                self._load(io.BytesIO(self._bytes))


Read = TensorRead | BytesRead


def read_all(reads: Iterable[Read], open_rank: Callable[[int], ShardReader]) -> None:
    """Shard after shard, each shard's ranges in parallel."""
    by_rank: dict[int, list[Read]] = defaultdict(list)
    for read in reads:
        if read.where.end > read.where.start:
            by_rank[read.where.rank].append(read)
        read.finish_empty()
    for rank, wanted in sorted(by_rank.items()):
        _read_shard(open_rank(rank), wanted)


def _read_shard(reader: ShardReader, reads: list[Read]) -> None:
    blobs = reader.shard.blobs
    ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
    # Who wants something of a block: (blob, block) → those.
    takers: dict[tuple[int, int], list[Read]] = defaultdict(list)
    for read in reads:
        where = read.where
        if where.blob >= len(blobs) or where.end > blobs[where.blob].raw_bytes:
            raise CorruptDataError(
                f"the metadata of {reader.save.title} names bytes that rank {where.rank} never wrote"
            )
        for start, end in read.ranges():
            first, last = whole_blocks(blobs[where.blob], start, end)
            ranges[where.blob].append((first, last))
            for block in range(first // BLOCK_BYTES, -(-last // BLOCK_BYTES)):
                known = takers[where.blob, block]
                if not known or known[-1] is not read:
                    known.append(read)

    def write(blob: Blob, offset: int, verified: memoryview) -> None:
        for start in range(0, len(verified), BLOCK_BYTES):
            block = verified[start : start + BLOCK_BYTES]
            for read in takers.get((blob.ordinal, (offset + start) // BLOCK_BYTES), ()):
                _hand_over(read, offset + start, block)

    wanted = [(blobs[number], start, end) for number, some in ranges.items() for start, end in merged(some)]
    reader.read_ranges(wanted, BufferedTarget(write))


def _hand_over(read: Read, offset: int, block: memoryview) -> None:
    first, last = max(read.where.start, offset), min(read.where.end, offset + len(block))
    if first < last:
        read.write(first - read.where.start, block[first - offset : last - offset])


def check_safe(name: str, data: io.BytesIO, *, allow_pickle: bool) -> io.BytesIO:
    """DCP's own planners load objects with the full pickle machine, which runs what the bytes say. So the bytes first
    have to pass torch's restricted one: the same stream then can do nothing else in the full one.
    """
    if not allow_pickle:
        try:
            torch.load(data, map_location="cpu", weights_only=True)
        except Exception as error:
            raise InvalidArgumentError(
                f"{name}: this object is not among those that torch loads safely ({type(error).__name__}). If you "
                "trust whoever saved it, use StorageReader(..., allow_pickle=True), or name its types with "
                "torch.serialization.add_safe_globals"
            ) from error
        data.seek(0)
    return data


def load_into(planner: LoadPlanner, item: ReadItem, *, allow_pickle: bool) -> Callable[[io.BytesIO], Any]:
    def load(data: io.BytesIO) -> None:
        planner.load_bytes(item, check_safe(item.storage_index.fqn, data, allow_pickle=allow_pickle))

    return load
