"""A look at the whole catalog, a page at a time: what lacks redundancy, what is out of reach, what to do first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sdrs_core.balance import Balance
from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.cluster import Pool
from sdrs_core.errors import CorruptDataError, NotFoundError
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.levels import Level
from sdrs_core.mirroring import twin_of
from sdrs_core.redundancy import Standing, level_of, level_once_lowered, standing
from sdrs_core.remedies import Copy, Urgency
from sdrs_core.whereabouts import domains_of
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.held import Amount
from sdrs_storaged.control.jobs import Job, Survey
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.mirrors import Mirrors, MirrorStanding
from sdrs_storaged.control.prospects import Prospect, Prospects
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.stocks import Stocks, View
from sdrs_storaged.control.strays import Strays
from sdrs_storaged.logs import get_log

log = get_log("survey")

_PAGE_SHARDS = 100
_MAX_NAMES = 1000  # I10
# With thousands of nodes a new view of them costs more than a page of shards; what is acted on is decided anew anyway.
_PAGES_PER_VIEW = 50
# Evening out is never urgent, and what it finds is worth less with every change in between.
_MAX_BALANCE_MOVES = 100

# Seconds until a blob that failed before may be tried again; None if it never failed.
NotBefore = Callable[[BlobId], float | None]


@dataclass(slots=True)
class _Found:
    """Of one save, as its shards are looked at."""

    level: Level
    # Not all is there, and compared with the record; and what is not there is not waited for either.
    degraded: bool = False
    is_lacking: bool = False
    codes: set[str] = field(default_factory=set)
    is_available: bool = True


class Surveyor:
    def __init__(
        self,
        records: Records,
        members: Members,
        catalog: Catalog,
        stocks: Stocks,
        roll_call: RollCall,
        strays: Strays,
        mirrors: Mirrors,
        prospects: Prospects,
        *,
        limit: int,
    ) -> None:
        self._records = records
        self._members = members
        self._catalog = catalog
        self._stocks = stocks
        self._roll_call = roll_call
        self._strays = strays
        self._mirrors = mirrors
        self._prospects = prospects
        self._limit = limit

    async def survey(self, not_before: NotBefore) -> Survey:
        survey = Survey(self._limit)
        self._roll_call.begin(self._stocks.now())
        complete = False
        try:
            await self._mirrors.choose()
            async for stored in self._records.all(keys.SAVES, Save):
                if not stored.value.state.is_kept:
                    continue
                try:
                    await self._look_at(stored, survey, not_before)
                except (NotFoundError, CorruptDataError) as error:
                    # A pool or a record that is not as it should be must not keep the others.
                    log.error("not_surveyed", job=stored.value.job, step=stored.value.step, why=error.message)
            complete = survey.held.is_complete = True
        finally:
            self._roll_call.end(complete=complete)
        return survey

    async def look_again(self, stored: Stored[Save]) -> Save | None:
        """After it was worked on: the save with a higher level, if all that it lacked for that is there now."""
        save = stored.value
        is_whole = save.level >= self._members.pool(save.pool).level and not save.degraded
        if is_whole and self._mirrors.wants(save) == bool(save.mirror_pool):
            return None
        survey = Survey(limit=0)
        try:
            await self._look_at(stored, survey, lambda _: None)
        except NotFoundError:
            return None
        return next(iter(survey.raised), None)

    def _view(self, survey: Survey) -> View:
        if survey.pages % _PAGES_PER_VIEW == 0:
            survey.view = self._stocks.view()
        survey.pages += 1
        return survey.view

    async def _look_at(self, stored: Stored[Save], survey: Survey, not_before: NotBefore) -> None:
        save, pool = stored.value, self._members.pool(stored.value.pool)
        if save.evicted:
            await self._look_at_evicted(stored, survey, not_before)
            return
        found, mirrored = _Found(pool.level), MirrorStanding()
        after, more = "", True
        while more:
            page, more = await self._records.page(keys.shards(save.save_id), Shard, after=after, limit=_PAGE_SHARDS)
            after = page[-1].key if page else after
            view = self._view(survey)
            lost: list[tuple[str, Blob]] = []
            homes = await self._catalog.homes.of_page([shard.value for shard in page])
            for shard in await self._roll_call.check(stored, page, view.nodes):
                for blob in shard.value.all_blobs:
                    for holder in blob.holders:
                        survey.held.add(blob, holder)
                for blob in shard.value.blobs:
                    self._look_at_blob(stored, shard, blob, survey, found, mirrored, lost, not_before)
                for blob in shard.value.mirrors:
                    self._look_at_mirror(stored, shard, blob, survey, mirrored, not_before)
                referred = await self._catalog.homes.referred(shard.value, homes)
                found.is_available &= len(referred) == len(shard.value.references)
                for home, blob in referred:
                    self._look_at_home(save, home, blob, survey, found, mirrored, lost)
            found.is_available &= await self._find(lost, view, survey)
        if not found.is_available and save.state.is_readable:
            survey.unavailable_count += 1
            if len(survey.unavailable) < _MAX_NAMES:
                survey.unavailable[save.save_id] = save
        await self._record(stored, survey, found)
        named = await self._mirrors.record(stored, mirrored)
        if (named or save).mirror_pool:
            amount = survey.mirrored.get(save.pool, Amount())
            survey.mirrored[save.pool] = amount.changed(1, save.stored_bytes)

    async def _look_at_evicted(self, stored: Stored[Save], survey: Survey, not_before: NotBefore) -> None:
        """The backup has it, so nothing of it is missing. What an interrupted recall left on nodes is moved off those
        that leave, and else says nothing.
        """
        async for shard in self._records.all(keys.shards(stored.value.save_id), Shard):
            view = self._view(survey)
            for blob in shard.value.blobs:
                for holder in blob.holders:
                    survey.held.add(blob, holder)
                if blob.holders:
                    prospect = self._prospects.of(stored.value, shard.value, blob, view)
                    assert prospect is not None
                    self._note(survey, stored, shard, blob, prospect, None, not_before)

    def _look_at_blob(
        self,
        stored: Stored[Save],
        shard: Stored[Shard],
        blob: Blob,
        survey: Survey,
        found: _Found,
        mirrored: MirrorStanding,
        lost: list[tuple[str, Blob]],
        not_before: NotBefore,
    ) -> None:
        save, lost_by = stored.value, self._roll_call.lost.get(blob.id)
        if shard.value.is_in_backup_only(blob):
            return  # evicted since the save was read
        prospect = self._prospects.of(save, shard.value, blob, survey.view, preferred=lost_by)
        assert prospect is not None
        # What is lost of a save that was let go is missed by nobody, unless by who refers to it: that one counts then.
        if save.state.is_readable or not prospect.decision.is_unavailable:
            survey.degraded_blobs += prospect.decision.is_degraded
            survey.awaited_blobs += prospect.decision.is_awaited
        self._note(survey, stored, shard, blob, prospect, lost_by, not_before)
        self._count_blob(save, shard, blob, prospect, survey, found, mirrored, lost)

    def _count_blob(
        self,
        save: Save,
        shard: Stored[Shard],
        blob: Blob,
        prospect: Prospect,
        survey: Survey,
        found: _Found,
        mirrored: MirrorStanding,
        lost: list[tuple[str, Blob]],
    ) -> None:
        """What a blob makes of the save that needs it."""
        decision, pool = prospect.decision, self._members.pool(save.pool)
        # What it has that was compared with the record since its node came up (P4).
        counted = [holder for holder in decision.live if self._roll_call.has_answered(holder.node_id)]
        reached = standing(decision.form, counted, domains_of(blob, survey.view.nodes))
        found.level = min(found.level, level_of(pool, decision.form, reached))
        found.degraded |= reached < Standing.FULL or decision.form.code != prospect.wish.wanted.code
        found.is_lacking |= decision.is_lacking
        found.codes.add(blob.code)
        twin = twin_of(shard.value, blob)
        if twin is None:
            mirrored.is_full = mirrored.is_readable = False
        if decision.is_unavailable:
            lost += [(shard.key, blob), *([(shard.key, twin)] if twin else [])]

    def _look_at_mirror(
        self,
        stored: Stored[Save],
        shard: Stored[Shard],
        blob: Blob,
        survey: Survey,
        mirrored: MirrorStanding,
        not_before: NotBefore,
    ) -> None:
        lost_by = self._roll_call.lost.get(blob.id)
        prospect = self._prospects.of(stored.value, shard.value, blob, survey.view, preferred=lost_by)
        if prospect is None:
            return
        self._count_mirror(prospect, mirrored)
        self._note(survey, stored, shard, blob, prospect, lost_by, not_before)

    def _count_mirror(self, prospect: Prospect | None, mirrored: MirrorStanding) -> None:
        if prospect is None:
            return
        decision = prospect.decision
        answered = all(self._roll_call.has_answered(holder.node_id) for holder in decision.live)
        mirrored.is_full &= prospect.is_as_wanted and answered
        may_return = decision.undecided or decision.wait_seconds is not None
        mirrored.is_readable &= decision.standing is not Standing.LOST or may_return

    def _look_at_home(
        self,
        save: Save,
        home: Stored[Shard],
        blob: Blob,
        survey: Survey,
        found: _Found,
        mirrored: MirrorStanding,
        lost: list[tuple[str, Blob]],
    ) -> None:
        """A blob that the save refers to. It is seen to with its home; here it only counts."""
        prospect = self._prospects.of(save, home.value, blob, survey.view)
        assert prospect is not None
        self._count_blob(save, home, blob, prospect, survey, found, mirrored, lost)
        twin = twin_of(home.value, blob)
        if twin:
            self._count_mirror(self._prospects.of(save, home.value, twin, survey.view), mirrored)

    async def _record(self, stored: Stored[Save], survey: Survey, found: _Found) -> None:
        """The level once reached is history: it rises, and falls only when an operator lowered that of the pool (P4,
        I6). That it is short of redundancy is told beside it: not while a node is waited for, which would cost two
        writes for each checkpoint and reboot.
        """
        save = before = stored.value

        def edit(known: Save) -> Save:
            nonlocal before
            before = known
            if known.evicted:
                return known
            level = level_once_lowered(self._members.pool(save.pool), known.level, found.codes)
            if found.level > level:
                return replace(known, level=found.level, degraded=found.degraded)
            return replace(known, level=level, degraded=found.degraded and (known.degraded or found.is_lacking))

        if edit(save) == save:
            return
        raised = await self._catalog.amend(stored.key, save.save_id, edit)
        if raised and raised.level < before.level:
            log.info("level_lowered", job=save.job, step=save.step, fault_level=str(raised.level))
        elif raised and raised.degraded and not before.degraded:
            log.warning("checkpoint_degraded", job=save.job, step=save.step)
        elif raised and (raised.level > save.level or not raised.degraded):
            survey.raised.append(raised)
            log.info("level_raised", job=save.job, step=save.step, fault_level=str(raised.level))

    async def _find(self, lost: Sequence[tuple[str, Blob]], view: View, survey: Survey) -> bool:
        """True if nothing is lost after all. Who is up is asked when a node or disk came or went, not each time."""
        if not lost or not self._roll_call.has_changed:
            return not lost
        adopted = await self._strays.adopt(lost, view.nodes)
        if adopted:
            survey.wait(0.0)  # on record only now
        found = {(shard_key, blob.ordinal) for shard_key, blob in lost if blob.id in adopted}
        return all((shard_key, blob.ordinal) in found for shard_key, blob in lost)

    def _note(
        self,
        survey: Survey,
        stored: Stored[Save],
        shard: Stored[Shard],
        blob: Blob,
        prospect: Prospect,
        preferred: NodeId | None,
        not_before: NotBefore,
    ) -> None:
        survey.wait(prospect.decision.wait_seconds)
        action, urgency, size_bytes = prospect.action, prospect.urgency, prospect.size_bytes
        move: Copy | None = None
        if action is None:
            move = self._move(survey, blob, prospect)
            if move is None:
                return
            urgency, size_bytes = (Urgency.BALANCE, 0.0, 0), move.size_bytes
        backoff_seconds = not_before(blob.id)
        if backoff_seconds is not None:
            survey.failing.add(blob.id)
            if backoff_seconds > 0:
                survey.wait(backoff_seconds)
                return
        made = action or move
        target = made.target if isinstance(made, Copy) else None
        rank = shard.value.rank
        survey.add(Job(urgency, stored, shard.key, rank, blob.id, size_bytes, preferred, target, move))

    def _move(self, survey: Survey, blob: Blob, prospect: Prospect) -> Copy | None:
        """What is nobody's need, but evens out how full nodes are; only once all of the catalog was looked at."""
        if not survey.limit or survey.balance_moves >= _MAX_BALANCE_MOVES or not self._stocks.held.is_complete:
            return None
        move = self._balance(survey, prospect.pool).move(blob, prospect.decision)
        survey.balance_moves += move is not None
        return move

    def _balance(self, survey: Survey, pool: Pool) -> Balance:
        if pool.name not in survey.balances:
            survey.balances[pool.name] = Balance(survey.view.nodes, survey.view.eligible(pool))
        return survey.balances[pool.name]
