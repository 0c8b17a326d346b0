"""Pending saves, and how they end: committed, or aborted (I2).

Pending saves are few, so they are held in memory with a lease each: whoever waits for a save renews it, and one that
nobody renews is aborted (its blobs then go by I7).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState, Shard
from sdrs_core.errors import InternalError, NotFoundError, PermissionDeniedError, UnavailableError
from sdrs_core.fault_points import reach
from sdrs_core.ids import JobName, NodeId, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Delete, Op
from sdrs_storaged.control.records import ConflictError, Records, Stored, put
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.logs import get_log

log = get_log("commits")

_MAX_TRIES = 20


@dataclass(slots=True)
class Pending:
    """A save in the making: its record as the commit will compare it, and what is known of its shards."""

    stored: Stored[Save]
    renewed_seconds: float
    ranks: set[int] = field(default_factory=set)
    holders: set[NodeId] = field(default_factory=set)
    size_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, shard: Shard) -> None:
        if shard.rank not in self.ranks:
            self.ranks.add(shard.rank)
            self.size_bytes += shard.size_bytes
            self.holders.update(holder.node_id for blob in shard.blobs for holder in blob.holders)


class Commits:
    def __init__(self, records: Records, members: Members, clock: Clock, tally: Tally, *, ttl_seconds: float) -> None:
        self._records = records
        self._members = members
        self._clock = clock
        self._tally = tally
        self._ttl_seconds = ttl_seconds
        self._pending: dict[SaveId, Pending] = {}

    async def load(self) -> None:
        """Take over what a former controller left pending; each gets a fresh lease."""
        async for stored in self._records.all(keys.SAVES, Save):
            self._tally.add(stored.value)
            if stored.value.state is SaveState.PENDING:
                await self.take_over(stored)
        for pending in list(self._pending.values()):
            await self.commit_if_complete(pending)

    def __len__(self) -> int:
        return len(self._pending)

    def get(self, save_id: str) -> Pending | None:
        return self._pending.get(SaveId(save_id))

    def of_job(self, job: JobName) -> Iterator[Pending]:
        return (pending for pending in list(self._pending.values()) if pending.stored.value.job == job)

    def track(self, stored: Stored[Save]) -> Pending:
        pending = Pending(stored, self._clock.monotonic_seconds())
        self._pending[stored.value.save_id] = pending
        return pending

    async def take_over(self, stored: Stored[Save]) -> Pending:
        pending = self.track(stored)
        async for shard in self._records.all(keys.shards(stored.value.save_id), Shard):
            pending.count(shard.value)
        return pending

    def renew(self, pending: Pending) -> None:
        pending.renewed_seconds = self._clock.monotonic_seconds()

    # Commit

    async def commit_if_complete(self, pending: Pending) -> bool:
        save = pending.stored.value
        if pending.ended.is_set():
            return (await self.find(save.save_id, save.job, save.step)).state.is_readable
        if len(pending.ranks) < save.world_size:
            return False
        for _ in range(_MAX_TRIES):
            try:
                await self._commit(pending)
                return True
            except ConflictError:
                # Another receipt's handler may have committed it, or the job or layout moved: look again.
                if pending.ended.is_set():
                    return (await self.find(save.save_id, save.job, save.step)).state.is_readable
        raise UnavailableError(
            f"{save.title}: the commit lost {_MAX_TRIES} races in a row; it is tried again with the next receipt"
        )

    async def _commit(self, pending: Pending) -> None:
        save = pending.stored.value
        job = await self._records.get(keys.job(save.job), Job)
        if job is None:
            raise InternalError(f'the record of job "{save.job}" is gone')
        layout = self._members.layout(save.pool)
        members = {node_id for group in self._members.groups(pool=save.pool) for node_id in group.members}
        gone = pending.holders - members
        if gone:
            # P7: a receipt that names a node which left the pool since does not count.
            await self.end_aborted(pending, f"node {', '.join(sorted(gone))} left the pool before the commit")
            raise ConflictError("the layout moved")
        left_behind = (
            job.value.attempt > save.attempt
            and job.value.resumed_step is not None
            and save.step > job.value.resumed_step
        )
        committed = replace(
            save,
            state=SaveState.SET_ASIDE if left_behind else SaveState.COMMITTED,
            note=f"attempt {job.value.attempt} resumed from step {job.value.resumed_step}" if left_behind else "",
            level=self._members.pool(save.pool).level,
            size_bytes=pending.size_bytes,
            committed_unix_ms=self._clock.unix_ms(),
            layout=layout.value.number,
        )
        reach("commit.before")
        # I2: publish last, on one key. Whoever sees the commit may assume every receipt in it.
        compare = [pending.stored.unchanged(), layout.unchanged(), job.unchanged()]
        await self._records.commit(compare, [put(pending.stored.key, committed)])
        reach("commit.after")
        self._tally.change(save, committed)
        self._end(pending)
        log.info(
            "checkpoint_committed", job=save.job, step=save.step, attempt=save.attempt, size_bytes=committed.size_bytes
        )

    # Abort

    async def abort(self, save_id: SaveId, capability: str, reason: str) -> None:
        if not hmac.compare_digest(capability, self._members.capability(save_id)):
            raise PermissionDeniedError(f"the capability does not belong to save {save_id}")
        pending = self._pending.get(save_id)
        if pending:
            await self.end_aborted(pending, reason[:500] or "given up by its client")

    async def end_aborted(self, pending: Pending, reason: str) -> None:
        """Pending → aborted, by transaction: from here on its blobs are nobody's (P13)."""
        save = pending.stored.value
        aborted = replace(save, state=SaveState.ABORTED, note=reason, ended_unix_ms=self._clock.unix_ms())
        writes: list[Op] = [Delete(pending.stored.key), put(keys.trash(save.save_id), aborted)]
        try:
            await self._records.commit([pending.stored.unchanged()], writes)
        except ConflictError:
            return  # it was committed in between: better
        self._tally.remove(save)
        self._end(pending)
        log.warning("save_aborted", job=save.job, step=save.step, attempt=save.attempt, why=reason)

    async def expire(self) -> None:
        """Abort what nobody renewed. The lease is counted from this controller's own start at the earliest."""
        now = self._clock.monotonic_seconds()
        for pending in list(self._pending.values()):
            if now - pending.renewed_seconds > self._ttl_seconds:
                missing = pending.stored.value.world_size - len(pending.ranks)
                await self.end_aborted(
                    pending, f"abandoned: {missing} of {pending.stored.value.world_size} ranks never came"
                )

    # Wait

    async def wait(self, save_id: SaveId, job: JobName, step: int, wait_ms: int) -> tuple[Save, int]:
        """The save as it stands, after holding back for up to ``wait_ms`` while it is pending; and how many shards
        are in.
        """
        pending = self._pending.get(save_id)
        if pending:
            self.renew(pending)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await pending.ended.wait()
            except TimeoutError:
                self.renew(pending)
        save = await self.find(save_id, job, step)
        return save, len(pending.ranks) if pending else 0

    async def find(self, save_id: SaveId, job: JobName, step: int) -> Save:
        """A save by its id, wherever it is now (P6)."""
        async for stored in self._records.all(keys.saves_of_step(job, step), Save):
            if stored.value.save_id == save_id:
                return stored.value
        trashed = await self._records.get(keys.trash(save_id), Save)
        if trashed:
            return trashed.value
        raise NotFoundError(f'save {save_id} of job "{job}" step {step} does not exist (any more)')

    def _end(self, pending: Pending) -> None:
        self._pending.pop(pending.stored.value.save_id, None)
        pending.ended.set()
