"""How a save begins: its attempt is admitted, its record made, and a group chosen for each rank (P1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NoReturn

from sdrs_core.attempts import Attempt, Job, admit
from sdrs_core.checkpoints import ContentKind, Reference, Save, SaveState, Shard
from sdrs_core.cluster import Group, NodeState, choose_group
from sdrs_core.errors import (
    AlreadyExistsError,
    FullError,
    InternalError,
    InvalidArgumentError,
    RefusedError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
    WorldSizeMismatchError,
)
from sdrs_core.ids import JobName, NodeId, PoolName, SaveId, check_name, check_rank, check_step, random_id
from sdrs_core.levels import Level
from sdrs_core.pools import fits, in_mib, quota_refusal, room_bytes
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits, Pending
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put
from sdrs_storaged.control.referrals import Referrals, counted_bytes
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("saves")

_OUTGROWN_SECONDS = 60.0
_MAX_OUTGROWN = 1000  # I10


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
    # Of this rank's shard; 0: not told.
    size_bytes: int = 0
    # It refers to what is unchanged, if it is told what there is.
    may_refer: bool = False
    # The node that has the shard already, if one has.
    prefer: NodeId | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    save: Save
    capability: str
    group: Group | None
    registered: Shard | None
    offers: tuple[Reference, ...] = ()
    # For how much room was looked, if less than all because of the offers.
    counted_bytes: int | None = None


class Saves:
    def __init__(
        self, records: Records, members: Members, clock: Clock, tally: Tally, commits: Commits, referrals: Referrals
    ) -> None:
        self._records = records
        self._members = members
        self._clock = clock
        self._tally = tally
        self._commits = commits
        self._referrals = referrals
        # Saves that were ended for lack of room: what they need at least, and until when that is remembered.
        self._outgrown: dict[str, tuple[int, float]] = {}

    async def begin(self, request: SaveRequest) -> Begun:
        check_name(request.job, "job")
        check_step(request.step)
        check_rank(request.rank, request.world_size)
        pool = self._members.pool(request.pool)
        if request.level > pool.level:
            raise UnsupportedError(
                f'pool "{pool.name}" promises {pool.level}, not {request.level}: choose a pool of that level'
            )
        offers = (
            await self._referrals.offers(request.job, request.step, pool, request.kind, request.rank)
            if request.may_refer
            else ()
        )
        counted = counted_bytes(request.size_bytes, offers)
        request = replace(request, size_bytes=counted)
        # Before anything is written: a save that nobody can take leaves no record behind.
        group, refusal = self._try_group(request)
        for _ in range(MAX_TRIES):
            try:
                stored = await self._open(request, refusal)
                break
            except ConflictError:
                continue
        else:
            raise _too_busy(request.job)
        save = stored.value
        registered = await self._records.get(keys.shard(save.save_id, request.rank), Shard)
        pending = self._commits.get(save.save_id)
        if registered is None and save.state is SaveState.PENDING:
            if group is None and isinstance(refusal, FullError) and pending:
                await self._end_for_lack_of_room(request, pending, refusal)
            if group is None:
                raise refusal or InternalError("no group was chosen, and nothing said why")
            if pending:
                over = self._over_quota(request, request.size_bytes, besides=pending)
                if over:
                    await self._end_for_lack_of_room(request, pending, over)
                # Nothing was waited for since: whoever comes next counts this one.
                self._commits.send(pending, request.rank, group.id, request.size_bytes)
        else:
            group = None
        if registered and pending:
            # Stored before, but perhaps never counted: the store's answer to that may have been lost. Its client is
            # told that it is in, and only waits from here on.
            await self._commits.count(pending, registered.value)
        return Begun(
            save,
            self._members.capability(save.save_id),
            group,
            registered.value if registered else None,
            offers if group else (),
            counted if offers else None,
        )

    async def _open(self, request: SaveRequest, refusal: SdrsError | None) -> Stored[Save]:
        """The save of (job, attempt, step), made if it is new and not refused.

        All ranks of an attempt find the same one (P1).
        """
        job, number = await self.admit_attempt(request.job, request.attempt)
        key = keys.save(request.job, request.step, number)
        known = await self._records.get(key, Save)
        if known:
            _check_same_save(known.value, request)
            if known.value.state is SaveState.PENDING:
                # It may be unknown here: the answer to its own begin was lost between the store and us.
                pending = self._commits.get(known.value.save_id) or await self._commits.take_over(known)
                self._commits.renew(pending)
            return known
        if refusal:
            await self._records.check_leading()  # a cluster that changes nothing any more says that first
            raise refusal
        over = self._over_quota(request, max(request.size_bytes, self._outgrown_bytes(key)))
        if over:
            raise over
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
        # Counted first: whoever deletes the pool either sees this save, or is seen by the look at the layout above.
        self._tally.expect(save)
        try:
            revision = await self._records.commit([Compare.absent(key), job.unchanged()], [put(key, save)])
        except UnavailableError:
            self._commits.doubt(key, save)
            raise
        except SdrsError:
            self._tally.count(save.save_id, None, 0)
            raise
        reach("save.begun")
        stored = Stored(key, save, revision)
        self._commits.track(stored)
        return stored

    # Room

    def _over_quota(self, request: SaveRequest, wanted_bytes: int, besides: Pending | None = None) -> FullError | None:
        """``besides``: the save that the rank belongs to, in which it may have been expected already."""
        mine = (besides.stored.value.save_id, request.rank) if besides else None
        why = quota_refusal(
            self._members.pool(request.pool),
            used_bytes=self._tally.bytes_by_pool[request.pool],
            reserved_bytes=self._commits.reserved_bytes(request.pool, mine),
            wanted_bytes=wanted_bytes,
        )
        return FullError(why, pool=request.pool) if why else None

    async def _end_for_lack_of_room(self, request: SaveRequest, pending: Pending, why: FullError) -> NoReturn:
        """It can never be complete: the ranks that are in are told, and those on their way do not begin it anew."""
        known_bytes = pending.size_bytes + sum(pending.expected_bytes.values())
        until_seconds = self._clock.monotonic_seconds() + _OUTGROWN_SECONDS
        if len(self._outgrown) < _MAX_OUTGROWN:
            self._outgrown[pending.stored.key] = known_bytes + request.size_bytes, until_seconds
        await self._commits.end_aborted(pending, why.message)
        raise why

    def _outgrown_bytes(self, key: str) -> int:
        """How large this save is known to be, from ranks that tried it a moment ago."""
        now = self._clock.monotonic_seconds()
        self._outgrown = {known: entry for known, entry in self._outgrown.items() if entry[1] > now}
        return self._outgrown.get(key, (0, 0.0))[0]

    # Attempts

    async def open_attempt(self, name: JobName, attempt: Attempt) -> int:
        """The number of ``attempt``, as the current one of its job before any of its ranks has spoken (P22)."""
        check_name(name, "job")
        for _ in range(MAX_TRIES):
            try:
                _, number = await self.admit_attempt(name, attempt)
                return number
            except ConflictError:
                continue
        raise _too_busy(name)

    async def admit_attempt(self, name: JobName, attempt: Attempt) -> tuple[Stored[Job], int]:
        """The job's record with ``attempt`` as its current one; StaleAttemptError if that was superseded (P1, P22)."""
        key, attempt_key = keys.job(name), keys.attempt(name, attempt)
        # In this order: what was heard before the job's record is read cannot be newer than that record, so a rank
        # whose fellow opens their attempt in between is not taken for a leftover of it.
        known = await self._heard_as(name, attempt)
        stored = await self._records.get(key, Job)
        job = stored.value if stored else Job(name)
        admitted, number = admit(job, attempt, known)
        if stored is None or admitted != job:
            compare = [stored.unchanged() if stored else Compare.absent(key), Compare.absent(attempt_key)]
            revision = await self._records.commit(compare, [put(key, admitted), put(attempt_key, number)])
            stored = Stored(key, admitted, revision)
            log.info("attempt_opened", job=name, attempt=number, owner=attempt.owner)
        # Not only by who opened the attempt: the answer to that may have been lost.
        for pending in self._commits.of_job(name):
            if pending.stored.value.attempt < number:
                await self._commits.supersede(pending, number)
        return stored, number

    async def _heard_as(self, name: JobName, attempt: Attempt) -> int | None:
        """The number of this attempt, or of a later start of the same run."""
        async for heard in self._records.all(keys.attempts_of_run(name, attempt.run), int):
            if keys.ordinal_of(heard.key) >= attempt.ordinal:
                return heard.value
        return None

    def _try_group(self, request: SaveRequest) -> tuple[Group | None, SdrsError | None]:
        try:
            return self._choose_group(request), None
        except SdrsError as error:
            return None, error

    def _choose_group(self, request: SaveRequest) -> Group:
        groups, nodes = self._members.groups_taking_saves(request.pool)
        shunned, pool = self._members.shunned(), self._members.pool(request.pool)

        def choose(among: list[Group]) -> Group | None:
            return choose_group(
                among,
                nodes,
                rank=request.rank,
                host=request.host,
                avoid=request.avoid,
                shunned=shunned,
                prefer=request.prefer,
            )

        group = choose(groups)
        if group and not fits(request.size_bytes, group, pool, nodes):
            able = [group for group in groups if not group.problem]
            group = choose([group for group in able if fits(request.size_bytes, group, pool, nodes)])
            if group is None:
                room = max(room_bytes(group, pool, nodes) for group in able)
                raise FullError(
                    f'pool "{pool.name}" has no room for {in_mib(request.size_bytes)}: its disks take '
                    f"{in_mib(room)} more at most. Delete checkpoints (sdrs ckpt delete), add a node "
                    "or a disk; see: sdrs node list",
                    pool=pool.name,
                )
        if group:
            return group
        members = [nodes[member] for member in sorted({m for g in groups for m in g.members})]
        if not any(node.state is NodeState.UP for node in members):
            raise UnavailableError(
                f'pool "{request.pool}" has no node that is up ({len(members)} known): start one, see "sdrs node list"'
            )
        refusals = [g.problem for g in groups if g.problem]
        moving = [g.problem for g in groups if self._members.is_moving(g.id)]
        if moving:
            raise UnavailableError(moving[0])  # over in a moment: no save fails because of a switchover
        if len(refusals) == len(groups) and any(node.takes_writes for node in members):
            if any(self._members.is_unheard(node.id) for node in members):
                raise UnavailableError(refusals[0])  # by a controller that leads since a moment: it will know soon
            able_count = sum(node.takes_writes and not node.cordoned for node in nodes.values())
            if able_count < pool.member_count and not pool.can_shrink:
                raise RefusedError(
                    f'pool "{pool.name}" needs {pool.member_count} nodes that take saves, {able_count} of {len(nodes)} '
                    "do: start another node, or let saves go on with fewer copies: "
                    f"sdrs pool set {pool.name} --allow-degraded",
                    pool=pool.name,
                )
            raise RefusedError(refusals[0], pool=request.pool)
        if any(node.takes_writes for node in members):
            raise UnavailableError(
                f'no node of pool "{request.pool}" is left to try: all that take writes failed this save'
            )
        raise FullError(
            f'pool "{request.pool}" is full: no disk of its nodes takes writes. Delete checkpoints (sdrs ckpt '
            "delete), add a node or a disk; see: sdrs node list",
            pool=request.pool,
        )


def _too_busy(job: JobName) -> UnavailableError:
    return UnavailableError(f'job "{job}" is too busy: its record changed {MAX_TRIES} times in a row; try again')


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
