"""What goes in the end: generations beyond those a job wants to keep, and jobs that are over for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sdrs_core.errors import NotFoundError, RefusedError
from sdrs_scheduler import keys
from sdrs_scheduler.book import Book
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.errands import Errands, Outcome
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.resume import Generation
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.storage import Storage

log = get_log("keeping")

_MAX_DELETED_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class KeepingSettings:
    interval_seconds: float = 10.0
    finished_seconds: float = 30 * 86_400.0


def superfluous(generations: Sequence[Generation], keep: int, resume_step: int | None) -> list[Generation]:
    """Beyond the newest ``keep`` sound ones; never one that is held, and never the one that the attempt goes on from:
    until it saved, there is no other.
    """
    if not keep:
        return []
    sound = [generation for generation in generations if not generation.damage]
    kept = {generation.save_id for generation in sound[:keep]}
    oldest = sound[keep - 1].step if len(sound) >= keep else -1
    return [
        generation
        for generation in generations
        if generation.save_id not in kept
        and generation.step < oldest
        and not generation.held
        and generation.step != resume_step
    ]


def forgettable(jobs: Mapping[str, Job], now_unix_ms: int, finished_seconds: float) -> list[Job]:
    """Over for long enough, and nobody waits for them."""
    needed = {other for job in jobs.values() if not job.state.is_over for other in job.depends_on}
    before_ms = now_unix_ms - int(finished_seconds * 1000)
    return [
        job
        for job in jobs.values()
        if job.state.is_over and job.ended_unix_ms < before_ms and job.id not in needed and not job.wish
    ]


class Keeper:
    def __init__(
        self, book: Book, leader: Leader, storage: Storage, errands: Errands, clock: Clock, settings: KeepingSettings
    ) -> None:
        self._book = book
        self._leader = leader
        self._storage = storage
        self._errands = errands
        self._clock = clock
        self._settings = settings
        self._tidied = float("-inf")

    def tidy(self, generations: Mapping[str, Sequence[Generation]]) -> None:
        """Now and then: ``generations`` are those of the jobs that run."""
        now = self._clock.monotonic()
        if now - self._tidied < self._settings.interval_seconds:
            return
        self._tidied = now
        for job_id, found in generations.items():
            stored = self._book.jobs.get(job_id)
            if stored is not None and (attempt := self._book.attempt(stored.value)) is not None:
                self._trim(stored.value, attempt, found)
        jobs = {job_id: stored.value for job_id, stored in self._book.jobs.items()}
        for job in forgettable(jobs, self._clock.unix_ms(), self._settings.finished_seconds):
            self._remove(job)

    def finish(self, job: Job) -> None:
        """It is over: nobody goes on from a generation any more but from the newest."""
        if not job.spec.checkpoint.keep:
            return

        def done(outcome: Outcome[tuple[Generation, ...]]) -> None:
            if outcome.value is not None:
                self._delete(job, superfluous(outcome.value, job.spec.checkpoint.keep, None))

        self._errands.run(f"last:{job.id}", lambda: self._storage.generations(job.spec.history), done)

    def _trim(self, job: Job, attempt: Attempt, found: Sequence[Generation]) -> None:
        self._delete(job, superfluous(found, job.spec.checkpoint.keep, attempt.resume_step)[:_MAX_DELETED_AT_ONCE])

    def _delete(self, job: Job, surplus: Sequence[Generation]) -> None:
        if not surplus:
            return

        def work() -> None:
            for generation in surplus:
                try:
                    self._storage.delete(job.spec.history, generation.step)
                except (NotFoundError, RefusedError) as error:
                    log.info("generation_stays", job=job.id, step=generation.step, why=error.message)

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is not None:
                log.warning("generations_not_deleted", job=job.id, why=str(outcome.error))
            else:
                log.info("generations_deleted", job=job.id, steps=[generation.step for generation in surplus])

        self._errands.run(f"trim:{job.id}", work, done)

    def _remove(self, job: Job) -> None:
        stored = self._book.jobs[job.id]
        attempts = [keys.attempt(job.id, number) for number in range(1, job.attempt + 1)]
        # A change has a limit: the attempts go first, the newest last of all with the job itself.
        while len(attempts) > _MAX_DELETED_AT_ONCE:
            batch, attempts = attempts[:_MAX_DELETED_AT_ONCE], attempts[_MAX_DELETED_AT_ONCE:]
            self._leader.commit({stored.key: stored.revision}, {}, batch)
        if self._leader.commit({stored.key: stored.revision}, {}, [*attempts, stored.key]) is not None:
            log.info("job_forgotten", job=job.id, state=str(job.state))
            self._book.jobs.pop(job.id, None)
