"""Changes of who holds a blob, each a compare-and-swap on its shard's record under the controller's term (P4).

A holder is one fragment on one node: a node may have several of a blob, each under its own index (P2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from enum import Enum

from sdrs_core.checkpoints import Blob, Holder, Shard
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.mirroring import twin_of
from sdrs_core.soundness import counted, is_readable
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put


class Removal(Enum):
    REMOVED = "removed"
    # It is the last one that counts, in any pool: it stays on record, so that the blob is not forgotten (I4).
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
        """A fragment was made. False if nobody wants it any more: the blob is gone, or on its way out (P13)."""

        def edit(shard: Shard, blob: Blob) -> Blob | None:
            if not _is_wanted(shard, blob):
                return None
            others = tuple(known for known in blob.holders if _place(known) != _place(holder))
            mine = [known for known in blob.holders if _place(known) == _place(holder)]
            if any(known.dropping for known in mine):
                return None
            # A node has a fragment once: on another disk than before, it takes the place of what it had (P2).
            return blob if mine == [holder] else replace(blob, holders=(*others, holder))

        return await self._edit(shard_key, blob_id, edit, _known_nodes([holder])) is not None

    async def mark_dropping(self, stored: Stored[Shard], blob_id: BlobId, holders: Set[Holder]) -> Stored[Shard]:
        """P14: from here on they do not count. It holds only for the very record on which it was decided."""
        blob = find_blob(stored.value, blob_id)
        if blob is None:
            return stored
        marked = replace(blob, holders=tuple(replace(h, dropping=True) if h in holders else h for h in blob.holders))
        shard = with_blob(stored.value, marked)
        revision = await self._records.commit([stored.unchanged()], [put(stored.key, shard)])
        return Stored(stored.key, shard, revision)

    async def forget(self, stored: Stored[Shard], blob_id: BlobId, holder: Holder) -> None:
        """It will not come back, and others have enough. It holds only for the very record on which it was decided."""
        blob = find_blob(stored.value, blob_id)
        if blob is not None:
            left = replace(blob, holders=tuple(known for known in blob.holders if known != holder))
            await self._records.commit([stored.unchanged()], [put(stored.key, with_blob(stored.value, left))])

    async def remove(self, shard_key: str, blob_id: BlobId, holder: Holder) -> Removal:
        """The fragment is not there: lost, bad, or dropped as it was told."""
        outcome = Removal.MOVED

        def edit(shard: Shard, blob: Blob) -> Blob | None:
            nonlocal outcome
            outcome = Removal.MOVED
            if holder not in blob.holders:
                return None
            left = replace(blob, holders=tuple(known for known in blob.holders if known != holder))
            twin = twin_of(shard, blob)
            if not counted(left) and not (twin and is_readable(twin, counted(twin))):
                outcome = Removal.LAST
                return None
            outcome = Removal.REMOVED
            return left

        edited = await self._edit(shard_key, blob_id, edit)
        return Removal.MOVED if edited is None and outcome is Removal.REMOVED else outcome

    # Whole blobs

    async def swap(self, shard_key: str, old_id: BlobId, new: Blob) -> bool:
        """P2: the same content in another form takes the place of ``old_id``, all at once. False if nobody wants it any
        more. What the old one's holders have is named by nothing from here on, and collected as such.
        """

        def edit(shard: Shard, blob: Blob) -> Blob | None:
            return new if _is_wanted(shard, blob) and _is_same(blob, new) else None

        return await self._edit(shard_key, old_id, edit, _known_nodes(new.holders)) is not None

    async def bring_back(self, shard_key: str, old_id: BlobId, new: Blob) -> bool:
        """As ``swap``, with ``new`` from a backup."""

        def edit(shard: Shard) -> Shard | None:
            blob = find_blob(shard, old_id)
            if blob is None or not _is_same(blob.as_saved, new.as_saved):
                return None
            # Nobody may be on record for it, and it is wanted all the same.
            edited = with_blob(shard, new, old_id)
            return replace(edited, evicted=shard.evicted and any(not known.holders for known in edited.blobs))

        return await self._edit_shard(shard_key, edit, _known_nodes(new.holders)) is not None

    async def add_mirror(self, shard_key: str, blob_id: BlobId, mirror: Blob) -> bool:
        """Beside ``blob_id``. False if nobody wants it any more, or there is one already."""

        def edit(shard: Shard) -> Shard | None:
            blob = next((known for known in shard.blobs if known.id == blob_id), None)
            if blob is None or twin_of(shard, blob) or not _is_wanted(shard, blob) or not _is_same(blob, mirror):
                return None
            return replace(shard, mirrors=tuple(sorted((*shard.mirrors, mirror), key=lambda known: known.ordinal)))

        return await self._edit_shard(shard_key, edit, _known_nodes(mirror.holders)) is not None

    async def remove_dropped(self, shard_key: str, blob_id: BlobId, dropped: Set[tuple[NodeId, int]]) -> bool:
        """What was marked as dropping is gone from these places; a mirror that has no holder left is forgotten. True if
        it is.
        """

        def edit(shard: Shard) -> Shard | None:
            blob = next((known for known in shard.mirrors if known.id == blob_id), None)
            if blob is None:
                return None
            left = tuple(h for h in blob.holders if not h.dropping or _place(h) not in dropped)
            if left:
                return with_blob(shard, replace(blob, holders=left))
            return replace(shard, mirrors=tuple(known for known in shard.mirrors if known.id != blob_id))

        edited = await self._edit_shard(shard_key, edit)
        return edited is None or find_blob(edited, blob_id) is None

    # How

    async def _edit(
        self,
        shard_key: str,
        blob_id: BlobId,
        edit: Callable[[Shard, Blob], Blob | None],
        compare: Sequence[Compare] = (),
    ) -> Shard | None:
        """The shard with what ``edit`` made of the blob; None if the blob is gone or ``edit`` declined."""

        def edit_shard(shard: Shard) -> Shard | None:
            blob = find_blob(shard, blob_id)
            edited = edit(shard, blob) if blob else None
            return with_blob(shard, edited, blob_id) if edited else None

        return await self._edit_shard(shard_key, edit_shard, compare)

    async def _edit_shard(
        self, shard_key: str, edit: Callable[[Shard], Shard | None], compare: Sequence[Compare] = ()
    ) -> Shard | None:
        for _ in range(MAX_TRIES):
            stored = await self._records.get(shard_key, Shard)
            edited = edit(stored.value) if stored else None
            if stored is None or edited is None or edited == stored.value:
                return edited
            try:
                await self._records.commit([stored.unchanged(), *compare], [put(shard_key, edited)])
            except ConflictError:
                continue
            return edited
        raise UnavailableError(f"the record {shard_key} changes all the time, or a node left: try again")


def find_blob(shard: Shard, blob_id: BlobId) -> Blob | None:
    return next((blob for blob in shard.all_blobs if blob.id == blob_id), None)


def with_blob(shard: Shard, blob: Blob, instead_of: BlobId | None = None) -> Shard:
    """``blob`` in its place, own or mirror."""
    old_id = instead_of or blob.id

    def put_in(blobs: tuple[Blob, ...]) -> tuple[Blob, ...]:
        return tuple(blob if known.id == old_id else known for known in blobs)

    return replace(shard, blobs=put_in(shard.blobs), mirrors=put_in(shard.mirrors))


def _place(holder: Holder) -> tuple[NodeId, int]:
    return (holder.node_id, holder.fragment_index)


def _is_wanted(shard: Shard, blob: Blob) -> bool:
    """Not if all of it is on its way out, as a mirror goes. What lost all that counts is wanted while its twin can
    bring it back.
    """
    if counted(blob):
        return True
    is_mirror = any(mirror.id == blob.id for mirror in shard.mirrors)
    twin = twin_of(shard, blob)
    return not (is_mirror and blob.holders) and twin is not None and bool(counted(twin))


def _is_same(one: Blob, other: Blob) -> bool:
    return (one.ordinal, one.size_bytes, one.hash) == (other.ordinal, other.size_bytes, other.hash)


def _known_nodes(holders: Sequence[Holder]) -> list[Compare]:
    """P7: a node that was removed meanwhile, or whose removal looks through the catalog, is not put on record."""
    node_ids = sorted({holder.node_id for holder in holders})
    return [
        *(Compare.present(keys.node(node_id)) for node_id in node_ids),
        *(Compare.absent(keys.removing(node_id)) for node_id in node_ids),
    ]
