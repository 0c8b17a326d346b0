"""Every byte of a backed-up checkpoint, read and compared before the cluster lets go of it (P25)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sdrs_core import checksums
from sdrs_core.backup.manifests import BackedUpBlob
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, NotFoundError
from sdrs_storaged.control.backup.buckets import Buckets
from sdrs_storaged.control.backup.records import Copy
from sdrs_storaged.control.backup.sources import Backing, BackupSources
from sdrs_storaged.control.backup.targets import Targets

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket

# In one call, which has a deadline.
_PIECE_BLOCKS = 64


class FullRead:
    def __init__(self, targets: Targets, buckets: Buckets, sources: BackupSources) -> None:
        self._targets = targets
        self._buckets = buckets
        self._sources = sources

    async def damage_of(self, copy: Copy) -> str:
        """What is wrong with it; empty: nothing. Raises why it could not be read now."""
        backing = Backing(self._targets.get(copy.target), copy.cluster_id, copy.save_id)
        try:
            record = await self._sources.record(backing, copy.job, copy.step)
            for rank in range(record.world_size):
                for blob in (await self._sources.manifest(backing, record, rank)).blobs:
                    await self._read(backing, blob)
        except (CorruptDataError, NotFoundError) as error:
            return error.message
        return ""

    async def _read(self, backing: Backing, blob: BackedUpBlob) -> None:
        if checksums.blob_hash(blob.size_bytes, blob.table) != blob.hash:
            raise CorruptDataError(f"the table of {blob.place.key} does not match its hash")
        for first in range(0, checksums.block_count(blob.size_bytes), _PIECE_BLOCKS):
            await self._buckets.call(backing.target, _read, blob, first)


def _read(bucket: Bucket, blob: BackedUpBlob, first: int) -> None:
    from sdrs_storaged.bucket.downloading import open_object

    room = memoryview(bytearray(BLOCK_BYTES))
    reader = open_object(bucket, blob.place, first * BLOCK_BYTES)
    try:
        for number in range(first, min(first + _PIECE_BLOCKS, checksums.block_count(blob.size_bytes))):
            block = room[: min(BLOCK_BYTES, blob.size_bytes - number * BLOCK_BYTES)]
            reader.receive(block)
            if checksums.digest(block) != checksums.table_entry(blob.table, number):
                raise CorruptDataError(f"block {number} of {blob.place.key} does not match its checksum")
    finally:
        reader.close()
