"""Content that no backup uses any more: marked and swept, in the memory of a part of it at a time (I10)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import SdrsError
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.records import CopyState, ObjectRecord, ObjectState
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.meta.store import Delete, Op
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.fault_points import reach

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket

_MAX_MARKED = 500_000
_BATCH = 50  # of each, a compare and a write in one transaction
_DIGITS = "0123456789abcdef"


class Sweeping:
    def __init__(self, records: Records, copies: Copies, buckets: Buckets, cluster_id: str) -> None:
        self._records = records
        self._copies = copies
        self._buckets = buckets
        self._cluster_id = cluster_id

    async def count(self, target: TargetName, without: Collection[SaveId]) -> tuple[int, int]:
        """How many objects, and their bytes, would go with these backups."""
        return await self._count(target, frozenset(without), "")

    async def _count(self, target: TargetName, without: frozenset[SaveId], prefix: str) -> tuple[int, int]:
        marked = await self._marked(target, prefix, without)
        if marked is None:
            parts = [await self._count(target, without, prefix + digit) for digit in _DIGITS]
            return sum(count for count, _ in parts), sum(size for _, size in parts)
        found = [
            stored.value.place.size_bytes
            async for stored in self._copies.objects(target, prefix)
            if _identity(stored) not in marked
        ]
        return len(found), sum(found)

    async def carry_out(self, run: RunProgress) -> None:
        # What a damaged backup still names is kept until that is mended, or gone.
        damaged = [
            stored.value.save_id
            async for stored in self._copies.of_target(run.target.name)
            if stored.value.damage and stored.value.state is CopyState.LISTED
        ]
        await self._sweep(run, frozenset(damaged), "")

    async def _sweep(self, run: RunProgress, damaged: frozenset[SaveId], prefix: str) -> None:
        target = run.target
        marked = await self._marked(target.name, prefix)
        if marked is None:
            for digit in _DIGITS:
                await self._sweep(run, damaged, prefix + digit)
            return
        in_doubt = await self._used_by(target.name, damaged)
        batch: list[Stored[ObjectRecord]] = []
        async for stored in self._copies.objects(target.name, prefix):
            is_used = _identity(stored) in marked
            if not is_used or (stored.value.former and _identity(stored) not in in_doubt):
                batch.append(stored)
            if len(batch) == _BATCH:
                await self._let_go(run, batch, marked)
                batch = []
        await self._let_go(run, batch, marked)

    async def _marked(
        self, target: TargetName, prefix: str, without: frozenset[SaveId] = frozenset()
    ) -> set[bytes] | None:
        """What backups use, also those on their way; None if that is too much to hold at once."""
        found: set[bytes] = set()
        async for stored in self._copies.uses(target):
            if SaveId(stored.key.split("/")[-2]) in without:
                continue
            found.update(bytes.fromhex(one) for one in stored.value.identities if one.startswith(prefix))
            if len(found) > _MAX_MARKED:
                return None
        return found

    async def _used_by(self, target: TargetName, save_ids: Collection[SaveId]) -> set[bytes]:
        found: set[bytes] = set()
        for save_id in save_ids:
            async for stored in self._copies.uses(target, save_id):
                found.update(map(bytes.fromhex, stored.value.identities))
        return found

    async def _let_go(self, run: RunProgress, batch: Sequence[Stored[ObjectRecord]], marked: set[bytes]) -> None:
        if not batch:
            return
        await run.keep()
        condemned: list[Stored[ObjectRecord]] = []
        for stored in batch:
            is_used = _identity(stored) in marked
            condemned.append(stored if is_used else replace(stored, value=_condemned(stored.value)))
        changed = [(old, new) for old, new in zip(batch, condemned, strict=True) if old.value != new.value]
        if changed:
            revision = await self._records.commit(
                [old.unchanged() for old, _ in changed], [put(new.key, new.value) for _, new in changed]
            )
            keys = {new.key for _, new in changed}
            condemned = [replace(one, revision=revision) if one.key in keys else one for one in condemned]
        reach("prune.objects_condemned")
        half = [old.value.place.key for old, _ in changed if old.value.state is ObjectState.UPLOADING]
        refused = await self._delete(run.target, [key for one in condemned for key in _going(one.value)], half)
        reach("prune.objects_deleted")
        for why in list(refused.values())[:1]:
            run.record.tell(f"{len(refused)} objects cannot be deleted yet, it is tried again: {why.message}")
        writes: list[Op] = []
        for one in condemned:
            left = tuple(key for key in _going(one.value) if key in refused)
            if one.value.state is not ObjectState.CONDEMNED:
                writes.append(put(one.key, replace(one.value, former=left)))
            elif not left:
                writes.append(Delete(one.key))
                run.record.deleted_objects += 1
                run.record.deleted_bytes += one.value.place.size_bytes
        if writes:
            await self._records.commit([one.unchanged() for one in condemned], writes)
        reach("prune.objects_forgotten")

    async def _delete(self, target: Target, going: Sequence[str], half: Sequence[str]) -> dict[str, SdrsError]:
        await self._records.check_leading()
        return await self._buckets.call(target, _delete, self._cluster_id, list(going), half)


def _identity(stored: Stored[ObjectRecord]) -> bytes:
    return bytes.fromhex(stored.key.rpartition("/")[2])


def _condemned(record: ObjectRecord) -> ObjectRecord:
    return replace(record, state=ObjectState.CONDEMNED)


def _going(record: ObjectRecord) -> list[str]:
    """The names of what goes: all of it, or of content that is in use only what stands there under former names."""
    if record.state is ObjectState.CONDEMNED:
        return [record.place.key, *record.also, *record.former]
    return list(record.former)


def _delete(bucket: Bucket, cluster_id: str, going: list[str], half: Sequence[str]) -> dict[str, SdrsError]:
    """With what was sent of those that never became whole."""
    found = manifests(bucket, cluster_id)
    for key in half:
        for upload in bucket.store.uploads(key):
            if upload.key == key:
                found.abort(upload)
    return found.delete(going)
