"""Redundancy by itself: what a loss left short is made again, what is in the wrong place or form moves, what is more
than enough is let go.

A thin loop: survey the catalog, then carry out the most urgent, a few at a time. It is woken when something changed,
and looks again every so often by itself. Whatever is interrupted is found again by the next survey: a fragment that was
made but not recorded is made again at once (P11), a drop that was begun is finished (P14).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sdrs_core.checkpoints import Save
from sdrs_core.errors import CorruptDataError, SdrsError, StaleTermError
from sdrs_core.ids import BlobId, DiskId, NodeId, PoolName, SaveId
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.copier import MissingCopyError
from sdrs_storaged.control.held import Amount
from sdrs_storaged.control.jobs import Job
from sdrs_storaged.control.mender import Mender
from sdrs_storaged.control.progress import RepairProgress, RepairTotals
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.control.repair_news import RepairNews
from sdrs_storaged.control.retries import Retries
from sdrs_storaged.control.roll_call import RollCall
from sdrs_storaged.control.stocks import Stocks
from sdrs_storaged.control.survey import Surveyor
from sdrs_storaged.control.throttle import RepairSettings, Throttle
from sdrs_storaged.logs import get_log

log = get_log("repairer")

_LOOK_AHEAD_JOBS = 1000
_MAX_FAILURES_TOLD = 20
# A survey is rested from for as long as this many surveys take, however often the catalog is to be looked at.
_REST_SURVEYS = 9
# After so many failures in a row what should serve is looked at itself; at once if no source was good.
_INSPECT_EVERY = 2


class Repairer:
    def __init__(
        self,
        records: Records,
        surveyor: Surveyor,
        roll_call: RollCall,
        mender: Mender,
        stocks: Stocks,
        throttle: Throttle,
        news: RepairNews,
        clock: Clock,
        *,
        inspect: Callable[[Stored[Save], int, BlobId], Awaitable[None]],
        interval_seconds: float,
    ) -> None:
        self._records = records
        self._surveyor = surveyor
        self._roll_call = roll_call
        self._mender = mender
        self._stocks = stocks
        self._throttle = throttle
        self._news = news
        self._clock = clock
        self._inspect = inspect
        self._interval_seconds = interval_seconds
        self._retries = Retries(clock)
        self._woken = asyncio.Event()
        self._fatal: SdrsError | None = None
        self._survey_seconds = 0.0
        self._wait_seconds: float | None = None
        self._failures: deque[str] = deque(maxlen=_MAX_FAILURES_TOLD)
        self._mirrored: dict[PoolName, Amount] = {}
        # Readable saves of which too little is in reach, as the last survey found; their number is in totals.
        self.unavailable: dict[SaveId, Save] = {}

    @property
    def totals(self) -> RepairTotals:
        return self._mender.totals

    # What operators ask and set

    def progress(self) -> RepairProgress:
        totals = self.totals
        rate = self._mender.meter.bytes_per_second(is_busy=bool(self._mender.busy))
        return RepairProgress(
            waiting_blobs=totals.waiting_blobs,
            waiting_bytes=totals.waiting_bytes,
            done_blobs=totals.done_blobs,
            done_bytes=totals.done_bytes,
            wave_done_bytes=totals.wave_done_bytes,
            failed_blobs=totals.failed_blobs,
            awaited_blobs=totals.awaited_blobs,
            moving_blobs=totals.moving_blobs,
            mirroring_blobs=totals.mirroring_blobs,
            bytes_per_second=rate,
            remaining_seconds=-(-totals.waiting_bytes // rate) if rate else 0,
            failures=tuple(self._failures),
        )

    def settings(self) -> RepairSettings:
        return self._throttle.settings

    async def load_settings(self) -> None:
        await self._throttle.load()

    async def change_settings(
        self, *, bytes_per_second: int | None = None, concurrency: int | None = None
    ) -> RepairSettings:
        """It holds for all that begins from now on, and for controllers that come after this one."""
        changed = await self._throttle.change(bytes_per_second=bytes_per_second, concurrency=concurrency)
        log.info("repair_set", bytes_per_second=changed.bytes_per_second, concurrency=changed.concurrency)
        self.poke()
        return changed

    def held_by(self, node_id: NodeId) -> Amount:
        """Fragments on record there, as the last survey found and with what was done since."""
        return self._stocks.held.on_node(node_id)

    def held_on(self, disk_id: DiskId) -> Amount:
        return self._stocks.held.on_disk(disk_id)

    def mirrored(self, pool: PoolName) -> Amount:
        """Checkpoints of this pool that have a whole mirror in another one, as the last survey found."""
        return self._mirrored.get(pool, Amount())

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
        self._stocks.held, self._mirrored = survey.held, survey.mirrored
        jobs = survey.jobs()
        self.totals.found(survey, jobs)
        before, self.unavailable = self.unavailable, survey.unavailable
        self.totals.unavailable_count = survey.unavailable_count
        await self._news.tell_unavailable(before, self.unavailable)
        done_before = replace(self.totals)
        await self._carry_out(jobs)
        raised = [*survey.raised, *await self._raise_levels(jobs)]
        if survey.left_out or jobs:
            self.poke()  # the next survey finds the rest, and that nothing is left to do
        await self._news.tell_done(done_before, self.totals, raised)

    # Carrying out

    async def _carry_out(self, jobs: list[Job]) -> None:
        waiting = deque(jobs)
        self._fatal = None
        until = self._clock.monotonic_seconds() + self._survey_seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._throttle.settings.concurrency, len(jobs))):
                group.create_task(self._work(waiting, until))
        if self._fatal:
            raise self._fatal

    async def _work(self, waiting: deque[Job], until_seconds: float) -> None:
        while waiting:
            job = self._next(waiting)
            if job is None:
                # All that is left goes to nodes that are busy.
                await self._mender.freed()
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
                    self.totals.finished(job)
            if self._woken.is_set() and self._clock.monotonic_seconds() >= until_seconds:
                waiting.clear()

    def _next(self, waiting: deque[Job]) -> Job | None:
        """The most urgent whose target does nothing else: one copy at a time for each."""
        for position in range(min(len(waiting), _LOOK_AHEAD_JOBS)):
            job = waiting[position]
            if job.target not in self._mender.busy:
                del waiting[position]
                return job
        return None

    async def _attempt(self, job: Job) -> NodeId | None:
        """The target that it has to wait for, if it has. Raises only what concerns all jobs."""
        try:
            busy_target = await self._mender.mend(job)
        except SdrsError as error:
            # Is it this blob, or is it the store, or our term? The latter ends the pass.
            await self._records.check_leading()
            if isinstance(error, MissingCopyError):
                for node_id in error.node_ids:
                    self._roll_call.call(node_id)
            failures = self._failed(job, error.message)
            log.warning("blob_not_repaired", blob=job.blob_id, failures=failures, why=error.message)
            if isinstance(error, CorruptDataError) or failures % _INSPECT_EVERY == 0:
                await self._inspect_copies(job)
            return None
        except Exception as error:
            # A defect that one blob brings out must not keep the others.
            failures = self._failed(job, f"a defect: {error!r}")
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

    def _failed(self, job: Job, why: str) -> int:
        """How often in a row, this one included."""
        failures = self._retries.failed(job.blob_id)
        self.totals.failed_blobs = len(self._retries)
        self._failures.append(f"{job.save.value.title} rank {job.rank}, blob {job.blob_id}: {why}")
        return failures

    async def _raise_levels(self, jobs: list[Job]) -> list[Save]:
        """Of the saves that were worked on, those that now have what their pool promises."""
        touched = {job.save.key: job.save for job in jobs}
        raised = [await self._surveyor.look_again(stored) for stored in touched.values()]
        return [save for save in raised if save]
