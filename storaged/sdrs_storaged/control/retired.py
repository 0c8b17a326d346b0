"""Deleted saves that others refer to: kept while they do, and of them only what is needed.

Each goes on into the trash once nobody refers to it. Until then, when its grace period is over, what nobody refers to
is taken off its record; the fragments are then nobody's, and go as such. Both decide on the save's own record, which
everybody who begins to refer to it changes (P13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Save, SaveState, Shard
from sdrs_core.ids import SaveId
from sdrs_core.references import needed_of
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.homes import Referral
from sdrs_storaged.control.meta.store import Delete, Op
from sdrs_storaged.control.records import ConflictError, Records, Stored, batched, put
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("retired")

# Beside the shards of a batch there are its own record and what it refers to itself.
_PAGE_SHARDS = 40


class Retired:
    def __init__(self, records: Records, catalog: Catalog, clock: Clock, *, grace_seconds: float) -> None:
        self._records = records
        self._catalog = catalog
        self._clock = clock
        self._grace_ms = grace_seconds * 1000

    async def look_at(self, stored: Stored[Save]) -> None:
        """``stored`` was read before anything else is: whatever is decided holds only while it is unchanged."""
        save = stored.value
        if save.state is not SaveState.RETIRED:
            return
        referring = [r async for r in self._records.all(keys.references_to(save.save_id), Referral)]
        try:
            if not referring:
                await self._let_go(stored)
            elif self._clock.unix_ms() - save.ended_unix_ms >= self._grace_ms:
                await self._trim(stored, referring)
        except ConflictError:
            return  # somebody refers to it now, or it was undeleted: it is looked at again

    async def _let_go(self, stored: Stored[Save]) -> None:
        save = stored.value
        deleted = replace(save, state=SaveState.DELETED)
        await self._catalog.write(
            stored, None, [stored.unchanged()], [Delete(stored.key), put(keys.trash(save.save_id), deleted)]
        )
        log.info("retired_let_go", job=save.job, step=save.step, save=save.save_id)

    # What nobody refers to

    async def _trim(self, stored: Stored[Save], referring: Sequence[Stored[Referral]]) -> None:
        mark = f"{stored.value.referrals}:{len(referring)}"
        if stored.value.trimmed == mark or await self._is_any_pending(referring):
            return
        who = [SaveId(referral.key.rpartition("/")[2]) for referral in referring]
        before_bytes = stored.value.stored_bytes
        after, more = "", True
        while more:
            page, more = await self._records.page(
                keys.shards(stored.value.save_id), Shard, after=after, limit=_PAGE_SHARDS
            )
            after = page[-1].key if page else after
            trimmed = [(shard, await self._trimmed(shard.value, who)) for shard in page]
            changed = [(shard, left) for shard, left in trimmed if left != shard.value]
            writes = (((shard, left), put(shard.key, left)) for shard, left in changed)
            for batch in batched(writes):
                stored = await self._take_off(stored, [pair for pair, _ in batch], [write for _, write in batch])
        done = replace(stored.value, trimmed=mark)
        await self._catalog.write(stored, done, [stored.unchanged()], [put(stored.key, done)])
        log.info("retired_trimmed", save=done.save_id, step=done.step, freed_bytes=before_bytes - done.stored_bytes)

    async def _is_any_pending(self, referring: Sequence[Stored[Referral]]) -> bool:
        """A rank of it may be about to refer to anything; what has ended says by its shards what it needs."""
        for referral in referring:
            who = referral.value
            found = await self._records.get(keys.save(who.job, who.step, who.attempt), Save)
            if found and referral.key.endswith(f"/{found.value.save_id}") and found.value.state is SaveState.PENDING:
                return True
        return False

    async def _trimmed(self, shard: Shard, who: Sequence[SaveId]) -> Shard:
        needed: set[int] = set()
        for save_id in who:
            other = await self._records.get(keys.shard(save_id, shard.rank), Shard)
            needed |= needed_of(shard.save_id, other.value) if other else set()
        return replace(
            shard,
            blobs=tuple(blob for blob in shard.blobs if blob.ordinal in needed),
            mirrors=tuple(blob for blob in shard.mirrors if blob.ordinal in needed),
            references=(),
        )

    async def _take_off(
        self, stored: Stored[Save], shards: Sequence[tuple[Stored[Shard], Shard]], writes: Sequence[Op]
    ) -> Stored[Save]:
        """Final, like a condemnation: from here on the save cannot be undeleted, and needs nothing itself."""
        save = stored.value
        freed_bytes = sum(
            sum(blob.size_bytes for blob in shard.value.blobs) - sum(blob.size_bytes for blob in left.blobs)
            for shard, left in shards
        )
        trimmed = replace(
            save,
            size_bytes=save.stored_bytes - freed_bytes,
            referenced_bytes=0,
            spared_bytes=0,
            homes=(),
            trimmed=save.trimmed or "begun",
        )
        own = [Delete(keys.reference(home, save.save_id)) for home in save.homes]
        revision = await self._catalog.write(
            stored,
            trimmed,
            [stored.unchanged(), *(shard.unchanged() for shard, _ in shards)],
            [put(stored.key, trimmed), *writes, *own],
        )
        reach("retired.trimmed")
        return Stored(stored.key, trimmed, revision)
