"""Pending saves, and how they end: committed, or aborted (I2).

Pending saves are few, so they are held in memory with a lease each: whoever waits for a save renews it, and one that
nobody renews is aborted (its blobs then go by I7).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState, Shard
from sdrs_core.errors import (
    InternalError,
    NotFoundError,
    SdrsError,
    StaleAttemptError,
    StaleTermError,
    UnavailableError,
)
from sdrs_core.ids import GroupId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.redundancy import worth
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.homes import Homes
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Delete, Op
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("commits")


@dataclass(slots=True)
class Pending:
    """A save in the making: its record as the commit will compare it, and what is known of its shards."""

    stored: Stored[Save]
    renewed_seconds: float
    ranks: set[int] = field(default_factory=set)
    holders: set[NodeId] = field(default_factory=set)
    # What the blobs that are in are worth: the lowest level of any, and whether any has too little redundancy.
    level: Level | None = None
    degraded: bool = False
    # Ranks that were sent to a group and are not in yet.
    sending: dict[int, GroupId] = field(default_factory=dict)
    # What they said that they bring.
    expected_bytes: dict[int, int] = field(default_factory=dict)
    size_bytes: int = 0
    referenced_bytes: int = 0
    spared_bytes: int = 0
    superseding: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, shard: Shard, level: Level, degraded: bool) -> None:
        self.sending.pop(shard.rank, None)
        self.expected_bytes.pop(shard.rank, None)
        if shard.rank not in self.ranks:
            self.level = level if self.level is None else min(self.level, level)
            self.degraded |= degraded
            self.ranks.add(shard.rank)
            self.size_bytes += shard.size_bytes
            self.referenced_bytes += shard.referenced_bytes
            self.spared_bytes += shard.spared_bytes
            self.holders.update(holder.node_id for blob in shard.blobs for holder in blob.holders)


class Commits:
    def __init__(self, records: Records, members: Members, clock: Clock, tally: Tally, *, ttl_seconds: float) -> None:
        self._records = records
        self._members = members
        self._clock = clock
        self._tally = tally
        self._ttl_seconds = ttl_seconds
        self._pending: dict[SaveId, Pending] = {}
        # By save: several ranks may have tried to make the same one, each under an id of its own.
        self._doubtful: dict[SaveId, tuple[str, Save]] = {}
        self._progressed = asyncio.Event()
        self._homes = Homes(records)
        # Told of a commit that has less redundancy than its pool asks for, or is still to be mirrored.
        self.on_unfinished: Callable[[], None] = lambda: None
        # Told of each commit; it must not wait for anything.
        self.on_committed: Callable[[Save], None] = lambda save: None

    async def load(self) -> None:
        """Take over what a former controller left pending; each gets a fresh lease."""
        async for stored in self._records.all(keys.SAVES, Save):
            if stored.value.state is SaveState.PENDING:
                await self.take_over(stored)
            else:
                self._tally.load(stored.value)
        await self.expire()

    def __len__(self) -> int:
        return len(self._pending)

    def get(self, save_id: str) -> Pending | None:
        return self._pending.get(SaveId(save_id))

    def of_job(self, job: JobName) -> Iterator[Pending]:
        return (pending for pending in list(self._pending.values()) if pending.stored.value.job == job)

    def track(self, stored: Stored[Save]) -> Pending:
        """The one there is, if another rank has found the save before whoever made it was answered."""
        self._tally.count(stored.value.save_id, stored.value, stored.revision)
        pending = Pending(stored, self._clock.monotonic_seconds())
        return self._pending.setdefault(stored.value.save_id, pending)

    def doubt(self, key: str, save: Save) -> None:
        """The store did not say whether it made ``save``: it is looked for later, and counts until then."""
        if save.save_id not in self._pending:  # another rank may have found it meanwhile
            self._doubtful[save.save_id] = (key, save)

    async def take_over(self, stored: Stored[Save]) -> Pending:
        """A pending save that others made, or whose making was never answered."""
        self._doubtful.pop(stored.value.save_id, None)
        pending = self.track(stored)
        await self._recount(pending)
        return pending

    async def _recount(self, pending: Pending) -> None:
        async for shard in self._records.all(keys.shards(pending.stored.value.save_id), Shard):
            await self.count(pending, shard.value)

    def busy_groups(self) -> frozenset[GroupId]:
        """Those that a rank is on its way to."""
        return frozenset(group_id for pending in self._pending.values() for group_id in pending.sending.values())

    def sending_to(self, group_id: GroupId) -> int:
        """How many ranks are on their way to this group."""
        return sum(group_id in pending.sending.values() for pending in self._pending.values())

    async def drained(self, group_id: GroupId) -> None:
        """Wait until no rank is on its way to this group."""
        while self.sending_to(group_id):
            await self._progressed.wait()

    def reserved_bytes(self, pool: PoolName, besides: tuple[SaveId, int] | None = None) -> int:
        """What saves under way have stored in this pool, or said that they will; without the one rank ``besides``."""
        return sum(
            pending.size_bytes
            - pending.referenced_bytes
            - pending.spared_bytes
            + sum(size for rank, size in pending.expected_bytes.items() if (save_id, rank) != besides)
            for save_id, pending in self._pending.items()
            if pending.stored.value.pool == pool
        )

    def send(self, pending: Pending, rank: int, group_id: GroupId, size_bytes: int = 0) -> None:
        """The rank is on its way to this group from now on, and to no other."""
        pending.sending[rank] = group_id
        pending.expected_bytes[rank] = size_bytes
        self._tell_progress()

    async def count(self, pending: Pending, shard: Shard) -> None:
        # What it refers to counts as well: it is no safer than that.
        blobs = (await self._homes.resolved(shard)).blobs
        pool = self._members.pool(pending.stored.value.pool)
        pending.count(shard, *worth(pool, blobs, self._members.domains()))
        self._tell_progress()

    def _tell_progress(self) -> None:
        self._progressed.set()
        self._progressed = asyncio.Event()

    def renew(self, pending: Pending) -> None:
        pending.renewed_seconds = self._clock.monotonic_seconds()

    def renew_all(self) -> None:
        for pending in self._pending.values():
            self.renew(pending)

    # Commit

    async def commit_if_complete(self, pending: Pending) -> SaveState:
        """The save's state, after committing it if all its ranks are in."""
        save = pending.stored.value
        for _ in range(MAX_TRIES):
            if pending.ended.is_set():
                return (await self.find(save.save_id, save.job, save.step)).state
            if len(pending.ranks) < save.world_size:
                return SaveState.PENDING
            try:
                await self._commit(pending)
            except ConflictError:
                await self.look_again(pending)
        raise UnavailableError(f"{save.title}: the commit lost {MAX_TRIES} races in a row; it is tried again")

    async def look_again(self, pending: Pending) -> None:
        """After a conflict: another handler may have ended the save, or we did and the answer was lost (P6)."""
        await self._members.settle_doubt()
        found, revision = await self._records.look(pending.stored.key, Save)
        if found is None or found.value.save_id != pending.stored.value.save_id:
            self._end(pending, None, revision)
        elif found.value.state is SaveState.PENDING:
            pending.stored = found
        else:
            self._end(pending, found.value, revision)

    async def _commit(self, pending: Pending) -> None:
        save = pending.stored.value
        job = await self._records.get(keys.job(save.job), Job)
        if job is None:
            raise InternalError(f'the record of job "{save.job}" is gone')
        layout = self._members.layout(save.pool)
        # A node that is down has not left: what it acknowledged is on its disks, and repaired if it stays away.
        gone = pending.holders - {node.id for node in self._members.nodes()}
        if gone:
            # P7: a receipt that names a node which left the pool since does not count.
            await self.end_aborted(pending, f"node {', '.join(sorted(gone))} left the pool before the commit")
            raise ConflictError("the layout moved")
        left_behind = job.value.left_behind(save.attempt, save.step)
        note = f"attempt {job.value.resumed_attempt} resumed from step {job.value.resumed_step}" if left_behind else ""
        committed = replace(
            save,
            state=SaveState.SET_ASIDE if left_behind else SaveState.COMMITTED,
            note=note,
            # I6: what was reached, not what was promised; repair raises it later.
            level=pending.level or Level.NONE,
            degraded=pending.degraded,
            size_bytes=pending.size_bytes,
            referenced_bytes=pending.referenced_bytes,
            spared_bytes=pending.spared_bytes,
            committed_unix_ms=self._clock.unix_ms(),
            layout=layout.value.number,
        )
        reach("commit.before")
        # I2: publish last, on one key. Whoever sees the commit may assume every receipt in it.
        compare = [pending.stored.unchanged(), layout.unchanged(), job.unchanged()]
        revision = await self._records.commit(compare, [put(pending.stored.key, committed)])
        reach("commit.after")
        self._end(pending, committed, revision)
        log.info(
            "checkpoint_committed",
            job=save.job,
            step=save.step,
            attempt=save.attempt,
            size_bytes=committed.size_bytes,
            fault_level=str(committed.level),
        )
        if committed.degraded:
            log.warning("committed_degraded", job=save.job, step=save.step, fault_level=str(committed.level))
        if committed.degraded or self._members.pool(save.pool).mirror_pool:
            self.on_unfinished()
        self.on_committed(committed)

    # Abort

    async def abort(self, save_id: SaveId, capability: str, reason: str) -> None:
        self._members.check_capability(save_id, capability)
        pending = self._pending.get(save_id)
        if pending:
            await self.end_aborted(pending, reason[:500] or "given up by its client")

    async def end_aborted(self, pending: Pending, reason: str) -> None:
        """Pending → aborted, by transaction: from here on its blobs are nobody's (P13)."""
        for _ in range(MAX_TRIES):
            if pending.ended.is_set():
                return
            save = pending.stored.value
            aborted = replace(save, state=SaveState.ABORTED, note=reason, ended_unix_ms=self._clock.unix_ms())
            writes: list[Op] = [Delete(pending.stored.key), put(keys.trash(save.save_id), aborted)]
            try:
                revision = await self._records.commit([pending.stored.unchanged()], writes)
                break
            except ConflictError:
                # It was committed in between, which is better; or a rank of it has just said what it refers to.
                await self.look_again(pending)
        else:
            raise UnavailableError(f"{pending.stored.value.title} changes all the time: it is aborted later")
        self._end(pending, None, revision)
        log.warning("save_aborted", job=save.job, step=save.step, attempt=save.attempt, why=reason)

    async def supersede(self, pending: Pending, by: int) -> None:
        """A newer attempt took over (P1): what was sealed by all ranks may still become a checkpoint, the rest ends.

        Best effort: ``expire`` comes back to what could not be ended now, and no receipt is taken for it any more.
        """
        if pending.superseding:
            return
        pending.superseding = True
        try:
            await self._bring_on(pending, f"attempt {by} took over before all ranks were in")
        except SdrsError as error:
            log.warning("save_not_superseded", job=pending.stored.value.job, by=by, why=error.message)
        finally:
            pending.superseding = False

    async def expire(self) -> None:
        """Abort what nobody renewed or a newer attempt superseded; commit what is complete and could not be before.

        The lease is counted from this controller's own start at the earliest.
        """
        for key, save in list(self._doubtful.values()):
            await self._settle_doubt(key, save)
        for pending in list(self._pending.values()):
            save = pending.stored.value
            try:
                job = await self._records.get(keys.job(save.job), Job)
                if job and job.value.attempt > save.attempt:
                    await self.supersede(pending, job.value.attempt)
                elif self._clock.monotonic_seconds() - pending.renewed_seconds > self._ttl_seconds:
                    await self._bring_on(pending, "abandoned: not all ranks came, and nobody waits for them")
                else:
                    await self.commit_if_complete(pending)
            except StaleTermError:
                raise
            except SdrsError as error:
                # One save that cannot be ended now must not keep the others.
                log.warning("save_not_ended", job=save.job, step=save.step, why=error.message)

    async def _bring_on(self, pending: Pending, why_not: str) -> None:
        """To its end: a commit if everything is in, an abort if not."""
        await self._recount(pending)  # the store's answer to a receipt may have been lost
        if await self.commit_if_complete(pending) is SaveState.PENDING:
            await self.end_aborted(pending, f"{why_not} ({len(pending.ranks)} of {pending.stored.value.world_size})")

    async def _settle_doubt(self, key: str, save: Save) -> None:
        found, revision = await self._records.look(key, Save)
        if save.save_id not in self._doubtful:
            return
        if found and found.value.save_id == save.save_id and found.value.state is SaveState.PENDING:
            await self.take_over(found)
        else:
            del self._doubtful[save.save_id]
            self._tally.count(save.save_id, None, revision)

    # Wait

    async def wait(self, save_id: SaveId, job: JobName, step: int, wait_ms: int) -> tuple[Save, int]:
        """The save as it stands, after waiting up to ``wait_ms`` while it is pending; and how many shards are in.

        StaleAttemptError if it was aborted because a newer attempt took over (P1).
        """
        pending = self._pending.get(save_id)
        if pending:
            self.renew(pending)
            with contextlib.suppress(SdrsError):  # a commit that failed before is tried again; the state tells
                await self.commit_if_complete(pending)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await pending.ended.wait()
            except TimeoutError:
                self.renew(pending)
        save = await self.find(save_id, job, step)
        if save.state is SaveState.ABORTED:
            await self.check_not_superseded(save)
        return save, len(pending.ranks) if pending else 0

    async def check_not_superseded(self, save: Save) -> Stored[Job]:
        """The record of the save's job, if its attempt is still the current one; else StaleAttemptError (P1)."""
        job = await self._records.get(keys.job(save.job), Job)
        if job is None:
            raise InternalError(f'the record of job "{save.job}" is gone')
        if job.value.attempt > save.attempt:
            raise StaleAttemptError(
                f'attempt {save.attempt} of job "{save.job}" was superseded: attempt {job.value.attempt} took over '
                f"(started by {job.value.owner}) before step {save.step} was complete",
                job=save.job,
                attempt=job.value.attempt,
                owner=job.value.owner,
            )
        return job

    async def find(self, save_id: SaveId, job: JobName, step: int) -> Save:
        """A save by its id, wherever it is now (P6)."""
        async for stored in self._records.all(keys.saves_of_step(job, step), Save):
            if stored.value.save_id == save_id:
                return stored.value
        trashed = await self._records.get(keys.trash(save_id), Save)
        if trashed:
            return trashed.value
        raise NotFoundError(f'save {save_id} of job "{job}" step {step} does not exist (any more)')

    def _end(self, pending: Pending, after: Save | None, revision: int) -> None:
        """Whoever finds out first: ``after`` is the checkpoint that it became, if it became one."""
        self._tally.count(pending.stored.value.save_id, after, revision)
        if not pending.ended.is_set():
            self._pending.pop(pending.stored.value.save_id, None)
            pending.ended.set()
            self._tell_progress()
