"""Attempts: which start of a job is speaking (P1).

A launcher names its run and counts its restarts; SDRS numbers the attempts of a job in the order in which it first
hears of them. Within one run the launcher's own count decides, so that a slow rank of an earlier start can never take
over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from sdrs_core.errors import InvalidArgumentError, StaleAttemptError
from sdrs_core.ids import JobName

_MAX_COUNT_DIGITS = 18  # fits 64 bits
_UNNAMED_RUN = "none"  # torchrun's word for it


@dataclass(frozen=True, slots=True)
class Attempt:
    run: str
    ordinal: int
    owner: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job's record: its current attempt, and which attempt resumed last, from where."""

    name: JobName
    attempt: int = 0
    run: str = ""
    ordinal: int = 0
    owner: str = ""
    resumed_attempt: int = 0
    resumed_step: int | None = None

    def is_at(self, attempt: Attempt) -> bool:
        return self.attempt > 0 and (attempt.run, attempt.ordinal) == (self.run, self.ordinal)

    def left_behind(self, attempt: int, step: int) -> bool:
        """Whether a later attempt resumed from before this generation (P16); what comes of it then is not the newest.

        It stays true after still later attempts opened, so that nothing old comes up again once one more has started.
        """
        return self.resumed_step is not None and attempt < self.resumed_attempt and step > self.resumed_step


def attempt_from_environment(environment: Mapping[str, str], owner: str) -> Attempt | None:
    """SDRS_ATTEMPT, else torchrun's or Slurm's own count of restarts; None without a launcher.

    The scheduler counts the starts of one job: its plain number is one of the run that SDRS_JOB_ID names.
    """
    given = environment.get("SDRS_ATTEMPT", "")
    job_id = environment.get("SDRS_JOB_ID", "")
    if job_id and _is_count(given):
        return job_attempt(job_id, int(given), owner)
    if given:
        return parse_attempt(given, owner)
    run = _torchrun(environment)
    slurm_job, slurm_restarts = environment.get("SLURM_JOB_ID", ""), _count(environment, "SLURM_RESTART_COUNT")
    if run:
        # A requeued Slurm job starts torchrun's count again from 0, perhaps under the same run id.
        prefix = f"slurm:{slurm_job}:{slurm_restarts}:" if slurm_job else ""
        return Attempt(f"{prefix}torchrun:{run}", _count(environment, "TORCHELASTIC_RESTART_COUNT"), owner)
    if slurm_job:
        return Attempt(f"slurm:{slurm_job}", slurm_restarts, owner)
    return None


def job_attempt(job_id: str, number: int, owner: str) -> Attempt:
    """The attempt as which the processes of a scheduled job speak."""
    return Attempt(f"job:{job_id}", number, owner)


def _torchrun(environment: Mapping[str, str]) -> str:
    """What tells one start of torchrun from the next; "" if nothing does.

    Without --rdzv-id each start is called "none". Then the folder that it makes for its own files is told apart: all
    ranks of a host share it, so it speaks for a start on one host only. Slurm's job speaks for a start on many.
    """
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run != _UNNAMED_RUN or environment.get("SLURM_JOB_ID"):
        return run
    # .../none_x7k2p9qd/attempt_0/<local rank>/error.json
    files = PurePath(environment.get("TORCHELASTIC_ERROR_FILE", "")).parts
    world_size = environment.get("WORLD_SIZE", "")
    is_one_host = world_size != "" and world_size == environment.get("LOCAL_WORLD_SIZE")
    return files[-4] if is_one_host and len(files) > 4 and files[-4].startswith(f"{_UNNAMED_RUN}_") else ""


def _count(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    if not _is_count(text):
        raise InvalidArgumentError(f"{name} is {text[:80]!r}: a number of restarts is expected")
    return int(text)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_COUNT_DIGITS


def parse_attempt(text: str, owner: str) -> Attempt:
    """``7`` is the seventh attempt; ``run:7`` the seventh of that run; anything else a run of its own."""
    run, colon, count = text.rpartition(":")
    if _is_count(count) and (colon == "" or run):
        return Attempt(run or "sdrs", int(count), owner)
    return Attempt(text, 0, owner)


def admit(job: Job, attempt: Attempt, known: int | None) -> tuple[Job, int]:
    """The job's record after ``attempt`` spoke, and the attempt's number; StaleAttemptError if it was superseded.

    ``known`` is the number under which this attempt, or a later start of its run, was heard before, if it was.
    """
    if job.is_at(attempt):
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
    return replace(job, attempt=number, run=attempt.run, ordinal=attempt.ordinal, owner=attempt.owner), number
