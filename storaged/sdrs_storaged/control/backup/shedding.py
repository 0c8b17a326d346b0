"""What the records of an evicted checkpoint's shards say: that no node has any of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Shard
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import BlobId, random_id
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put


async def without_references(records: Records, stored: Stored[Shard]) -> Stored[Shard] | None:
    """What it referred to is its own now, and in the backup; None if it is not there any more."""
    return await _edited(records, stored, _own)


async def without_holders(records: Records, stored: Stored[Shard]) -> Stored[Shard] | None:
    """Also nobody is on record for it any more; what nodes still have is nobody's, and collected as such."""

    def edit(shard: Shard) -> Shard:
        own = _own(shard)
        return replace(own, blobs=tuple(replace(b, holders=()) for b in own.blobs), mirrors=(), evicted=True)

    return await _edited(records, stored, edit)


def _own(shard: Shard) -> Shard:
    owned = [Blob(BlobId(random_id()), r.ordinal, r.size_bytes, r.hash, blake3=r.blake3) for r in shard.references]
    if not owned:
        return shard
    blobs = tuple(sorted((*shard.blobs, *owned), key=lambda blob: blob.ordinal))
    return replace(shard, blobs=blobs, references=(), evicted=True)


async def _edited(records: Records, stored: Stored[Shard], edit: Callable[[Shard], Shard]) -> Stored[Shard] | None:
    known: Stored[Shard] | None = stored
    for _ in range(MAX_TRIES):
        if known is None:
            return None
        edited = edit(known.value)
        if edited == known.value:
            return known
        try:
            revision = await records.commit([known.unchanged()], [put(known.key, edited)])
            return Stored(known.key, edited, revision)
        except ConflictError:
            known = await records.get(known.key, Shard)
    raise UnavailableError(f"the record {stored.key} changes all the time: try again")
