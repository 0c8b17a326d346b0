"""Reading one rank's blobs: their ranges in parallel, each by a thread that reads it as ``range_reading`` says."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from sdrs.process import Process
from sdrs.restore.decoding import Scratch
from sdrs.restore.range_reading import RangeReading
from sdrs.restore.record import code_of
from sdrs.restore.sources import Sources
from sdrs.restore.stripes import Range, cut
from sdrs.restore.targets import ByteCount, Target
from sdrs_core.checkpoints import Blob, Save
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import InvalidArgumentError
from sdrs_proto.v1.control_pb2 import ListShardsResponse

READER_COUNT = 4


class ShardReader:
    """``record`` is the controller's answer of which this is the one shard."""

    def __init__(self, process: Process, save: Save, record: ListShardsResponse, count: ByteCount) -> None:
        self.save = save
        self._sources = Sources(process, save, record)
        self.shard = self._sources.record.shard
        self._count = count
        self._stop = threading.Event()
        self._local = threading.local()

    def read(self, blobs: Sequence[Blob], target: Target) -> None:
        """Bring all of ``blobs`` into ``target``, verified; raises when one can be had from no holder."""
        self._read([part for blob in blobs for part in cut(blob, code_of(blob), 0, blob.size_bytes)], target)

    def read_range(self, blob: Blob, start: int, end: int, target: Target) -> None:
        """Bring the blocks with the bytes from ``start`` to ``end`` into ``target``, verified."""
        if not 0 <= start <= end <= blob.size_bytes:
            raise InvalidArgumentError(f"bytes {start} to {end} are not in blob {blob.id}: it has {blob.size_bytes}")
        first = start // BLOCK_BYTES * BLOCK_BYTES
        last = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, blob.size_bytes)
        self._read([*cut(blob, code_of(blob), first, last)] if start < end else [], target)

    def _read(self, parts: Sequence[Range], target: Target) -> None:
        with ThreadPoolExecutor(min(READER_COUNT, len(parts) or 1), "sdrs-read") as pool:
            futures = [pool.submit(self._read_part, part, target) for part in parts]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_part(self, part: Range, target: Target) -> None:
        if not hasattr(self._local, "scratch"):
            self._local.scratch = Scratch()
        RangeReading(self._sources, part, target, self._count, self._stop, self._local.scratch).read()
