"""Looking at all that is stored, over and over: by schedule and on demand, one scrub at a time.

How far it is stands in the MetaStore and is written every so often, so that another controller goes on with it. A
scrub that cannot go on for now, because the store is out of reach, is tried again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save
from sdrs_core.errors import NotFoundError, RefusedError, SdrsError, StaleTermError
from sdrs_core.ids import JobName, check_name, random_id
from sdrs_core.scrub import Depth, Schedule, next_due
from sdrs_storaged.control import keys
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.meta.store import Put
from sdrs_storaged.control.records import put
from sdrs_storaged.control.scrub_record import Scrub, ScrubRecord, Stage
from sdrs_storaged.control.scrub_run import ScrubRun, ScrubTools, StoppedError
from sdrs_storaged.logs import get_log

log = get_log("scrub")

SCHEDULED = "schedule"
_KEEP_SECONDS = 10.0
# However long it is until the next one is due: clocks may be moved.
_MAX_REST_SECONDS = 600.0
_RETRY_SECONDS = 5.0
# How long a stop waits until the scrub has ended: until the next answer of the nodes that are asked.
_STOP_SECONDS = 10.0


# What is counted since this controller leads, beside what each scrub counts.
_COUNTED = ("checked_fragments", "checked_bytes", "bad_fragments", "missing_fragments", "repaired_fragments")


class Scrubber:
    def __init__(self, tools: ScrubTools, events: Events, *, schedule: Schedule) -> None:
        self._tools = tools
        self._records = tools.records
        self._clock = tools.clock
        self._events = events
        self._schedule = schedule
        self._record: ScrubRecord | None = None
        self._is_stored = False
        self._lock = asyncio.Lock()
        self._woken = asyncio.Event()
        # The scrub that is to be stopped, and whether none is under way any more.
        self._stopping = ""
        self._ended = asyncio.Event()
        self._kept_seconds = 0.0
        # Of the scrub under way: since when this controller carries it on, and what was read before.
        self._began: tuple[float, int] | None = None
        self.totals: Counter[str] = Counter()

    @property
    def record(self) -> ScrubRecord | None:
        """As far as this controller has looked."""
        return self._record

    @property
    def bytes_per_second(self) -> int:
        """Since this controller carries on the scrub that is under way; 0: none is."""
        if self._began is None or self._record is None or self._record.scrub is None:
            return 0
        seconds = self._clock.monotonic_seconds() - self._began[0]
        return int((self._record.scrub.checked_bytes - self._began[1]) / seconds) if seconds > 0 else 0

    async def status(self) -> ScrubRecord:
        if self._record:
            return self._record  # also while the store is out of reach
        async with self._lock:
            return await self._load()

    async def start(self, depth: Depth, job: str = "", *, trigger: str, request_id: str = "") -> Scrub:
        """One that is under way already is joined if it is the same, and else in the way."""
        if job:
            check_name(job, "job")
            if await self._records.get(keys.job(job), Job) is None:
                raise NotFoundError(f'job "{job}" does not exist: is the name right? See: sdrs status', job=job)
        wanted = JobName(job) if job else None
        async with self._lock:
            last = (await self._load()).scrub
            if last and request_id and last.request_id == request_id:
                return last
            if last and last.is_under_way:
                if (last.depth, last.job) == (depth, wanted):
                    return last
                raise RefusedError(
                    f"a {last.title} is under way ({last.checked_checkpoints} of {last.total_checkpoints} checkpoints "
                    'are done): wait until it is through, "sdrs scrub status" tells, or end it with "sdrs scrub stop"'
                )
            return await self._begin(depth, wanted, trigger, request_id)

    async def _begin(self, depth: Depth, job: JobName | None, trigger: str, request_id: str) -> Scrub:
        record = await self._load()
        scrub = Scrub(random_id(), depth, job, trigger, request_id, self._clock.unix_ms())
        async for stored in self._records.all(keys.saves_of_job(job) if job else keys.SAVES, Save):
            scrub.total_checkpoints += stored.value.state.is_kept
        text = f"{scrub.title}, {scrub.total_checkpoints} in all (by {trigger})"
        await self._store(replace(record, scrub=scrub), self._events.entry("scrub_started", text))
        self._woken.set()
        log.info("scrub_started", depth=str(depth), job=job, trigger=trigger, checkpoints=scrub.total_checkpoints)
        return scrub

    async def stop(self) -> Scrub:
        """End the one under way: what it has found stands, and the next one begins anew. The last one if none is."""
        async with self._lock:
            record = await self._load()
            if record.scrub is None:
                raise NotFoundError("there is no scrub to stop: none has begun yet")
            if not record.scrub.is_under_way:
                return record.scrub
            self._stopping = record.scrub.id
            self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._ended.wait()
        return (await self.status()).scrub or record.scrub

    async def run(self) -> None:
        while True:
            try:
                rest_seconds = await self.pass_once()
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_seconds):
                        await self._woken.wait()
                continue
            except StaleTermError:
                raise
            except SdrsError as error:
                # It goes on from where it stood.
                log.warning("scrub_interrupted", why=error.message)
            except Exception as error:
                # A defect here must not take the control plane down with it.
                log.error("scrub_failed", exc_info=error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def pass_once(self) -> float:
        """Carry on what is under way, or begin what is due; for how long nothing is to do then."""
        await self._records.check_leading()
        async with self._lock:
            self._woken.clear()
            record = await self._load()
            if not self._is_stored:
                # From now on the intervals count, whichever controller leads.
                await self._store(record)
            due = next_due(
                self._schedule,
                shallow_unix_ms=max(record.shallow_done_unix_ms, record.shallow_stopped_unix_ms, record.since_unix_ms),
                deep_unix_ms=max(record.deep_done_unix_ms, record.deep_stopped_unix_ms, record.since_unix_ms),
                now_unix_ms=self._clock.unix_ms(),
            )
            is_idle = record.scrub is None or not record.scrub.is_under_way
            if is_idle and due and not due.in_seconds:
                await self._begin(due.depth, None, SCHEDULED, "")
            record = await self._load()
        if record.scrub and record.scrub.is_under_way:
            await self._carry_on(record, record.scrub)
            return 0.0  # perhaps another one is due by now
        return min(due.in_seconds, _MAX_REST_SECONDS) if due else _MAX_REST_SECONDS

    async def _carry_on(self, record: ScrubRecord, scrub: Scrub) -> None:
        self._began = (self._clock.monotonic_seconds(), scrub.checked_bytes)
        counted = _counts(scrub)

        async def keep(at_once: bool) -> None:
            self._count(scrub, counted)
            if at_once or self._clock.monotonic_seconds() - self._kept_seconds >= _KEEP_SECONDS:
                await self._store(record)

        def check_stopped() -> None:
            if self._stopping == scrub.id:
                raise StoppedError

        is_stopped = False
        try:
            await ScrubRun(self._tools, scrub, keep, check_stopped).carry_on()
        except StoppedError:
            is_stopped = True
        finally:
            self._count(scrub, counted)
            self._began = None
        await keep(True)
        await self._end(replace(scrub, is_stopped=is_stopped), record)

    async def _end(self, scrub: Scrub, record: ScrubRecord) -> None:
        now_unix_ms = self._clock.unix_ms()
        done = replace(scrub, stage=Stage.DONE, ended_unix_ms=now_unix_ms)
        after = replace(record, scrub=done)
        if done.job is None and done.is_stopped:
            if done.depth is Depth.DEEP:
                after.deep_stopped_unix_ms = now_unix_ms
            else:
                after.shallow_stopped_unix_ms = now_unix_ms
        elif done.job is None:
            after.shallow_done_unix_ms = now_unix_ms
            if done.depth is Depth.DEEP:
                after.deep_done_unix_ms = now_unix_ms
        kind = "scrub_stopped" if done.is_stopped else "scrub_done"
        text, duration_ms = summary(done), max(0, done.ended_unix_ms - done.started_unix_ms)
        await self._store(after, self._events.entry(kind, text, duration_ms=duration_ms))
        self._ended.set()
        tell = log.warning if done.has_findings else log.info
        tell(kind, depth=str(done.depth), job=done.job, text=text)

    def _count(self, scrub: Scrub, counted: Counter[str]) -> None:
        """Add to the totals what came since ``counted``."""
        now = _counts(scrub)
        self.totals.update(now - counted)
        counted.update(now - counted)

    async def _load(self) -> ScrubRecord:
        if self._record is None:
            stored = await self._records.get(keys.SCRUB, ScrubRecord)
            self._record = stored.value if stored else ScrubRecord(self._clock.unix_ms())
            self._is_stored = stored is not None
        return self._record

    async def _store(self, record: ScrubRecord, *events: Put) -> None:
        try:
            # Nobody else writes it in this term, and every write holds for this term only.
            await self._records.commit([], [put(keys.SCRUB, record), *events])
        except SdrsError:
            if record is not self._record:
                # Whether that step was taken is not known: it is read again before anything else.
                self._record = None
            raise
        self._record, self._is_stored = record, True
        self._kept_seconds = self._clock.monotonic_seconds()


def _counts(scrub: Scrub) -> Counter[str]:
    return Counter({name: getattr(scrub, name) for name in _COUNTED})


def summary(scrub: Scrub) -> str:
    """In a sentence what it found."""
    of_all = f" of {scrub.total_checkpoints}" if scrub.is_stopped else ""
    found = [f"{scrub.checked_checkpoints}{of_all} checkpoints, {scrub.checked_fragments} fragments looked at"]
    for count, words in (
        (scrub.bad_fragments, "bad"),
        (scrub.missing_fragments, "missing"),
        (scrub.repaired_fragments, "made again"),
        (scrub.undecided_fragments, "undecided"),
        (scrub.unknown_fragments, "on no record"),
        (scrub.damaged_checkpoints, "checkpoints damaged"),
    ):
        if count:
            found.append(f"{count} {words}")
    stopped = ", stopped" if scrub.is_stopped else ""
    return f"{scrub.title}{stopped}: {', '.join(found)}"
