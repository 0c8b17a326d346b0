"""Attempts: which start of a job is speaking (P1).

A launcher names its run and counts its restarts; SDRS numbers the attempts of a job in the order in which it first
hears of them. Within one run the launcher's own count decides, so that a slow rank of an earlier start can never take
over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdrs_core.errors import StaleAttemptError
from sdrs_core.ids import JobName


@dataclass(frozen=True, slots=True)
class Attempt:
    run: str
    ordinal: int
    owner: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job's record: its current attempt, and from where that attempt resumed."""

    name: JobName
    attempt: int = 0
    run: str = ""
    ordinal: int = 0
    owner: str = ""
    resumed_step: int | None = None


def attempt_from_environment(environment: Mapping[str, str], owner: str) -> Attempt | None:
    """SDRS_ATTEMPT, else torchrun's or Slurm's own count of restarts; None without a launcher."""
    given = environment.get("SDRS_ATTEMPT", "")
    if given:
        return parse_attempt(given, owner)
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    slurm_job, slurm_restarts = environment.get("SLURM_JOB_ID", ""), int(environment.get("SLURM_RESTART_COUNT") or 0)
    if run:
        # A requeued Slurm job starts torchrun's count again from 0, perhaps under the same run id.
        prefix = f"slurm:{slurm_job}:{slurm_restarts}:" if slurm_job else ""
        return Attempt(f"{prefix}torchrun:{run}", int(environment.get("TORCHELASTIC_RESTART_COUNT") or 0), owner)
    if slurm_job:
        return Attempt(f"slurm:{slurm_job}", slurm_restarts, owner)
    return None


def parse_attempt(text: str, owner: str) -> Attempt:
    """``7`` is the seventh attempt; ``run:7`` the seventh of that run; anything else a run of its own."""
    run, colon, count = text.rpartition(":")
    if count.isdigit() and (colon == "" or run):
        return Attempt(run or "sdrs", int(count), owner)
    return Attempt(text, 0, owner)


def admit(job: Job, attempt: Attempt, known: int | None) -> tuple[Job, int]:
    """The job's record after ``attempt`` spoke, and the attempt's number; StaleAttemptError if it was superseded.

    ``known`` is the number under which this attempt was heard before, if it was.
    """
    is_current = (attempt.run, attempt.ordinal) == (job.run, job.ordinal) and job.attempt > 0
    if is_current:
        return job, job.attempt
    if known is not None or (attempt.run == job.run and attempt.ordinal < job.ordinal):
        raise StaleAttemptError(
            f'attempt {attempt.run}:{attempt.ordinal} of job "{job.name}" was superseded by attempt {job.attempt} '
            f"({job.run}:{job.ordinal}, started by {job.owner}): stop this process, the newer one owns the job now",
            job=job.name,
            attempt=job.attempt,
            owner=job.owner,
        )
    number = job.attempt + 1
    started = replace(
        job, attempt=number, run=attempt.run, ordinal=attempt.ordinal, owner=attempt.owner, resumed_step=None
    )
    return started, number
