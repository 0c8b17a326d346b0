"""From where waiting jobs go on: generations are verified in threads of their own, while the job waits anyway."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sdrs_scheduler.clock import Clock
from sdrs_scheduler.errands import Errands, Outcome
from sdrs_scheduler.jobs.job import Job
from sdrs_scheduler.jobs.resume import Check, Generation, Resumption, choose
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.storage import Storage

log = get_log("resuming")

# What was read through is believed for so long.
_BELIEVED_SECONDS = 600.0
# The newest generation may be out of reach only for now: so long it is waited for before an older one does.
_PATIENCE_SECONDS = 60.0
_LOOK_AGAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Known:
    check: Check
    at: float


@dataclass(frozen=True, slots=True)
class Blocked:
    """It cannot be said now: ``because`` is for people."""

    because: str


class Resolver:
    def __init__(self, storage: Storage, errands: Errands, clock: Clock) -> None:
        self._storage = storage
        self._errands = errands
        self._clock = clock
        self._checks: dict[str, _Known] = {}
        self._undecided_since: dict[str, float] = {}
        self._answers: dict[str, tuple[float, Resumption]] = {}
        self._blocked: dict[str, tuple[float, Blocked]] = {}

    def collect(self) -> None:
        self._errands.collect()

    def request(self, job: Job, max_age_seconds: float) -> None:
        """Find out; the answer is there some time later. One that is younger than this is not asked for again."""
        known = self._answers.get(job.id)
        if known is not None and self._clock.monotonic() - known[0] < max_age_seconds:
            return
        blocked = self._blocked.get(job.id)
        if blocked is not None and self._clock.monotonic() - blocked[0] < _LOOK_AGAIN_SECONDS:
            return
        self._errands.run(f"resume:{job.id}", lambda: self._look(job), lambda outcome: self._take(job, outcome))

    def answer(self, job: Job, since: float) -> Resumption | None:
        """What was found out after ``since`` (monotonic)."""
        known = self._answers.get(job.id)
        return known[1] if known is not None and known[0] >= since else None

    def blocked_because(self, job_id: str) -> str:
        """Why a job cannot go on now, whatever is free; empty: it can, or nobody knows yet."""
        known = self._blocked.get(job_id)
        return known[1].because if known is not None else ""

    def drop(self, job_id: str) -> None:
        self._answers.pop(job_id, None)
        self._blocked.pop(job_id, None)

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Others are over, and nobody asks for them again."""
        for job_id in (self._answers.keys() | self._blocked.keys()) - set(job_ids):
            self.drop(job_id)

    def _look(self, job: Job) -> Resumption | Blocked:
        """Read the list, verify what has to be verified."""
        checks: dict[str, Check] = dict(self._believed())
        while True:
            chosen = choose(
                self._storage.generations(job.spec.history),
                checks,
                resume=job.spec.checkpoint.resume,
                roll_back=job.roll_back,
                at_most_step=job.resume_at_most,
                progress_step=job.progress_step,
            )
            if isinstance(chosen, Resumption):
                out_of_reach = next((check.problem for check in checks.values() if check.is_whole is None), "")
                if out_of_reach and chosen.step is None:
                    # Never from the beginning while what was saved may come back.
                    return Blocked(f"all its checkpoints that may be whole are out of reach ({out_of_reach})")
                return chosen
            check = self._check(job, chosen)
            if check.is_whole is None and not self._is_patience_over(chosen):
                return Blocked(f"its checkpoint of step {chosen.step} is out of reach ({check.problem})")
            checks[chosen.save_id] = check

    def _believed(self) -> Mapping[str, Check]:
        now = self._clock.monotonic()
        for save_id, known in list(self._checks.items()):
            if now - known.at >= _BELIEVED_SECONDS:
                self._checks.pop(save_id, None)
        return {save_id: known.check for save_id, known in list(self._checks.items()) if known.check.is_whole}

    def _is_patience_over(self, generation: Generation) -> bool:
        return self._clock.monotonic() - self._undecided_since[generation.save_id] >= _PATIENCE_SECONDS

    def _check(self, job: Job, generation: Generation) -> Check:
        check = self._storage.check(job.spec.history, generation)
        now = self._clock.monotonic()
        log.info("generation_verified", job=job.id, step=generation.step, is_whole=check.is_whole, why=check.problem)
        if check.is_whole is None:
            self._undecided_since.setdefault(generation.save_id, now)
            return check
        self._undecided_since.pop(generation.save_id, None)
        self._checks[generation.save_id] = _Known(check, now)
        return check

    def _take(self, job: Job, outcome: Outcome[Resumption | Blocked]) -> None:
        now = self._clock.monotonic()
        found = outcome.value
        if found is None:
            log.warning("resumption_not_decided_yet", job=job.id, why=str(outcome.error))
            found = Blocked(f"its checkpoints cannot be looked at ({outcome.error})")
        if isinstance(found, Resumption):
            self._answers[job.id] = (now, found)
            self._blocked.pop(job.id, None)
        else:
            self._blocked[job.id] = (now, found)
