"""How a save comes to refer to blobs of an earlier one: the record first, then the shard that needs it (P13).

The home's own record is changed by every save that begins to refer to it. Whoever lets the home go compares that
record, so it has either seen the reference or is refused; there is no moment in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, ContentKind, Home, Reference, Save, Shard
from sdrs_core.cluster import NodeState, Pool
from sdrs_core.errors import SaveFailedError
from sdrs_core.ids import JobName, SaveId
from sdrs_core.redundancy import worth
from sdrs_core.references import check_references, offers_of
from sdrs_storaged.control import keys
from sdrs_storaged.control.commits import Pending
from sdrs_storaged.control.homes import Homes, Referral
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare, Op
from sdrs_storaged.control.records import Records, Stored, put
from sdrs_storaged.fault_points import reach

# P3: with two writes for each they fit into a transaction.
MAX_HOMES = 50
_MAX_LOOKED_AT = 50


class Referrals:
    def __init__(self, records: Records, members: Members) -> None:
        self._records = records
        self._members = members
        self._homes = Homes(records)

    async def offers(self, job: JobName, step: int, pool: Pool, kind: ContentKind, rank: int) -> tuple[Reference, ...]:
        """What a rank of a new save may refer to: what the newest good generation of its step, else of its job, has in
        the same pool, as far as all that the pool asks for is there now. What lost some is stored anew: its save is no
        safer than that.
        """
        for prefix in (keys.saves_of_step(job, step), keys.saves_of_job(job)):
            page, _ = await self._records.page(prefix, Save, limit=_MAX_LOOKED_AT)
            for stored in page:
                save = stored.value
                is_like = (save.pool, save.kind) == (pool.name, kind) and rank < save.world_size
                is_here = save.state.is_readable and not save.evicted
                if is_like and is_here and save.level >= pool.level and not save.damage:
                    shard = await self._records.get(keys.shard(save.save_id, rank), Shard)
                    return await self._sound(save, shard.value, pool) if shard else ()
        return ()

    async def _sound(self, save: Save, shard: Shard, pool: Pool) -> tuple[Reference, ...]:
        blobs = {blob.ordinal: blob for blob in (await self._homes.resolved(shard)).blobs}
        domains, up = self._members.domains(), {n.id for n in self._members.nodes() if n.state is NodeState.UP}

        def is_whole(blob: Blob) -> bool:
            live = replace(blob, holders=tuple(holder for holder in blob.holders if holder.node_id in up))
            return worth(pool, [live], domains) == (pool.level, False)

        return tuple(offer for offer in offers_of(save, shard) if is_whole(blobs[offer.ordinal]))

    async def check(self, save: Save, shard: Shard) -> None:
        """P5: only what the same job and rank has stored in the same pool, as it says, as well as the pool promises.
        SaveFailedError: it has to be stored.
        """
        pool = self._members.pool(save.pool)
        homes = await self._homes.shards(shard)
        self._check_stored(save, shard, homes)
        why = ""
        for save_id, step in {(ref.home.save_id, ref.home.step) for ref in shard.references}:
            home = await self._homes.save(save.job, Home(save_id, step, 0)) if not why else None
            if home is None or home.value.pool != save.pool or home.value.damage or home.value.evicted:
                why = why or f"save {save_id} is not one that it may refer to (any more)"
        if not why and len({*save.homes, *homes}) > MAX_HOMES:
            why = f"it would refer to more than {MAX_HOMES} saves"
        if not why:
            level, _ = worth(pool, [blob for _, blob in await self._homes.referred(shard)], self._members.domains())
            if level < pool.level:
                why = f"what it refers to is stored at {level}, its pool promises {pool.level}"
        if why:
            raise _refusal(save, shard, why)

    def _check_stored(self, save: Save, shard: Shard, homes: Mapping[SaveId, Stored[Shard]]) -> None:
        found = [homes.get(reference.home.save_id) for reference in shard.references]
        why = check_references(shard, [home.value if home else None for home in found])
        if why:
            raise _refusal(save, shard, why)

    async def write(self, pending: Pending, shards: Sequence[Shard]) -> None:
        """Put on record that the save refers to the homes of ``shards``; ConflictError if one of them changed."""
        await self._write(pending, shards)
        # Once that is on record and while the save is pending, nothing is taken off its homes any more. What was there
        # when the receipt was checked may have been trimmed since.
        for shard in shards:
            if shard.references:
                self._check_stored(pending.stored.value, shard, await self._homes.shards(shard))

    async def _write(self, pending: Pending, shards: Sequence[Shard]) -> None:
        save = pending.stored.value
        named = {ref.home.save_id: ref.home for shard in shards for ref in shard.references}
        new = [home for save_id, home in sorted(named.items()) if save_id not in save.homes]
        if not new:
            return
        compare: list[Compare] = [pending.stored.unchanged()]
        writes: list[Op] = []
        for home in new:
            stored = await self._homes.save(save.job, home)
            if stored is None or stored.value.evicted:
                raise SaveFailedError(
                    f"{save.title}: save {home.save_id}, to which it refers, is gone: store all of it"
                )
            # P13: changed, not only compared: whoever read it before and is about to let it go is refused.
            referred = replace(stored.value, referrals=stored.value.referrals + 1)
            compare.append(stored.unchanged())
            referral = Referral(save.job, save.step, save.attempt)
            writes += [put(stored.key, referred), put(keys.reference(home.save_id, save.save_id), referral)]
        referring = replace(save, homes=(*save.homes, *(home.save_id for home in new)))
        revision = await self._records.commit(compare, [put(pending.stored.key, referring), *writes])
        pending.stored = Stored(pending.stored.key, referring, revision)
        reach("receipt.referred")


def _refusal(save: Save, shard: Shard, why: str) -> SaveFailedError:
    return SaveFailedError(f"{save.title}, rank {shard.rank}: {why}: store all of it")


def counted_bytes(size_bytes: int, offers: Sequence[Reference]) -> int:
    """What a rank of ``size_bytes`` stores if all that it was offered is unchanged."""
    return max(0, size_bytes - sum(offer.size_bytes for offer in offers if offer.blake3 and offer.ordinal))
