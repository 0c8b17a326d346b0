"""Restore rounds: all ranks of an attempt restore the same generation (P16).

A round is written when it opens, when it fails and when it is done; who has verified so far is kept in memory,
because ranks repeat their report until the round ends. The round pins its generation: nothing deletes what is being
restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sdrs_core.attempts import Attempt, Job
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import (
    InvalidArgumentError,
    NotFoundError,
    NotRestorableError,
    RefusedError,
    StaleAttemptError,
    UnavailableError,
    WorldSizeMismatchError,
)
from sdrs_core.ids import JobName, SaveId, check_name, check_rank
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, batched, put
from sdrs_storaged.control.saves import Saves
from sdrs_storaged.logs import get_log

log = get_log("rounds")

# A rank speaks when it joins and when it has read all its bytes; a round that is silent for longer than any such read
# no longer pins anything. A newer attempt ends it at once.
_SILENT_SECONDS = 24 * 3600.0


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
    # The last round of this attempt that all ranks finished: a slow one may ask for it when the next is open.
    done_number: int = 0
    # No generation later than this one was wanted.
    up_to_step: int | None = None


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
        self.has_backup: Callable[[Save], Awaitable[bool]] = _has_none

    async def load(self) -> None:
        """Open rounds go on under a new controller: their ranks report again."""
        async for stored in self._records.all(keys.ROUNDS, Round):
            if stored.value.outcome is Outcome.OPEN:
                self._listen(stored)

    def _listen(self, stored: Stored[Round]) -> _Live:
        """What is known of an open round. One that was found in the store only (the answer to its opening was lost, or
        a former controller opened it) is taken up here. ConflictError if ``stored`` is the past.
        """
        live = self._live.get(stored.value.job)
        if live and live.stored.revision > stored.revision:
            raise ConflictError("the round changed in between")
        if live is None or live.stored.revision < stored.revision:
            self._forget(stored.value.job)
            live = self._live[stored.value.job] = _Live(stored, self._clock.monotonic_seconds())
        return live

    def _forget(self, job: JobName) -> None:
        live = self._live.pop(job, None)
        if live:
            live.ended.set()

    def _is_silent(self, live: _Live) -> bool:
        return self._clock.monotonic_seconds() - live.heard_seconds > _SILENT_SECONDS

    def pinned(self) -> set[SaveId]:
        return {live.stored.value.save_id for live in self._live.values() if not self._is_silent(live)}

    async def unpinned(self, save: Save) -> Compare:
        """What a transaction that deletes ``save`` must compare, so that it and a round that pins it cannot both win;
        RefusedError if it is pinned now.
        """
        key = keys.round_of(save.job)
        job = await self._records.get(keys.job(save.job), Job)
        stored = await self._records.get(key, Round)
        if stored is None:
            return Compare.absent(key)
        current = stored.value
        if current.outcome is Outcome.OPEN and current.save_id == save.save_id:
            is_superseded = job is not None and job.value.attempt > current.attempt
            if not is_superseded and not self._is_silent(self._listen(stored)):
                raise RefusedError(f"{save.title} is being restored right now: try again when that is over")
        return stored.unchanged()

    async def join(
        self,
        job: JobName,
        attempt: Attempt,
        rank: int,
        world_size: int,
        *,
        step: int | None,
        resume: bool,
        up_to_step: int | None = None,
    ) -> tuple[Round, Save]:
        """The round that this attempt is in, opened by whoever comes first; and the generation to restore."""
        check_name(job, "job")
        check_rank(rank, world_size)
        for _ in range(MAX_TRIES):
            try:
                live = await self._current(job, attempt, world_size, step=step, resume=resume, up_to_step=up_to_step)
                live.heard_seconds = self._clock.monotonic_seconds()
                current = live.stored.value
                save = await self._find(current)
                if save:
                    return current, save
                await self._end_failed(live, f"step {current.step} was deleted")
            except ConflictError:
                continue
        raise UnavailableError(f'the restore round of job "{job}" changes all the time: try again')

    async def _find(self, current: Round) -> Save | None:
        try:
            save = await self._commits.find(current.save_id, current.job, current.step)
        except NotFoundError:
            return None
        return save if save.state.is_readable else None

    async def _current(
        self,
        job: JobName,
        attempt: Attempt,
        world_size: int,
        *,
        step: int | None,
        resume: bool,
        up_to_step: int | None,
    ) -> _Live:
        _, number = await self._saves.admit_attempt(job, attempt)
        stored = await self._records.get(keys.round_of(job), Round)
        last = stored.value if stored and stored.value.attempt == number else None
        if stored and last and last.outcome is Outcome.OPEN:
            if last.world_size != world_size:
                raise WorldSizeMismatchError(
                    f'job "{job}" is being restored with world_size {last.world_size}, this rank says {world_size}'
                )
            if (last.wanted_step, last.resume, last.up_to_step) != (step, resume, up_to_step):
                raise InvalidArgumentError(
                    f'the ranks of job "{job}" ask for different restores: step and resume must agree'
                )
            return self._listen(stored)
        failed_round = last if last and last.outcome is Outcome.NEXT else None
        save = await self._choose(job, step, up_to_step, failed_round)
        opened = Round(
            job=job,
            attempt=number,
            number=last.number + 1 if last else 1,
            world_size=world_size,
            save_id=save.save_id,
            step=save.step,
            wanted_step=step,
            resume=resume,
            failed=failed_round.failed if failed_round else (),
            done_number=_done_number(last) if last else 0,
            up_to_step=up_to_step,
        )
        key = keys.round_of(job)
        guard = stored.unchanged() if stored else Compare.absent(key)
        # The generation is compared too: a delete and a round that pins it cannot both win.
        target = await self._records.get(keys.save(job, save.step, save.attempt), Save)
        if target is None or target.value.save_id != save.save_id:
            raise ConflictError("the generation was deleted in between")
        revision = await self._records.commit([guard, target.unchanged()], [put(key, opened)])
        log.info("round_opened", job=job, attempt=number, round=opened.number, step=save.step)
        return self._listen(Stored(key, opened, revision))

    async def _choose(self, job: JobName, step: int | None, up_to_step: int | None, failed_round: Round | None) -> Save:
        """The newest generation up to ``up_to_step``, but one further back than what failed for this attempt. A step
        that is asked for may also be one that was set aside.
        """
        failed = failed_round.failed if failed_round else ()
        aside: Save | None = None
        seen_steps: set[int] = set()
        async for stored in self._records.all(keys.saves_of_job(job), Save):
            save = stored.value
            if save.state is SaveState.SET_ASIDE and save.step == step and save.save_id not in failed:
                aside = aside or save
            if save.state is not SaveState.COMMITTED or save.step in seen_steps:
                continue
            if up_to_step is not None and save.step > up_to_step:
                continue
            seen_steps.add(save.step)
            is_next = failed_round is None or save.step < failed_round.step
            # One that is damaged here and whole in a backup is brought back by whoever reads it.
            if step is None and is_next and (not save.damage or await self.has_backup(save)):
                return save
            if step == save.step and save.save_id not in failed:
                return save
        if aside and step not in seen_steps:
            return aside
        if failed_round or step in seen_steps:
            failure = failed_round.failure if failed_round else ""
            raise NotRestorableError(
                f'no generation of job "{job}" that was asked for can be restored ({failure})', job=job
            )
        if step is not None:
            raise NotFoundError(f'job "{job}" has no checkpoint of step {step}', job=job, step=step)
        if seen_steps:
            raise NotRestorableError(f'every checkpoint of job "{job}" is damaged: see "sdrs ckpt list {job}"', job=job)
        up_to = "" if up_to_step is None else f" up to step {up_to_step}"
        raise NotFoundError(f'job "{job}" has no checkpoints{up_to}', job=job)

    async def report(
        self, job: JobName, attempt: Attempt, number: int, rank: int, failure: str, wait_ms: int
    ) -> tuple[Outcome, str]:
        """A rank verified its bytes (``failure`` empty) or could not; the round's outcome once it is known."""
        for _ in range(MAX_TRIES):
            try:
                stored = await self._find_round(job, attempt, number)
                outcome = _outcome_of(stored.value, number)
                if outcome is not Outcome.OPEN:
                    return outcome, stored.value.failure
                live = self._listen(stored)
                await self._take_report(live, rank, failure)
                break
            except ConflictError:
                continue  # another rank's report ended it, or a record that it sets aside changed
        else:
            raise UnavailableError(f'the restore round of job "{job}" changes all the time: try again')
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await live.ended.wait()
        except TimeoutError:
            return Outcome.OPEN, ""
        ended = await self._find_round(job, attempt, number)
        return _outcome_of(ended.value, number), ended.value.failure

    async def _find_round(self, job: JobName, attempt: Attempt, number: int) -> Stored[Round]:
        _, attempt_number = await self._saves.admit_attempt(job, attempt)
        stored = await self._records.get(keys.round_of(job), Round)
        if stored is None or stored.value.attempt != attempt_number or stored.value.number < number:
            raise NotFoundError(f'job "{job}" has no restore round {number} of this attempt: join again')
        live = self._live.get(job)
        if live and live.stored.revision < stored.revision:
            self._forget(job)  # the store's answer to its end may have been lost
        return stored

    async def _take_report(self, live: _Live, rank: int, failure: str) -> None:
        current = live.stored.value
        check_rank(rank, current.world_size)
        live.heard_seconds = self._clock.monotonic_seconds()
        if failure:
            await self._end_failed(live, f"rank {rank}: {failure[:500]}")
            return
        live.verified.add(rank)
        if len(live.verified) == current.world_size:
            if current.resume:
                await self._resume(current)
            await self._end(live, replace(current, outcome=Outcome.DONE))

    async def _end_failed(self, live: _Live, failure: str) -> None:
        current = live.stored.value
        failed = (*current.failed, current.save_id)
        await self._end(live, replace(current, outcome=Outcome.NEXT, failure=failure, failed=failed))

    async def _end(self, live: _Live, ended: Round) -> None:
        await self._records.commit([live.stored.unchanged()], [put(live.stored.key, ended)])
        if self._live.get(ended.job) is live:
            self._forget(ended.job)
        log.info(
            "round_ended",
            job=ended.job,
            attempt=ended.attempt,
            round=ended.number,
            outcome=str(ended.outcome),
            failure=ended.failure,
        )

    async def _resume(self, done: Round) -> None:
        """Later generations are left behind by this resume: kept and listed, no longer newest.

        The job's record is written first: a save of an older attempt that commits later is set aside by it as well.
        Each step may be repeated: a round that could not end is reported again.
        """
        key = keys.job(done.job)
        job = await self._records.get(key, Job)
        if job is None or job.value.attempt != done.attempt:
            raise StaleAttemptError(f'another attempt of job "{done.job}" took over during the restore', job=done.job)
        resumed = replace(job.value, resumed_attempt=done.attempt, resumed_step=done.step)
        if resumed != job.value:
            await self._records.commit([job.unchanged()], [put(key, resumed)])
        changed: list[tuple[Stored[Save], Save]] = []
        async for stored in self._records.all(keys.saves_of_job(done.job), Save):
            save = stored.value
            if save.step < done.step:
                break  # newest first
            if save.step > done.step and save.state is SaveState.COMMITTED and save.attempt <= done.attempt:
                note = f"attempt {done.attempt} resumed from step {done.step}"
                changed.append((stored, replace(save, state=SaveState.SET_ASIDE, note=note)))
            elif save.save_id == done.save_id and save.state is SaveState.SET_ASIDE:
                # What the job goes on from is no longer beside its history.
                changed.append((stored, replace(save, state=SaveState.COMMITTED, note="")))
        for batch in batched((stored, put(stored.key, save)) for stored, save in changed):
            await self._records.commit([stored.unchanged() for stored, _ in batch], [write for _, write in batch])


async def _has_none(save: Save) -> bool:
    return False


def _done_number(last: Round) -> int:
    return last.number if last.outcome is Outcome.DONE else last.done_number


def _outcome_of(current: Round, number: int) -> Outcome:
    """How round ``number`` of the attempt ended, or stands; ``current`` is it or a later one."""
    if number == _done_number(current):
        return Outcome.DONE
    return Outcome.NEXT if number < current.number else current.outcome
