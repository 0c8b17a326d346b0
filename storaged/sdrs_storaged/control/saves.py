"""Saves in the making: begin → receipts → commit (I2).

A save is pending until every rank's receipt is in; the commit then flips its one key. Pending saves are few, so they
are held in memory with a lease each: whoever waits for a save renews it, and one that nobody renews is aborted (its
blobs then go by I7).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sdrs_core.attempts import Attempt, Job, admit
from sdrs_core.checkpoints import ContentKind, Save, SaveState, Shard
from sdrs_core.cluster import Group, NodeState, choose_group
from sdrs_core.errors import (
    AlreadyExistsError,
    FullError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    SaveFailedError,
    SdrsError,
    StaleAttemptError,
    StaleEpochError,
    UnavailableError,
    UnsupportedError,
    WorldSizeMismatchError,
)
from sdrs_core.fault_points import reach
from sdrs_core.ids import GroupId, JobName, NodeId, PoolName, SaveId, check_name, check_rank, check_step, random_id
from sdrs_core.levels import Level
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare, Delete, Op
from sdrs_storaged.control.records import ConflictError, Records, Stored, put
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.logs import get_log

log = get_log("saves")

_MAX_SHARDS_PER_TXN = 100  # P3
_MAX_TRIES = 20


@dataclass(frozen=True, slots=True)
class SaveRequest:
    job: JobName
    step: int
    rank: int
    world_size: int
    attempt: Attempt
    pool: PoolName
    level: Level  # NONE: whatever the pool promises
    kind: ContentKind
    host: str
    avoid: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class Begun:
    save: Save
    capability: str
    group: Group | None
    registered: Shard | None


@dataclass(frozen=True, slots=True)
class Receipt:
    capability: str
    job: JobName
    step: int
    attempt: int
    group_id: GroupId
    epoch: int
    shard: Shard


@dataclass(slots=True)
class _Pending:
    stored: Stored[Save]
    renewed_seconds: float
    ranks: set[int] = field(default_factory=set)
    holders: set[NodeId] = field(default_factory=set)
    size_bytes: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Saves:
    def __init__(self, records: Records, members: Members, clock: Clock, tally: Tally, *, ttl_seconds: float) -> None:
        self._records = records
        self._members = members
        self._clock = clock
        self._tally = tally
        self._ttl_seconds = ttl_seconds
        self._pending: dict[SaveId, _Pending] = {}

    async def load(self) -> None:
        """Take over what a former controller left pending; each gets a fresh lease."""
        async for stored in self._records.all(keys.SAVES, Save):
            self._tally.add(stored.value)
            if stored.value.state is SaveState.PENDING:
                await self._take_over(stored)
        for pending in list(self._pending.values()):
            await self._commit_if_complete(pending)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def is_pending(self, save_id: str) -> bool:
        return save_id in self._pending

    # Begin

    async def begin(self, request: SaveRequest) -> Begun:
        check_name(request.job, "job")
        check_step(request.step)
        check_rank(request.rank, request.world_size)
        pool = self._members.pool(request.pool)
        if request.level > pool.level:
            raise UnsupportedError(
                f'pool "{pool.name}" promises {pool.level}, not {request.level}: choose a pool of that level'
            )
        for _ in range(_MAX_TRIES):
            try:
                stored = await self._open(request)
                break
            except ConflictError:
                continue
        else:
            raise UnavailableError(
                f'job "{request.job}" is too busy: its record changed {_MAX_TRIES} times in a row; try again'
            )
        save = stored.value
        registered = await self._records.get(keys.shard(save.save_id, request.rank), Shard)
        group = None if registered or save.state is not SaveState.PENDING else self._choose_group(request)
        return Begun(save, self._capability(save.save_id), group, registered.value if registered else None)

    async def _open(self, request: SaveRequest) -> Stored[Save]:
        """The save of (job, attempt, step), made if it is new. All ranks of an attempt find the same one (P1)."""
        job, number = await self.admit_attempt(request.job, request.attempt)
        key = keys.save(request.job, request.step, number)
        known = await self._records.get(key, Save)
        if known:
            _check_same_save(known.value, request)
            if known.value.state is SaveState.PENDING:
                # It may be unknown here: the answer to its own begin was lost between the store and us.
                pending = self._pending.get(known.value.save_id) or await self._take_over(known)
                self._renew(pending)
            return known
        save = Save(
            save_id=SaveId(random_id()),
            job=request.job,
            step=request.step,
            attempt=number,
            world_size=request.world_size,
            pool=request.pool,
            kind=request.kind,
            state=SaveState.PENDING,
            level=Level.NONE,
            size_bytes=0,
            created_unix_ms=self._clock.unix_ms(),
            layout=self._members.layout(request.pool).value.number,
        )
        revision = await self._records.commit([Compare.absent(key), job.unchanged()], [put(key, save)])
        reach("save.begun")
        stored = Stored(key, save, revision)
        self._track(stored)
        self._tally.add(save)
        return stored

    async def admit_attempt(self, name: JobName, attempt: Attempt) -> tuple[Stored[Job], int]:
        """The job's record with ``attempt`` as its current one; StaleAttemptError if that was superseded (P1, P22)."""
        key, attempt_key = keys.job(name), keys.attempt(name, attempt)
        stored = await self._records.get(key, Job)
        job = stored.value if stored else Job(name)
        known = await self._records.get(attempt_key, int)
        admitted, number = admit(job, attempt, known.value if known else None)
        if stored and admitted == job:
            return stored, number
        compare = [stored.unchanged() if stored else Compare.absent(key), Compare.absent(attempt_key)]
        revision = await self._records.commit(compare, [put(key, admitted), put(attempt_key, number)])
        log.info("attempt_opened", job=name, attempt=number, owner=attempt.owner)
        for pending in [
            p for p in self._pending.values() if p.stored.value.job == name and p.stored.value.attempt < number
        ]:
            await self._supersede(pending, number)
        return Stored(key, admitted, revision), number

    async def _supersede(self, pending: _Pending, by: int) -> None:
        # What is complete may still become a checkpoint; half of one must never meet the next attempt's half.
        if not await self._commit_if_complete(pending):
            await self._abort(pending, f"attempt {by} took over before all ranks were in")

    def _choose_group(self, request: SaveRequest) -> Group:
        groups = self._members.groups(pool=request.pool)
        nodes = {node.id: node for node in self._members.nodes()}
        group = choose_group(groups, nodes, rank=request.rank, host=request.host, avoid=request.avoid)
        if group:
            return group
        members = [nodes[g.primary] for g in groups]
        if not any(node.state is NodeState.UP for node in members):
            raise UnavailableError(
                f'pool "{request.pool}" has no node that is up ({len(members)} known): start one, see "sdrs node list"'
            )
        if any(node.takes_writes for node in members):
            raise UnavailableError(
                f'no node of pool "{request.pool}" is left to try: all that take writes failed this save'
            )
        raise FullError(
            f'pool "{request.pool}" is full: no disk of its nodes takes writes. Delete checkpoints (sdrs ckpt '
            f"delete), add a node or "
            "a disk; see: sdrs node list",
            pool=request.pool,
        )

    # Receipts

    async def register(self, node_id: NodeId, receipts: Sequence[Receipt]) -> list[SaveState | SdrsError]:
        """Take a primary's receipts; the state of each save after it, or why that receipt was refused."""
        outcomes: list[SaveState | SdrsError | None] = [None] * len(receipts)
        accepted: dict[SaveId, list[int]] = {}
        for index, receipt in enumerate(receipts):
            try:
                done = await self._check(node_id, receipt)
                if done is not None:
                    outcomes[index] = done
                else:
                    accepted.setdefault(receipt.shard.save_id, []).append(index)
            except SdrsError as error:
                outcomes[index] = error
        for save_id, indexes in accepted.items():
            for start in range(0, len(indexes), _MAX_SHARDS_PER_TXN):
                chunk = indexes[start : start + _MAX_SHARDS_PER_TXN]
                result = await self._store_shards(save_id, [receipts[i].shard for i in chunk])
                for index in chunk:
                    outcomes[index] = result
        return [outcome or InternalError("a receipt was left without an answer") for outcome in outcomes]

    async def _check(self, node_id: NodeId, receipt: Receipt) -> SaveState | None:
        """None: to be stored. A state: it already was. Raises if the receipt must not count."""
        shard = receipt.shard
        if not hmac.compare_digest(receipt.capability, self._capability(shard.save_id)):
            raise PermissionDeniedError(f"the capability does not belong to save {shard.save_id}: begin the save again")
        if any(holder.node_id != node_id for blob in shard.blobs for holder in blob.holders):
            raise PermissionDeniedError(f"node {node_id} can vouch for its own fragments only (P5)")
        if any(not blob.holders for blob in shard.blobs) or not shard.blobs:
            raise InvalidArgumentError("a receipt names blobs, and at least one holder for each")
        group = self._members.group(receipt.group_id)
        if group.epoch != receipt.epoch or group.primary != node_id:
            raise StaleEpochError(
                f"group {group.id} is at epoch {group.epoch} with primary {group.primary}: begin the save again",
                epoch=group.epoch,
            )
        registered = await self._records.get(keys.shard(shard.save_id, shard.rank), Shard)
        if registered and registered.value.content_hash == shard.content_hash:
            if shard.save_id in self._pending:
                # Stored before, but perhaps never counted: the store's answer to that may have been lost.
                _count(self._pending[shard.save_id], registered.value)
                await self._commit_if_complete(self._pending[shard.save_id])
            return (await self.find(shard.save_id, receipt.job, receipt.step)).state
        if registered:
            raise AlreadyExistsError(f"rank {shard.rank} of save {shard.save_id} is already in with other content")
        pending = self._pending.get(shard.save_id)
        if pending is None:
            await self._explain_ended(shard.save_id, receipt)
        elif not 0 <= shard.rank < pending.stored.value.world_size:
            raise InvalidArgumentError(
                f"rank {shard.rank} does not exist with world_size {pending.stored.value.world_size}"
            )
        return None

    async def _explain_ended(self, save_id: SaveId, receipt: Receipt) -> None:
        save = await self.find(save_id, receipt.job, receipt.step)
        job = await self._records.get(keys.job(save.job), Job)
        if job and job.value.attempt > save.attempt:
            raise StaleAttemptError(
                f'attempt {save.attempt} of job "{save.job}" was superseded by attempt {job.value.attempt} (started by '
                f"{job.value.owner}) before step {save.step} was complete",
                job=save.job,
                attempt=job.value.attempt,
                owner=job.value.owner,
            )
        raise SaveFailedError(
            f"{save.title}: the save is {save.state} ({save.note or 'nobody renewed it'}): save again"
        )

    async def _store_shards(self, save_id: SaveId, shards: list[Shard]) -> SaveState | SdrsError:
        pending = self._pending.get(save_id)
        if pending is None:
            return SaveFailedError(f"save {save_id} ended while its receipts came in: save again")
        self._renew(pending)
        shard_keys = [keys.shard(save_id, shard.rank) for shard in shards]
        compare = [pending.stored.unchanged(), *(Compare.absent(key) for key in shard_keys)]
        try:
            # P3: a batch of receipts is one transaction; it holds only while the save is still pending (P13).
            await self._records.commit(
                compare, [put(key, shard) for key, shard in zip(shard_keys, shards, strict=True)]
            )
            reach("receipt.stored")
            for shard in shards:
                _count(pending, shard)
            committed = await self._commit_if_complete(pending)
        except ConflictError:
            return SaveFailedError(
                f"{pending.stored.value.title}: the save changed while its receipts came in: save again"
            )
        except SdrsError as error:
            return error
        return SaveState.COMMITTED if committed else SaveState.PENDING

    # Commit

    async def _commit_if_complete(self, pending: _Pending) -> bool:
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

    async def _commit(self, pending: _Pending) -> None:
        save = pending.stored.value
        job = await self._records.get(keys.job(save.job), Job)
        if job is None:
            raise InternalError(f'the record of job "{save.job}" is gone')
        layout = self._members.layout(save.pool)
        members = {node_id for group in self._members.groups(pool=save.pool) for node_id in group.members}
        gone = pending.holders - members
        if gone:
            # P7: a receipt that names a node which left the pool since does not count.
            await self._abort(pending, f"node {', '.join(sorted(gone))} left the pool before the commit")
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
        if not hmac.compare_digest(capability, self._capability(save_id)):
            raise PermissionDeniedError(f"the capability does not belong to save {save_id}")
        pending = self._pending.get(save_id)
        if pending:
            await self._abort(pending, reason[:500] or "given up by its client")

    async def _abort(self, pending: _Pending, reason: str) -> None:
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
                await self._abort(
                    pending, f"abandoned: {missing} of {pending.stored.value.world_size} ranks never came"
                )

    # Wait

    async def wait(self, save_id: SaveId, job: JobName, step: int, wait_ms: int) -> tuple[Save, int]:
        """The save as it stands, after holding back for up to ``wait_ms`` while it is pending; and how many shards
        are in.
        """
        pending = self._pending.get(save_id)
        if pending:
            self._renew(pending)
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await pending.ended.wait()
            except TimeoutError:
                self._renew(pending)
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

    def _capability(self, save_id: SaveId) -> str:
        """Derived, so that every rank of a save gets the same one and none has to be stored (P5)."""
        return hmac.new(self._members.cluster.secret.encode(), save_id.encode(), hashlib.sha256).hexdigest()

    async def _take_over(self, stored: Stored[Save]) -> _Pending:
        pending = self._track(stored)
        async for shard in self._records.all(keys.shards(stored.value.save_id), Shard):
            _count(pending, shard.value)
        return pending

    def _track(self, stored: Stored[Save]) -> _Pending:
        pending = _Pending(stored, self._clock.monotonic_seconds())
        self._pending[stored.value.save_id] = pending
        return pending

    def _renew(self, pending: _Pending) -> None:
        pending.renewed_seconds = self._clock.monotonic_seconds()

    def _end(self, pending: _Pending) -> None:
        self._pending.pop(pending.stored.value.save_id, None)
        pending.ended.set()


def _count(pending: _Pending, shard: Shard) -> None:
    if shard.rank not in pending.ranks:
        pending.ranks.add(shard.rank)
        pending.size_bytes += shard.size_bytes
        pending.holders.update(_nodes_of(shard))


def _nodes_of(shard: Shard) -> Iterable[NodeId]:
    return (holder.node_id for blob in shard.blobs for holder in blob.holders)


def _check_same_save(known: Save, request: SaveRequest) -> None:
    if known.world_size != request.world_size:
        raise WorldSizeMismatchError(
            f"{known.title} was begun with world_size {known.world_size}, rank {request.rank} says "
            f"{request.world_size}: "
            "all ranks of a save must agree"
        )
    if known.pool != request.pool:
        raise InvalidArgumentError(
            f'{known.title} was begun in pool "{known.pool}", rank {request.rank} says "{request.pool}"'
        )
    if known.kind != request.kind:
        raise AlreadyExistsError(
            f"{known.title} holds {known.kind}, this save brings {request.kind}: choose another step"
        )
