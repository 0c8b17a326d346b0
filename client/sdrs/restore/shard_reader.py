"""Reading one rank's blobs: their ranges in parallel, each by a thread that reads it as ``range_reading`` says."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial

from sdrs.process import Process
from sdrs.restore.decoding import Scratch
from sdrs.restore.inflating import HeadReading, Inflating
from sdrs.restore.range_reading import RangeReading
from sdrs.restore.record import code_of
from sdrs.restore.sources import Sources
from sdrs.restore.stripes import Range, cut
from sdrs.restore.targets import ByteCount, Target
from sdrs_core.checkpoints import Blob, Save
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.codes import Code
from sdrs_core.errors import InvalidArgumentError, SdrsError
from sdrs_core.ids import BlobId
from sdrs_core.packing import PackIndex
from sdrs_proto.v1.control_pb2 import ListShardsRequest, ListShardsResponse

# A disk that serves several requests at once needs more of them under way than there are cores to hash.
READER_COUNT = 6


def whole_blocks(blob: Blob, start: int, end: int) -> tuple[int, int]:
    """What has to be read for these bytes of what was saved: blocks are verified as a whole."""
    return start // BLOCK_BYTES * BLOCK_BYTES, min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, blob.raw_bytes)


def open_shard(process: Process, save: Save, rank: int, count: ByteCount) -> ShardReader:
    """The part of one rank, whatever the number of ranks that save and read."""
    if not 0 <= rank < save.world_size:
        raise InvalidArgumentError(
            f"{save.title} has no rank {rank}: it was saved with world_size {save.world_size}, by ranks 0 to "
            f"{save.world_size - 1}"
        )
    return ShardReader(process, save, shard_record(process, save, rank, count), count)


def shard_record(process: Process, save: Save, rank: int, count: ByteCount) -> ListShardsResponse:
    """What is kept in a backup only is brought back first: how it is stored shows only then."""
    request = ListShardsRequest(save_id=save.save_id, rank=rank, pool=save.pool)
    record: ListShardsResponse = process.control.call("list_shards", request)
    if save.evicted and any(not blob.holders for shard in record.shards for blob in shard.blobs):
        with suppress(SdrsError):  # whoever reads it asks again, and tells why it is in vain
            process.recalls.recall(save, count.tell)
            record = process.control.call("list_shards", request)
    return record


class ShardReader:
    """``record`` is the controller's answer of which this is the one shard."""

    def __init__(self, process: Process, save: Save, record: ListShardsResponse, count: ByteCount) -> None:
        self.save = save
        self._sources = Sources(process, save, record)
        self.shard = self._sources.record.shard
        self._count = count
        self._local = threading.local()
        # By blob, of those that are packed.
        self._indexes: dict[BlobId, PackIndex] = {}

    def read(self, blobs: Sequence[Blob], target: Target) -> None:
        """Bring all of ``blobs`` into ``target``, verified; raises when one can be had from no holder."""
        self._read([part for blob in blobs for part in _cut(blob, 0, blob.raw_bytes)], target)

    def read_range(self, blob: Blob, start: int, end: int, target: Target) -> None:
        """Bring the blocks with the bytes from ``start`` to ``end`` into ``target``, verified."""
        self.read_ranges([(blob, start, end)], target)

    def read_ranges(self, wanted: Iterable[tuple[Blob, int, int]], target: Target) -> None:
        """The same for several, at once. A block that is in several of them is read for each."""
        parts: list[Range] = []
        for blob, start, end in wanted:
            if not 0 <= start <= end <= blob.raw_bytes:
                raise InvalidArgumentError(f"bytes {start} to {end} are not in blob {blob.id}: it has {blob.raw_bytes}")
            first, last = whole_blocks(blob, start, end)
            parts += _cut(blob, first, last) if start < end else ()
        self._read(parts, target)

    def _read(self, parts: Sequence[Range], target: Target) -> None:
        stop = threading.Event()
        with ThreadPoolExecutor(min(READER_COUNT, len(parts) or 1), "sdrs-read") as pool:
            futures = [pool.submit(self._read_part, part, target, stop) for part in parts]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_part(self, part: Range, target: Target, stop: threading.Event) -> None:
        if not part.blob.packing:
            self._read_stored(part, target, self._count, stop)
            return
        start = self._read_staged(part, target, stop)
        if start < part.end:
            wanted = Range(part.blob, start, part.end)
            inflating = Inflating(wanted, self._index_of(part.blob, stop), target, self._count)
            self._read_stored(inflating.part, inflating, ByteCount(), stop)

    def _read_staged(self, part: Range, target: Target, stop: threading.Event) -> int:
        """From memory of this host, which has it as it was saved; up to where."""
        blob, position = part.blob, part.start

        def accept(start: int, verified: memoryview) -> None:
            nonlocal position
            target.accept(blob, start, verified)
            position = start + len(verified)
            self._count.add(len(verified))

        self._sources.staged.read(blob, position, part.end, partial(target.window, blob), accept, stop)
        return position

    def _index_of(self, blob: Blob, stop: threading.Event) -> PackIndex:
        """Read once; by two ranges that begin together, twice."""
        if blob.id not in self._indexes:
            reading = HeadReading(blob)
            self._read_stored(reading.part, reading, ByteCount(), stop)
            self._indexes[blob.id] = reading.index()
        return self._indexes[blob.id]

    def _read_stored(self, part: Range, target: Target, count: ByteCount, stop: threading.Event) -> None:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = Scratch()
        RangeReading(self._sources, part, target, count, stop, self._local.scratch).read()


def _cut(blob: Blob, start: int, end: int) -> Iterator[Range]:
    """A packed one is cut where its chunks are, which are blocks of what was saved."""
    return cut(blob, Code(1, 0) if blob.packing else code_of(blob), start, end)
