"""Changes of who holds a blob, each a compare-and-swap on its shard's record under the controller's term (P4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from sdrs_core.checkpoints import Blob, Holder, Shard
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import BlobId
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put


class Removal(Enum):
    REMOVED = "removed"
    # It is the last one that counts: it stays on record, so that the blob is not forgotten (I4).
    LAST = "last"
    # Not on record any more, or not as it was: whoever asked has seen the past.
    MOVED = "moved"


class HolderRecords:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def has(self, shard_key: str, blob_id: BlobId, holder: Holder) -> bool:
        stored = await self._records.get(shard_key, Shard)
        blob = find_blob(stored.value, blob_id) if stored else None
        return blob is not None and holder in blob.holders

    async def add(self, shard_key: str, blob_id: BlobId, holder: Holder) -> bool:
        """A copy was made. False if nobody wants it any more: the blob is gone, or on its way out (P13)."""

        def edit(blob: Blob) -> Blob | None:
            if not any(not known.dropping for known in blob.holders):
                return None
            others = tuple(known for known in blob.holders if known.node_id != holder.node_id)
            mine = [known for known in blob.holders if known.node_id == holder.node_id]
            if any(known.dropping for known in mine):
                return None
            # A node has a fragment once: on another disk than before, it takes the place of what it had (P2).
            return blob if mine == [holder] else replace(blob, holders=(*others, holder))

        return await self._edit(shard_key, blob_id, edit) is not None

    async def mark_dropping(self, stored: Stored[Shard], blob_id: BlobId, holder: Holder) -> None:
        """P14: from here on the copy does not count. It holds only for the very record on which it was decided."""
        blobs = tuple(
            replace(blob, holders=tuple(replace(h, dropping=True) if h == holder else h for h in blob.holders))
            if blob.id == blob_id
            else blob
            for blob in stored.value.blobs
        )
        await self._records.commit([stored.unchanged()], [put(stored.key, replace(stored.value, blobs=blobs))])

    async def remove(self, shard_key: str, blob_id: BlobId, holder: Holder) -> Removal:
        """The copy is not there: lost, bad, or dropped as it was told."""
        outcome = Removal.MOVED

        def edit(blob: Blob) -> Blob | None:
            nonlocal outcome
            outcome = Removal.MOVED
            if holder not in blob.holders:
                return None
            others = tuple(known for known in blob.holders if known != holder)
            if not any(not known.dropping for known in others):
                outcome = Removal.LAST
                return None
            outcome = Removal.REMOVED
            return replace(blob, holders=others)

        edited = await self._edit(shard_key, blob_id, edit)
        return Removal.MOVED if edited is None and outcome is Removal.REMOVED else outcome

    async def _edit(self, shard_key: str, blob_id: BlobId, edit: Callable[[Blob], Blob | None]) -> Blob | None:
        """What ``edit`` made of the blob; None if the blob is gone or ``edit`` declined."""
        for _ in range(MAX_TRIES):
            stored = await self._records.get(shard_key, Shard)
            blob = find_blob(stored.value, blob_id) if stored else None
            edited = edit(blob) if blob else None
            if stored is None or blob is None or edited is None or edited == blob:
                return edited
            blobs = tuple(edited if known.id == blob_id else known for known in stored.value.blobs)
            try:
                await self._records.commit([stored.unchanged()], [put(shard_key, replace(stored.value, blobs=blobs))])
            except ConflictError:
                continue
            return edited
        raise UnavailableError(f"the record of blob {blob_id} changes all the time: try again")


def find_blob(shard: Shard, blob_id: BlobId) -> Blob | None:
    return next((blob for blob in shard.blobs if blob.id == blob_id), None)
