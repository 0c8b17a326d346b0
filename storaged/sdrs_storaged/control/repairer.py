"""Copies by themselves: what a loss left short is copied again, what is more than enough is let go.

A thin loop: survey the catalog, then carry out the most urgent, a few at a time. It is woken when something changed,
and looks again every so often by itself. Whatever is interrupted is found again by the next survey: a copy that was
made but not recorded is made again at once (P11), a drop that was begun is finished (P14).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Save, Shard
from sdrs_core.errors import CorruptDataError, SdrsError, StaleTermError
from sdrs_core.ids import BlobId, NodeId, SaveId
from sdrs_core.repair import Copy
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.copier import Copier, MissingCopyError
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.holders import find_blob
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored
from sdrs_storaged.control.retries import Retries
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.survey import Job, Survey, Surveyor
from sdrs_storaged.logs import get_log

log = get_log("repairer")

_LOOK_AHEAD_JOBS = 1000
_MAX_NAMED = 3
# A survey is rested from for as long as this many surveys take, however often the catalog is to be looked at.
_REST_SURVEYS = 9
# After so many failures in a row the copies that should serve are looked at themselves; at once if no source was good.
_INSPECT_EVERY = 2


@dataclass(slots=True)
class RepairTotals:
    """As the last survey found, and what was done since this controller leads."""

    degraded_blobs: int = 0
    awaited_blobs: int = 0
    unavailable_count: int = 0
    waiting_blobs: int = 0
    waiting_bytes: int = 0
    done_blobs: int = 0
    done_bytes: int = 0
    trimmed_blobs: int = 0
    failed_blobs: int = 0


class Repairer:
    def __init__(
        self,
        records: Records,
        surveyor: Surveyor,
        roll_call: RollCall,
        copier: Copier,
        events: Events,
        clock: Clock,
        *,
        inspect: Callable[[Stored[Save], int, BlobId], Awaitable[None]],
        interval_seconds: float,
        concurrency: int,
    ) -> None:
        self._records = records
        self._surveyor = surveyor
        self._roll_call = roll_call
        self._copier = copier
        self._events = events
        self._clock = clock
        self._inspect = inspect
        self._interval_seconds = interval_seconds
        self._concurrency = concurrency
        self._retries = Retries(clock)
        self._woken = asyncio.Event()
        self._freed = asyncio.Event()
        self._busy: set[NodeId] = set()
        self._fatal: SdrsError | None = None
        self._survey_seconds = 0.0
        self._wait_seconds: float | None = None
        self.totals = RepairTotals()
        # Readable saves of which some blob has no copy in reach, as the last survey found; their number is in totals.
        self.unavailable: dict[SaveId, Save] = {}

    def poke(self) -> None:
        """Something changed that may need repair: a node, a holder, a save below its level."""
        self._woken.set()

    def node_returned(self, node_id: NodeId) -> None:
        """It came (back) up: what it holds is compared with the catalog."""
        self._roll_call.call(node_id)
        self.poke()

    async def run(self) -> None:
        while True:
            try:
                await self.pass_once()
            except StaleTermError:
                raise
            except SdrsError as error:
                # The next pass begins anew from the records.
                log.warning("repair_interrupted", why=error.message)
            except Exception as error:
                # A defect here must not take the control plane down with it.
                log.error("repair_failed", exc_info=error)
            await self._rest()

    async def _rest(self) -> None:
        rest_seconds = max(self._interval_seconds, _REST_SURVEYS * self._survey_seconds)
        if self._wait_seconds is not None:
            rest_seconds = min(rest_seconds, max(self._wait_seconds, 1.0))
        # However often it is woken: surveys take at most half of the time.
        await asyncio.sleep(self._survey_seconds)
        try:
            async with asyncio.timeout(rest_seconds):
                await self._woken.wait()
        except TimeoutError:
            return

    async def pass_once(self) -> None:
        """One survey, and all that it found to do; less if it is woken meanwhile, since then something may be more
        urgent.
        """
        await self._records.check_leading()  # P18: nothing is moved against a past that a node knows better
        self._woken.clear()
        began = self._clock.monotonic_seconds()
        survey = await self._surveyor.survey(self._retries.seconds_left)
        # Without what a frozen node had it wait: resting in proportion to that would leave the others unrepaired.
        survey_seconds = self._clock.monotonic_seconds() - began - self._roll_call.waited_seconds
        self._survey_seconds = max(0.0, survey_seconds)
        self._wait_seconds = survey.wait_seconds
        self._retries.keep_only(survey.failing)
        jobs = survey.jobs()
        self.totals.degraded_blobs = survey.degraded_blobs
        self.totals.awaited_blobs = survey.awaited_blobs
        self.totals.failed_blobs = len(survey.failing)
        self.totals.waiting_blobs = len(jobs) + survey.left_out
        self.totals.waiting_bytes = sum(job.size_bytes for job in jobs) + survey.left_out_bytes
        await self._tell_unavailable(survey)
        done_before = replace(self.totals)
        await self._carry_out(jobs)
        raised = [*survey.raised, *await self._raise_levels(jobs)]
        if survey.left_out or jobs:
            self.poke()  # the next survey finds the rest, and that nothing is left to do
        await self._tell_done(done_before, raised)

    # Carrying out

    async def _carry_out(self, jobs: list[Job]) -> None:
        waiting = deque(jobs)
        self._fatal = None
        until = self._clock.monotonic_seconds() + self._survey_seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(jobs))):
                group.create_task(self._work(waiting, until))
        if self._fatal:
            raise self._fatal

    async def _work(self, waiting: deque[Job], until_seconds: float) -> None:
        while waiting:
            self._freed.clear()
            job = self._next(waiting)
            if job is None:
                # All that is left goes to nodes that are busy.
                await self._freed.wait()
                continue
            try:
                busy_target = await self._attempt(job)
            except SdrsError as error:
                self._fatal = error
                waiting.clear()
            else:
                if busy_target:
                    waiting.appendleft(replace(job, target=busy_target))
                else:
                    self.totals.waiting_blobs -= 1
                    self.totals.waiting_bytes -= job.size_bytes
            finally:
                self._freed.set()
            if self._woken.is_set() and self._clock.monotonic_seconds() >= until_seconds:
                waiting.clear()

    def _next(self, waiting: deque[Job]) -> Job | None:
        """The most urgent whose target does nothing else: one copy at a time for each."""
        for position in range(min(len(waiting), _LOOK_AHEAD_JOBS)):
            job = waiting[position]
            if job.target not in self._busy:
                del waiting[position]
                return job
        return None

    async def _attempt(self, job: Job) -> NodeId | None:
        """The target that it has to wait for, if it has. Raises only what concerns all jobs."""
        try:
            busy_target = await self._repair(job)
        except SdrsError as error:
            # Is it this blob, or is it the store, or our term? The latter ends the pass.
            await self._records.check_leading()
            if isinstance(error, MissingCopyError):
                for node_id in error.node_ids:
                    self._roll_call.call(node_id)
            failures = self._retries.failed(job.blob_id)
            self.totals.failed_blobs = len(self._retries)
            log.warning("blob_not_repaired", blob=job.blob_id, failures=failures, why=error.message)
            if isinstance(error, CorruptDataError) or failures % _INSPECT_EVERY == 0:
                await self._inspect_copies(job)
            return None
        except Exception as error:
            # A defect that one blob brings out must not keep the others.
            failures = self._retries.failed(job.blob_id)
            log.error("blob_not_repaired", blob=job.blob_id, failures=failures, exc_info=error)
            return None
        if busy_target is None:
            self._retries.succeeded(job.blob_id)
        return busy_target

    async def _inspect_copies(self, job: Job) -> None:
        """Perhaps what should serve as the source is itself bad: then it must not count any more."""
        try:
            await self._inspect(job.save, job.rank, job.blob_id)
        except SdrsError as error:
            log.warning("copies_not_inspected", blob=job.blob_id, why=error.message)

    async def _repair(self, job: Job) -> NodeId | None:
        save = job.save.value
        for _ in range(MAX_TRIES):
            stored = await self._records.get(job.shard_key, Shard)
            blob = find_blob(stored.value, job.blob_id) if stored else None
            if stored is None or blob is None:
                return None
            decision = self._surveyor.decide(save, blob, preferred=job.preferred)
            action = decision.action
            if action is None:
                return None
            if isinstance(action, Copy):
                if action.target in self._busy:
                    return action.target
                if not await self._copy(save, stored, action):
                    return None
                continue
            kept = [holder for holder in decision.live if holder != action.holder]
            try:
                await self._copier.trim(stored, action, kept)
            except ConflictError:
                continue
            self.totals.trimmed_blobs += 1
        return None

    async def _copy(self, save: Save, stored: Stored[Shard], action: Copy) -> bool:
        self._busy.add(action.target)
        try:
            made = await self._copier.copy(save, stored, action)
        finally:
            self._busy.discard(action.target)
        if made:
            self.totals.done_blobs += 1
            self.totals.done_bytes += action.blob.size_bytes
        return made

    async def _raise_levels(self, jobs: list[Job]) -> list[Save]:
        """Of the saves that were worked on, those that now have what their pool promises."""
        touched = {job.save.key: job.save for job in jobs}
        raised = [await self._surveyor.raise_level(stored) for stored in touched.values()]
        return [save for save in raised if save]

    # Telling

    async def _tell_unavailable(self, survey: Survey) -> None:
        before, self.unavailable = self.unavailable, survey.unavailable
        self.totals.unavailable_count = survey.unavailable_count
        lost = [save for save_id, save in survey.unavailable.items() if save_id not in before]
        back = [save for save_id, save in before.items() if save_id not in survey.unavailable]
        if lost:
            log.error("checkpoints_unavailable", names=_names(lost), checkpoint_count=len(lost))
            await self._events.record("checkpoints_unavailable", f"no copy of some blob is in reach: {_names(lost)}")
        if back:
            log.info("checkpoints_available", names=_names(back), checkpoint_count=len(back))
            await self._events.record("checkpoints_available", f"no longer unavailable: {_names(back)}")

    async def _tell_done(self, before: RepairTotals, raised: list[Save]) -> None:
        made = self.totals.done_blobs - before.done_blobs
        if made:
            made_bytes = self.totals.done_bytes - before.done_bytes
            log.info("copies_made", blob_count=made, size_bytes=made_bytes, waiting_blobs=self.totals.waiting_blobs)
            left = f", {self.totals.waiting_blobs} blobs wait" if self.totals.waiting_blobs else ""
            copies = "1 copy" if made == 1 else f"{made} copies"
            await self._events.record("repair_done", f"{copies} made, {made_bytes} bytes{left}")
        if raised:
            await self._events.record("level_raised", f"all copies there: {_names(raised)}")


def _names(saves: list[Save]) -> str:
    named = ", ".join(save.title for save in saves[:_MAX_NAMED])
    return f"{named} and {len(saves) - _MAX_NAMED} more" if len(saves) > _MAX_NAMED else named
