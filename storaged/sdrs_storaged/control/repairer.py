"""Redundancy by itself: what a loss left short is made again, what is in the wrong place or form moves, what is more
than enough is let go.

A thin loop: survey the catalog, then carry out the most urgent, a few at a time. It is woken when something changed,
and looks again every so often by itself, also while something slow is under way: the newest survey says what comes
next. Whatever is interrupted is found again by the next survey: a fragment that was made but not recorded is made
again at once (P11), a drop that was begun is finished (P14).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from sdrs_core.checkpoints import Save
from sdrs_core.errors import CorruptDataError, SdrsError, StaleTermError
from sdrs_core.ids import BlobId, DiskId, NodeId, PoolName, SaveId
from sdrs_core.remedies import Urgency
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.copier import CalledOffError, Leash, MissingCopyError
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
        # What waits, the most urgent first, as the last survey found; and what is under way, by its blob, perhaps since
        # an earlier one.
        self._waiting: deque[Job] = deque()
        self._working: dict[BlobId, tuple[Job, Leash]] = {}
        # Of those under way, the ones that the totals count as waiting, as they are counted there.
        self._counted: dict[BlobId, Job] = {}
        # Since the survey began, which may have passed by them before.
        self._failed_lately: set[BlobId] = set()
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._moved_on = asyncio.Event()
        mender.on_freed = self._fill
        self._told = replace(mender.totals)
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
        under_way_bytes = sum(
            min(leash.measured.made_bytes, self._counted[blob_id].size_bytes)
            for blob_id, (_, leash) in self._working.items()
            if leash.measured and blob_id in self._counted
        )
        waiting_bytes = totals.waiting_bytes - under_way_bytes
        return RepairProgress(
            waiting_blobs=totals.waiting_blobs,
            waiting_bytes=waiting_bytes,
            done_blobs=totals.done_blobs,
            done_bytes=totals.done_bytes,
            wave_done_bytes=totals.wave_done_bytes + under_way_bytes,
            failed_blobs=totals.failed_blobs,
            awaited_blobs=totals.awaited_blobs,
            moving_blobs=totals.moving_blobs,
            mirroring_blobs=totals.mirroring_blobs,
            bytes_per_second=rate,
            remaining_seconds=-(-waiting_bytes // rate) if rate else 0,
            failures=tuple(self._failures),
        )

    def settings(self) -> RepairSettings:
        return self._throttle.settings

    async def load_settings(self) -> None:
        await self._throttle.load()

    async def change_settings(
        self, *, bytes_per_second: int | None = None, concurrency: int | None = None
    ) -> RepairSettings:
        """It holds from now on, in a second or so for what is under way too, and for controllers after this one."""
        changed = await self._throttle.change(bytes_per_second=bytes_per_second, concurrency=concurrency)
        log.info("repair_set", bytes_per_second=changed.bytes_per_second, concurrency=changed.concurrency)
        self._fill()
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
        self._moved_on.set()

    def node_returned(self, node_id: NodeId) -> None:
        """It came (back) up: what it holds is compared with the catalog."""
        self._roll_call.call(node_id)
        self.poke()

    async def run(self) -> None:
        deposed: StaleTermError | None = None
        async with self._workers():
            while deposed is None:
                try:
                    await self._pass()
                except StaleTermError as error:
                    deposed = error
                    break
                except SdrsError as error:
                    # The next pass begins anew from the records.
                    log.warning("repair_interrupted", why=error.message)
                except Exception as error:
                    # A defect here must not take the control plane down with it.
                    log.error("repair_failed", exc_info=error)
                await self._rest()
            for task in self._tasks:
                task.cancel()
        raise deposed

    async def pass_once(self) -> None:
        """One survey, and all that it found to do; less if it is woken meanwhile, since then something may be more
        urgent.
        """
        failure: Exception | None = None
        async with self._workers():
            try:
                await self._pass()
            except Exception as error:
                failure = error
            self._waiting.clear()
        failure, self._fatal = failure or self._fatal, None
        if failure:
            raise failure

    @asynccontextmanager
    async def _workers(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as self._group:
            try:
                yield
            finally:
                self._waiting.clear()
        self._group = None

    async def _rest(self) -> None:
        # However often it is woken: surveys take at most half of the time.
        await asyncio.sleep(self._survey_seconds)
        try:
            async with asyncio.timeout(self._rest_seconds()):
                await self._woken.wait()
        except TimeoutError:
            return

    def _rest_seconds(self) -> float:
        rest_seconds = max(self._interval_seconds, _REST_SURVEYS * self._survey_seconds)
        if self._wait_seconds is not None:
            rest_seconds = min(rest_seconds, max(self._wait_seconds, 1.0))
        return rest_seconds

    async def _pass(self) -> None:
        self._check_fatal()
        await self._records.check_leading()  # P18: nothing is moved against a past that a node knows better
        self._woken.clear()
        self._failed_lately.clear()
        if self._stocks.note_room():
            self._retries.forgive()
        began = self._clock.monotonic_seconds()
        survey = await self._surveyor.survey(self._retries.seconds_left)
        # Without what a frozen node had it wait: resting in proportion to that would leave the others unrepaired.
        survey_seconds = self._clock.monotonic_seconds() - began - self._roll_call.waited_seconds
        self._survey_seconds = max(0.0, survey_seconds)
        self._wait_seconds = survey.wait_seconds
        self._retries.keep_only(survey.failing | self._failed_lately)
        self._stocks.held, self._mirrored = survey.held, survey.mirrored
        jobs = survey.jobs()
        # At once: what ends meanwhile is taken off the totals that count it.
        self.totals.found(survey, jobs)
        self._waiting = deque(job for job in jobs if not self._is_under_way(job))
        self._counted = {job.blob_id: job for job in jobs if self._is_under_way(job)}
        before, self.unavailable = self.unavailable, survey.unavailable
        self.totals.unavailable_count = survey.unavailable_count
        await self._news.tell_unavailable(before, self.unavailable)
        await self._carry_out()
        raised = [*survey.raised, *await self._raise_levels(jobs)]
        if survey.left_out or jobs:
            self.poke()  # the next survey finds the rest, and that nothing is left to do
        told, self._told = self._told, replace(self.totals)
        await self._news.tell_done(told, self._told, raised)

    # Carrying out

    async def _carry_out(self) -> None:
        """Until all is done, or it is time for another look; what is under way then goes on meanwhile."""
        self._make_way()
        until = self._clock.monotonic_seconds() + self._survey_seconds
        self._fill()
        try:
            async with asyncio.timeout(self._rest_seconds()):
                while self._working:
                    left_seconds = until - self._clock.monotonic_seconds()
                    if self._woken.is_set() and left_seconds <= 0:
                        self._waiting.clear()
                        break
                    await self._progress(left_seconds if self._woken.is_set() else None)
                    self._check_fatal()
        except TimeoutError:
            return
        self._check_fatal()

    def _is_under_way(self, job: Job) -> bool:
        """As it is, or as something as urgent."""
        known = self._working.get(job.blob_id)
        return known is not None and (known[0].kind is Urgency.REBUILD or job.kind is not Urgency.REBUILD)

    def _make_way(self) -> None:
        """What only moves, and may take hours, is called off where it keeps a blob or a node from what is short of
        redundancy.
        """
        urgent = [job for job in self._waiting if job.kind is Urgency.REBUILD]
        leashes = {id(leash): leash for job, leash in self._working.values() if job.kind is not Urgency.REBUILD}
        for job in urgent[: self._throttle.settings.concurrency]:
            known = self._working.get(job.blob_id)
            for leash in (known[1] if known else None, self._mender.busy.get(job.target) if job.target else None):
                if leash is not None and id(leash) in leashes:
                    self._mender.call_off(leash)

    async def _progress(self, seconds: float | None) -> None:
        """Something is done, or somebody wakes the loop."""
        self._moved_on.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._moved_on.wait()

    def _fill(self) -> None:
        """Whoever has a free slot begins with the most urgent."""
        while self._group is not None and (job := self._next()):
            leash = Leash(self._throttle.limit)
            self._working[job.blob_id] = (job, leash)
            self._counted[job.blob_id] = job
            self._throttle.at_once = len(self._working)
            task = self._group.create_task(self._work(job, leash))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, job: Job, leash: Leash) -> None:
        try:
            busy_target = await self._attempt(job, leash)
        except SdrsError as error:
            self._fatal = error
            self._waiting.clear()
        else:
            if busy_target:
                self._waiting.appendleft(replace(job, target=busy_target))
            elif counted := self._counted.get(job.blob_id):
                self.totals.finished(counted)
        finally:
            del self._working[job.blob_id]
            self._counted.pop(job.blob_id, None)
            self._throttle.at_once = len(self._working)
            self._moved_on.set()
        self._fill()

    def _next(self) -> Job | None:
        """The most urgent whose target does nothing else: one copy at a time for each. What is short of redundancy does
        not wait for slots that something less urgent holds, perhaps for hours.
        """
        limit = self._throttle.settings.concurrency
        rebuilding = sum(job.kind is Urgency.REBUILD for job, _ in self._working.values())
        for position in range(min(len(self._waiting), _LOOK_AHEAD_JOBS)):
            job = self._waiting[position]
            if (rebuilding if job.kind is Urgency.REBUILD else len(self._working)) >= limit:
                return None
            if job.target not in self._mender.busy and job.blob_id not in self._working:
                del self._waiting[position]
                return job
        return None

    def _check_fatal(self) -> None:
        fatal, self._fatal = self._fatal, None
        if fatal:
            raise fatal

    async def _attempt(self, job: Job, leash: Leash) -> NodeId | None:
        """The target that it has to wait for, if it has. Raises only what concerns all jobs."""
        try:
            busy_target = await self._mender.mend(job, leash)
        except CalledOffError:
            self.poke()  # what made it do so is done soon
            return None
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
        self._failed_lately.add(job.blob_id)
        self.totals.failed_blobs = len(self._retries)
        self._failures.append(f"{job.save.value.title} rank {job.rank}, blob {job.blob_id}: {why}")
        return failures

    async def _raise_levels(self, jobs: list[Job]) -> list[Save]:
        """Of the saves that were worked on, those that now have what their pool promises."""
        touched = {job.save.key: job.save for job in jobs}
        raised = [await self._surveyor.look_again(stored) for stored in touched.values()]
        return [save for save in raised if save]
