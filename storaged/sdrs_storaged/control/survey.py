"""A look at the whole catalog, a page at a time: what is short of copies, what is out of reach, what to do first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.errors import CorruptDataError, NotFoundError
from sdrs_core.ids import BlobId, NodeId, PoolName, SaveId
from sdrs_core.repair import Copy, Decision, Patience, Stock, decide_repair
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.control.strays import Strays
from sdrs_storaged.logs import get_log

log = get_log("survey")

_PAGE_SHARDS = 100
_MAX_NAMES = 1000  # I10
# With thousands of nodes a new view of them costs more than a page of shards; what is acted on is decided anew anyway.
_PAGES_PER_VIEW = 50


@dataclass(frozen=True, slots=True)
class Job:
    """A blob that needs something done; what exactly is decided again when its turn comes."""

    urgency: tuple[int, int]
    save: Stored[Save]
    shard_key: str
    rank: int
    blob_id: BlobId
    size_bytes: int
    preferred: NodeId | None
    target: NodeId | None


@dataclass(slots=True)
class Survey:
    limit: int
    degraded_blobs: int = 0
    # Of those, the ones whose node is waited for before they are copied elsewhere.
    awaited_blobs: int = 0
    unavailable_count: int = 0
    unavailable: dict[SaveId, Save] = field(default_factory=dict)
    raised: list[Save] = field(default_factory=list)
    # Jobs beyond the limit: the next survey finds them again.
    left_out: int = 0
    left_out_bytes: int = 0
    # Blobs whose repair failed before, and that still need it.
    failing: set[BlobId] = field(default_factory=set)
    # Until something that is waited for now will be acted on.
    wait_seconds: float | None = None
    # The nodes as seen not long ago, and each pool's.
    nodes: dict[NodeId, Stock] = field(default_factory=dict)
    pages: int = 0
    eligible: dict[PoolName, frozenset[NodeId]] = field(default_factory=dict)
    _heap: list[tuple[int, int, int, Job]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def add(self, job: Job) -> None:
        kind, live_count = job.urgency
        heapq.heappush(self._heap, (-kind, -live_count, -next(self._numbers), job))
        if len(self._heap) > self.limit:
            least = heapq.heappop(self._heap)[-1]
            self.left_out += 1
            self.left_out_bytes += least.size_bytes

    def wait(self, seconds: float | None) -> None:
        if seconds is not None:
            self.wait_seconds = seconds if self.wait_seconds is None else min(self.wait_seconds, seconds)

    def jobs(self) -> list[Job]:
        """The most urgent first."""
        return [entry[-1] for entry in sorted(self._heap, reverse=True)]


# Seconds until a blob that failed before may be tried again; None if it never failed.
NotBefore = Callable[[BlobId], float | None]


class Surveyor:
    def __init__(
        self,
        records: Records,
        members: Members,
        catalog: Catalog,
        stocks: Stocks,
        roll_call: RollCall,
        strays: Strays,
        claims: Claims,
        *,
        patience: Patience,
        limit: int,
    ) -> None:
        self._records = records
        self._members = members
        self._catalog = catalog
        self._stocks = stocks
        self._roll_call = roll_call
        self._strays = strays
        self._claims = claims
        self._patience = patience
        self._limit = limit

    async def survey(self, not_before: NotBefore) -> Survey:
        survey = Survey(self._limit)
        self._roll_call.begin(self._stocks.now())
        complete = False
        try:
            async for stored in self._records.all(keys.SAVES, Save):
                if not stored.value.state.is_readable:
                    continue
                try:
                    await self._look_at(stored, survey, not_before)
                except (NotFoundError, CorruptDataError) as error:
                    # A pool or a record that is not as it should be must not keep the others.
                    log.error("not_surveyed", job=stored.value.job, step=stored.value.step, why=error.message)
            complete = True
        finally:
            self._roll_call.end(complete=complete)
        return survey

    async def raise_level(self, stored: Stored[Save]) -> Save | None:
        """The save at its pool's level, if it was below and now has all its copies."""
        if stored.value.level >= self._members.pool(stored.value.pool).level:
            return None
        survey = Survey(limit=0)
        await self._look_at(stored, survey, lambda _: None)
        return next(iter(survey.raised), None)

    def decide(self, save: Save, blob: Blob, *, preferred: NodeId | None = None) -> Decision:
        """As things stand at this moment."""
        index = blob.holders[0].fragment_index if blob.holders else 0
        return decide_repair(
            blob,
            self._stocks.now(),
            wanted=self._stocks.wanted_copies(save),
            eligible=self._stocks.of_pool(save.pool),
            patience=self._patience,
            barred=self._claims.nodes_at((blob.id, index)),
            preferred=preferred,
        )

    def _view(self, survey: Survey) -> dict[NodeId, Stock]:
        if survey.pages % _PAGES_PER_VIEW == 0:
            survey.nodes = self._stocks.now()
        survey.pages += 1
        return survey.nodes

    def _eligible(self, survey: Survey, pool: PoolName) -> frozenset[NodeId]:
        if pool not in survey.eligible:
            survey.eligible[pool] = self._stocks.of_pool(pool)
        return survey.eligible[pool]

    async def _look_at(self, stored: Stored[Save], survey: Survey, not_before: NotBefore) -> None:
        save = stored.value
        pool, wanted = self._members.pool(save.pool), self._stocks.wanted_copies(save)
        eligible = self._eligible(survey, save.pool)
        is_whole, is_available = True, True
        after, more = "", True
        while more:
            page, more = await self._records.page(keys.shards(save.save_id), Shard, after=after, limit=_PAGE_SHARDS)
            after = page[-1].key if page else after
            nodes = self._view(survey)
            lost: list[tuple[str, Blob]] = []
            for shard in await self._roll_call.check(stored, page, nodes):
                for blob in shard.value.blobs:
                    lost_by = self._roll_call.lost.get(blob.id)
                    decision = decide_repair(
                        blob, nodes, wanted=wanted, eligible=eligible, patience=self._patience, preferred=lost_by
                    )
                    self._note(survey, stored, shard, blob, decision, lost_by, not_before)
                    counted = [h for h in decision.live if self._roll_call.has_answered(h.node_id)]
                    is_whole &= len(counted) >= pool.copies
                    if decision.is_unavailable:
                        lost.append((shard.key, blob))
            is_available &= await self._find(lost, nodes, survey)
        if not is_available:
            survey.unavailable_count += 1
            if len(survey.unavailable) < _MAX_NAMES:
                survey.unavailable[save.save_id] = save
        if is_whole and save.level < pool.level:
            # The level once reached is history: it rises, and never falls (P4, I6).
            raised = await self._catalog.amend(
                stored.key, save.save_id, lambda known: replace(known, level=max(known.level, pool.level))
            )
            if raised:
                survey.raised.append(raised)
                log.info("level_raised", job=save.job, step=save.step, fault_level=str(raised.level))

    async def _find(self, lost: Sequence[tuple[str, Blob]], nodes: Mapping[NodeId, Stock], survey: Survey) -> bool:
        """True if nothing is lost after all. Who is up is asked when somebody came or went, not again and again."""
        if not lost or not self._roll_call.has_changed:
            return not lost
        adopted = await self._strays.adopt(lost, nodes)
        if adopted:
            survey.wait(0.0)  # one copy, on record only now
        return adopted.issuperset(blob.id for _, blob in lost)

    def _note(
        self,
        survey: Survey,
        stored: Stored[Save],
        shard: Stored[Shard],
        blob: Blob,
        decision: Decision,
        preferred: NodeId | None,
        not_before: NotBefore,
    ) -> None:
        survey.degraded_blobs += decision.is_degraded
        survey.awaited_blobs += decision.is_awaited
        survey.wait(decision.wait_seconds)
        action = decision.action
        if action is None:
            return
        backoff_seconds = not_before(blob.id)
        if backoff_seconds is not None:
            survey.failing.add(blob.id)
            if backoff_seconds > 0:
                survey.wait(backoff_seconds)
                return
        target = action.target if isinstance(action, Copy) else None
        rank = shard.value.rank
        survey.add(Job(decision.urgency, stored, shard.key, rank, blob.id, blob.size_bytes, preferred, target))
