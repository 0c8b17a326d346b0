"""Whether a job is tried once more after a failure, when, and what it has spent by then.

Spent budgets count from the last progress: a new durable step forgets them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sdrs_scheduler.jobs.job import Job, Verdict
from sdrs_scheduler.jobs.spec import Action, Backoff, FailureClass, Retry

# The scheduler's own doing, or a person's: no sign that the job cannot get on.
_BLAMELESS = (FailureClass.PREEMPTED,)
# Wait for nobody: what was wrong is over, or was never wrong.
_AT_ONCE = (FailureClass.PREEMPTED, FailureClass.REQUEUED)


@dataclass(frozen=True, slots=True)
class Charge:
    """``because`` tells in half a sentence what is left, or why there is nothing."""

    may_retry: bool
    is_charged: bool
    spent: Mapping[FailureClass, int]
    no_progress_count: int
    delay_seconds: float
    because: str


def charge(job: Job, verdict: Verdict) -> Charge:
    """What an attempt that ended with ``verdict`` costs. It must have failed."""
    retry, failure = job.spec.retry, verdict.failure
    assert failure is not None
    no_progress_count = job.no_progress_count + (failure not in _BLAMELESS)
    if verdict.action is Action.FAIL:
        return Charge(False, False, job.spent, no_progress_count, 0.0, "it is not to be tried again")
    is_free = failure in retry.free_on or verdict.action is Action.REQUEUE
    spent = dict(job.spent) if is_free else {**job.spent, failure: job.spent.get(failure, 0) + 1}
    if retry.no_progress_limit and no_progress_count >= retry.no_progress_limit:
        because = f"{no_progress_count} attempts in a row brought no new durable step (no_progress_limit)"
        return Charge(False, not is_free, spent, no_progress_count, 0.0, because)
    if is_free:
        delay_seconds = 0.0 if failure in _AT_ONCE else backoff_seconds(retry.backoff, no_progress_count - 1)
        return Charge(True, False, spent, no_progress_count, delay_seconds, "no retry charged")
    used, allowed, whose = _account(retry, failure, spent)
    if used > allowed:
        are = "its only retry{} is spent" if allowed == 1 else f"its {allowed} retries{{}} are spent"
        because = are.format(whose) if allowed else f"it has no retries{whose}"
        return Charge(False, True, spent, no_progress_count, 0.0, because)
    delay_seconds = backoff_seconds(retry.backoff, max(no_progress_count, sum(spent.values())))
    return Charge(True, True, spent, no_progress_count, delay_seconds, f"retry {used} of {allowed}{whose}")


def _account(retry: Retry, failure: FailureClass, spent: Mapping[FailureClass, int]) -> tuple[int, int, str]:
    """Used, allowed, and of what: a class with a budget of its own is counted alone, all others share ``max``."""
    if failure in retry.budgets:
        return spent[failure], retry.budgets[failure], f" for {failure}"
    return sum(count for kind, count in spent.items() if kind not in retry.budgets), retry.max, ""


def backoff_seconds(backoff: Backoff, failure_count: int) -> float:
    """Doubles with each failure in a row, up to the maximum."""
    if failure_count < 1:
        return 0.0
    # The exponent is bounded, so that a job that fails for years does not overflow.
    return float(min(backoff.max_seconds, backoff.initial_seconds * 2 ** min(failure_count - 1, 60)))


def with_progress(job: Job, durable_step: int) -> Job:
    """``job`` after a generation of this step became durable: what was spent before is forgotten, if it is new."""
    if job.progress_step is not None and durable_step <= job.progress_step:
        return job
    return replace(job, progress_step=durable_step, spent={}, no_progress_count=0)
