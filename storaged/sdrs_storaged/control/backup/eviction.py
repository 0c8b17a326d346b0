"""Checkpoints that are old enough are kept in the backup only (P25).

Every byte of the backup is read and compared first. Then one transaction, on the very record on which it was decided,
says that the cluster no longer has it; only after that do nodes go off the records of its shards, and what they have is
collected as nobody's. Interrupted, it is taken up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sdrs_core.backup.eviction import decide_eviction
from sdrs_core.backup.targets import Policy, TargetName
from sdrs_core.checkpoints import Save, Shard
from sdrs_core.errors import SdrsError, StaleTermError
from sdrs_core.ids import SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.locks import SaveLocks
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.records import Copy
from sdrs_storaged.control.backup.shedding import without_holders
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.meta.store import Delete
from sdrs_storaged.control.records import ConflictError, Records, Stored, put
from sdrs_storaged.control.rounds import Rounds
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("eviction")

# What is wrong with a backed-up checkpoint, once every byte of it was read; it is on its record then.
VerifyAll = Callable[[Copy], Awaitable[str]]


class Evictor:
    def __init__(
        self,
        records: Records,
        catalog: Catalog,
        rounds: Rounds,
        policies: Policies,
        copies: Copies,
        locks: SaveLocks,
        events: Events,
        clock: Clock,
        *,
        verify: VerifyAll,
        is_busy: Callable[[TargetName], bool],
        interval_seconds: float,
    ) -> None:
        self._records = records
        self._catalog = catalog
        self._rounds = rounds
        self._policies = policies
        self._copies = copies
        self._locks = locks
        self._events = events
        self._clock = clock
        self.verify = verify
        self._is_busy = is_busy
        self._interval_seconds = interval_seconds
        self._has_shed = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            try:
                await self.evict()
            except StaleTermError:
                raise
            except SdrsError as error:
                log.warning("eviction_interrupted", why=error.message)
            except Exception as error:
                # A defect here must not take the control plane down with it.
                log.error("eviction_failed", exc_info=error)

    async def evict(self) -> None:
        await self._shed_leftovers()
        for record in self._policies.all():
            # While a run is under way, the bucket is not looked at as if nothing in it changed.
            if record.policy.evict_after_seconds and not self._is_busy(record.policy.target):
                for stored in await self._candidates(record.policy):
                    await self._try(stored, record.policy)

    async def _shed_leftovers(self) -> None:
        """Once for each controller: what another was interrupted in, be it an eviction or a recall."""
        if self._has_shed:
            return
        async for stored in self._records.all(keys.SAVES, Save):
            if stored.value.evicted and not self._locks.is_held(stored.value.save_id):
                async with self._locks.hold(stored.value.save_id):
                    await self._shed(stored)
        self._has_shed = True

    async def _candidates(self, policy: Policy) -> list[Stored[Save]]:
        prefix = keys.saves_of_job(policy.job) if policy.job else keys.SAVES
        # A job's own policy goes before that of its pool.
        others = {
            record.policy.job
            for record in self._policies.all()
            if not policy.job and (record.policy.target, record.policy.pool) == (policy.target, policy.pool)
        }
        found: list[Stored[Save]] = []
        of_job: dict[SaveId, Stored[Save]] = {}
        job = ""

        def decide() -> list[Stored[Save]]:
            decided = decide_eviction(
                [stored.value for stored in of_job.values()],
                evict_after_seconds=policy.evict_after_seconds,
                pinned=self._rounds.pinned(),
                now_unix_ms=self._clock.unix_ms(),
            )
            return [of_job[save.save_id] for save in decided]

        async for stored in self._records.all(prefix, Save):
            if stored.value.job != job:
                found += decide()
                job, of_job = stored.value.job, {}
            is_here = stored.value.pool == policy.pool and stored.value.state.is_readable
            if is_here and stored.value.job not in others:
                of_job[stored.value.save_id] = stored
        return found + decide()

    async def _try(self, stored: Stored[Save], policy: Policy) -> None:
        """What goes wrong with one (it is pinned, it changed, the backup is damaged) must not keep the others."""
        save = stored.value
        if self._locks.is_held(save.save_id):
            return
        try:
            async with self._locks.hold(save.save_id):
                await self.evict_one(stored, policy.target)
        except StaleTermError:
            raise
        except (SdrsError, ConflictError) as error:
            log.warning("not_evicted", job=save.job, step=save.step, why=error.message)

    async def evict_one(self, stored: Stored[Save], target: TargetName) -> None:
        """Whoever calls holds its lock."""
        save = stored.value
        if await self._catalog.homes.is_referred(save):
            return  # once nobody does
        copy = await self._copies.get(target, save.save_id)
        if copy is None or not copy.value.is_good:
            return  # the next backup has it
        damage = await self.verify(copy.value)
        if damage:
            log.error("not_evicted", job=save.job, step=save.step, target=target, damage=damage)
            return
        reach("evict.verified")
        copy = await self._copies.get(target, save.save_id)
        if copy is None or not copy.value.is_good:
            return
        evicted = replace(
            save, evicted=target, homes=(), referenced_bytes=0, spared_bytes=0, mirror_pool="", degraded=False
        )
        # Its record is written as well: whoever is about to prune it has read an older one, and is refused (P25).
        seen = replace(copy.value, verified_unix_ms=self._clock.unix_ms())
        text = f"{save.title} was verified in backup {target}, and is kept there only from now on"
        await self._catalog.write(
            stored,
            evicted,
            [stored.unchanged(), copy.unchanged(), await self._rounds.unpinned(save)],
            [
                put(stored.key, evicted),
                put(copy.key, seen),
                *(Delete(keys.reference(home, save.save_id)) for home in save.homes),
                self._events.entry("checkpoint_evicted", text, pool=save.pool),
            ],
        )
        reach("evict.marked")
        log.info("checkpoint_evicted", job=save.job, step=save.step, target=target, size_bytes=save.size_bytes)
        await self._shed(stored)

    async def _shed(self, stored: Stored[Save]) -> None:
        """P14: on no record, whatever nodes have of it does not count. Who reads it reads on until it is collected.

        Whoever calls holds its lock: it may have been recalled since it was read, but is not from here on.
        """
        now = await self._records.get(stored.key, Save)
        if now is None or now.value.save_id != stored.value.save_id or not now.value.evicted:
            return
        async for shard in self._records.all(keys.shards(stored.value.save_id), Shard):
            await without_holders(self._records, shard)
            reach("evict.shed")
