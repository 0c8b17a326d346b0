"""Restore rounds: all ranks of an attempt restore the same generation (P16).

A round is written when it opens, when it fails and when it is done; who has verified so far is kept in memory,
because ranks repeat their report until the round ends. The round pins its generation: nothing deletes what is being
restored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sdrs_core.attempts import Attempt, Job
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import (
    InvalidArgumentError,
    NotFoundError,
    NotRestorableError,
    StaleAttemptError,
    UnavailableError,
    WorldSizeMismatchError,
)
from sdrs_core.ids import JobName, SaveId, check_name, check_rank
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import ConflictError, Records, Stored, put
from sdrs_storaged.control.saves import Saves
from sdrs_storaged.logs import get_log

log = get_log("rounds")

_MAX_TRIES = 20
_MAX_PUTS_PER_TXN = 100
# Ranks report again every few seconds; a round that nobody speaks for so long no longer pins anything.
_SILENT_SECONDS = 300.0


class Outcome(StrEnum):
    OPEN = "open"
    DONE = "done"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Round:
    job: JobName
    attempt: int
    number: int
    world_size: int
    save_id: SaveId
    step: int
    wanted_step: int | None
    resume: bool
    outcome: Outcome = Outcome.OPEN
    failure: str = ""
    failed: tuple[SaveId, ...] = ()


@dataclass(slots=True)
class _Live:
    stored: Stored[Round]
    heard_seconds: float
    verified: set[int] = field(default_factory=set)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Rounds:
    def __init__(self, records: Records, saves: Saves, commits: Commits, clock: Clock) -> None:
        self._records = records
        self._saves = saves
        self._commits = commits
        self._clock = clock
        self._live: dict[JobName, _Live] = {}

    async def load(self) -> None:
        """Open rounds go on under a new controller: their ranks report again."""
        async for stored in self._records.all("round/", Round):
            if stored.value.outcome is Outcome.OPEN:
                self._live[stored.value.job] = _Live(stored, self._clock.monotonic_seconds())

    def pinned(self) -> set[SaveId]:
        now = self._clock.monotonic_seconds()
        return {
            live.stored.value.save_id
            for live in self._live.values()
            if not live.ended.is_set() and now - live.heard_seconds < _SILENT_SECONDS
        }

    async def join(
        self, job: JobName, attempt: Attempt, rank: int, world_size: int, *, step: int | None, resume: bool
    ) -> tuple[Round, Save]:
        """The round that this attempt is in, opened by whoever comes first; and the generation to restore."""
        check_name(job, "job")
        check_rank(rank, world_size)
        for _ in range(_MAX_TRIES):
            try:
                current = await self._current(job, attempt, world_size, step=step, resume=resume)
                save = await self._commits.find(current.save_id, job, current.step)
                return current, save
            except ConflictError:
                continue
        raise UnavailableError(f'the restore round of job "{job}" changes all the time: try again')

    async def _current(
        self, job: JobName, attempt: Attempt, world_size: int, *, step: int | None, resume: bool
    ) -> Round:
        _, number = await self._saves.admit_attempt(job, attempt)
        stored = await self._records.get(keys.round_of(job), Round)
        last = stored.value if stored and stored.value.attempt == number else None
        if last and last.outcome is Outcome.OPEN:
            if last.world_size != world_size:
                raise WorldSizeMismatchError(
                    f'job "{job}" is being restored with world_size {last.world_size}, this rank says {world_size}'
                )
            if (last.wanted_step, last.resume) != (step, resume):
                raise InvalidArgumentError(
                    f'the ranks of job "{job}" ask for different restores: step and resume must agree'
                )
            return last
        failed = last.failed if last and last.outcome is Outcome.NEXT else ()
        save = await self._choose(job, step, failed, last.failure if last else "")
        opened = Round(
            job=job,
            attempt=number,
            number=last.number + 1 if last else 1,
            world_size=world_size,
            save_id=save.save_id,
            step=save.step,
            wanted_step=step,
            resume=resume,
            failed=failed,
        )
        key = keys.round_of(job)
        guard = stored.unchanged() if stored else Compare.absent(key)
        # The generation is compared too: a delete and a round that pins it cannot both win.
        target = await self._records.get(keys.save(job, save.step, save.attempt), Save)
        if target is None or target.value.save_id != save.save_id:
            raise ConflictError("the generation was deleted in between")
        revision = await self._records.commit([guard, target.unchanged()], [put(key, opened)])
        self._live[job] = _Live(Stored(key, opened, revision), self._clock.monotonic_seconds())
        log.info("round_opened", job=job, attempt=number, round=opened.number, step=save.step)
        return opened

    async def _choose(self, job: JobName, step: int | None, failed: tuple[SaveId, ...], failure: str) -> Save:
        """The newest generation that has not failed a round of this attempt; an older one than any that did."""
        seen_steps: set[int] = set()
        async for stored in self._records.all(keys.saves_of_job(job), Save):
            save = stored.value
            if save.state is not SaveState.COMMITTED or save.step in seen_steps:
                continue
            seen_steps.add(save.step)
            if step is None and save.damage == "" and save.save_id not in failed:
                return save
            if step == save.step and save.save_id not in failed:
                return save
        if failed or step in seen_steps:
            raise NotRestorableError(
                f'no generation of job "{job}" that was asked for can be restored ({failure})', job=job
            )
        if step is not None:
            raise NotFoundError(f'job "{job}" has no checkpoint of step {step}', job=job, step=step)
        if seen_steps:
            raise NotRestorableError(f'every checkpoint of job "{job}" is damaged: see "sdrs ckpt list {job}"', job=job)
        raise NotFoundError(f'job "{job}" has no checkpoints', job=job)

    async def report(
        self, job: JobName, attempt: Attempt, number: int, rank: int, failure: str, wait_ms: int
    ) -> tuple[Outcome, str]:
        """A rank verified its bytes (``failure`` empty) or could not; the round's outcome once it is known."""
        _, attempt_number = await self._saves.admit_attempt(job, attempt)
        stored = await self._records.get(keys.round_of(job), Round)
        if stored is None or stored.value.attempt != attempt_number or stored.value.number < number:
            raise NotFoundError(f'job "{job}" has no restore round {number} of this attempt: join again')
        if stored.value.number > number:
            return Outcome.NEXT, stored.value.failure
        if stored.value.outcome is not Outcome.OPEN:
            return stored.value.outcome, stored.value.failure
        live = self._live.setdefault(job, _Live(stored, self._clock.monotonic_seconds()))
        live.heard_seconds = self._clock.monotonic_seconds()
        if failure:
            await self._end(
                live,
                replace(
                    stored.value,
                    outcome=Outcome.NEXT,
                    failure=f"rank {rank}: {failure[:500]}",
                    failed=(*stored.value.failed, stored.value.save_id),
                ),
            )
        else:
            live.verified.add(rank)
            if len(live.verified) >= stored.value.world_size:
                if stored.value.resume:
                    await self._set_later_aside(stored.value)
                await self._end(live, replace(stored.value, outcome=Outcome.DONE))
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await live.ended.wait()
        except TimeoutError:
            return Outcome.OPEN, ""
        ended = await self._records.get(keys.round_of(job), Round)
        if ended is None or ended.value.attempt != attempt_number:
            raise StaleAttemptError(f'another attempt of job "{job}" took over during the restore', job=job)
        return (Outcome.NEXT if ended.value.number > number else ended.value.outcome), ended.value.failure

    async def _end(self, live: _Live, ended: Round) -> None:
        try:
            await self._records.commit([live.stored.unchanged()], [put(live.stored.key, ended)])
            log.info(
                "round_ended",
                job=ended.job,
                attempt=ended.attempt,
                round=ended.number,
                outcome=str(ended.outcome),
                failure=ended.failure,
            )
        except ConflictError:
            pass  # another rank's report ended it
        self._live.pop(ended.job, None)
        live.ended.set()

    async def _set_later_aside(self, done: Round) -> None:
        """Later generations are left behind by this resume: kept and listed, no longer newest.

        The job's record is written first: a save of an older attempt that commits later is set aside by it as well.
        """
        key = keys.job(done.job)
        for _ in range(_MAX_TRIES):
            job = await self._records.get(key, Job)
            if job is None or job.value.attempt != done.attempt:
                raise StaleAttemptError(
                    f'another attempt of job "{done.job}" took over during the restore', job=done.job
                )
            try:
                await self._records.commit([job.unchanged()], [put(key, replace(job.value, resumed_step=done.step))])
                break
            except ConflictError:
                continue
        later = [
            stored
            async for stored in self._records.all(keys.saves_of_job(done.job), Save)
            if stored.value.step > done.step
            and stored.value.state is SaveState.COMMITTED
            and stored.value.attempt < done.attempt
        ]
        note = f"attempt {done.attempt} resumed from step {done.step}"
        for start in range(0, len(later), _MAX_PUTS_PER_TXN):
            chunk = later[start : start + _MAX_PUTS_PER_TXN]
            aside = [put(s.key, replace(s.value, state=SaveState.SET_ASIDE, note=note)) for s in chunk]
            await self._records.commit([s.unchanged() for s in chunk], aside)
