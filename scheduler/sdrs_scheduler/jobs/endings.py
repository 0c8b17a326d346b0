"""What comes after the end of an attempt: done, tried again, held, or given up."""

from __future__ import annotations

from dataclasses import replace

from sdrs_scheduler.jobs.budgets import charge
from sdrs_scheduler.jobs.classify import exit_signal
from sdrs_scheduler.jobs.job import Attempt, Job, JobState, Verdict, Wish
from sdrs_scheduler.jobs.sight import Forget, Sight, Step
from sdrs_scheduler.jobs.spec import Action, FailureClass
from sdrs_scheduler.jobs.transitions import clipped, moved


def ended(job: Job, attempt: Attempt, verdict: Verdict, sight: Sight) -> Step:
    """The attempt is over: its record is closed, and the job moves on by ``verdict``."""
    now = sight.now_unix_ms
    verdict = replace(verdict, sentence=clipped(verdict.sentence))
    attempt = _closed(attempt, verdict, sight)
    job = replace(job, ran_ms=job.ran_ms + max(0, attempt.ended_unix_ms - (attempt.started_unix_ms or now)))
    if job.wish is Wish.CANCEL:
        job = moved(job, JobState.CANCELLED, now, f"cancelled ({job.wish_note})")
        return Step(replace(job, wish=Wish.NONE), attempt, (Forget(),))
    if verdict.failure is None:
        job = moved(job, JobState.SUCCEEDED, now, f"attempt {attempt.number} succeeded: {verdict.sentence}")
        return Step(replace(job, wish=Wish.NONE), attempt, (Forget(),))
    if job.wish is Wish.HOLD:
        # It was warned for this very reason.
        told = "" if verdict.failure is FailureClass.PREEMPTED else f"; {verdict.sentence}"
        sentence = f"held ({job.wish_note}){told}{_saved(attempt)}"
        job = moved(job, JobState.HELD, now, sentence)
        return Step(replace(job, wish=Wish.NONE, last_end=verdict.sentence), attempt, (Forget(),))
    return _after_failure(job, attempt, verdict, now)


def _after_failure(job: Job, attempt: Attempt, verdict: Verdict, now: int) -> Step:
    assert verdict.failure is not None
    cost = charge(job, verdict)
    attempt = replace(attempt, verdict=replace(verdict, charged=cost.is_charged))
    last_end = f"{verdict.sentence}, {cost.because}"
    job = replace(
        job,
        spent=cost.spent,
        no_progress_count=cost.no_progress_count,
        last_end=last_end,
        roll_back=job.roll_back + 1 if verdict.action is Action.ROLL_BACK else job.roll_back,
        # A requeue or preempt that was wished for and not begun yet is done by this, too.
        wish=Wish.NONE,
    )
    if verdict.action is Action.EXCLUDE_NODE and verdict.blamed_node not in ("", *job.excluded_nodes):
        job = replace(job, excluded_nodes=(*job.excluded_nodes, verdict.blamed_node))
        last_end += f"; {verdict.blamed_node} is left out from now on"
    if not cost.may_retry:
        job = moved(job, JobState.FAILED, now, f"{verdict.sentence}: failed, {cost.because}")
        return Step(job, attempt, (Forget(),))
    job = replace(job, eligible_unix_ms=now + int(cost.delay_seconds * 1000))
    pause = f"; waits {cost.delay_seconds:g} s" if cost.delay_seconds else ""
    sentence = f"{last_end}{_saved(attempt)}{pause}"
    if job.state is JobState.CHECKPOINTING and verdict.failure is FailureClass.PREEMPTED:
        return Step(moved(job, JobState.PREEMPTED, now, sentence), attempt, (Forget(),))
    return Step(moved(job, JobState.QUEUED, now, sentence), attempt, (Forget(),))


def _closed(attempt: Attempt, verdict: Verdict, sight: Sight) -> Attempt:
    run = sight.run
    exits = run.exits if run else {}
    return replace(
        attempt,
        verdict=verdict,
        started_unix_ms=attempt.started_unix_ms or (run.started_unix_ms if run else 0),
        ended_unix_ms=(run.ended_unix_ms if run else 0) or sight.now_unix_ms,
        detected_unix_ms=attempt.detected_unix_ms or sight.now_unix_ms,
        last_step=sight.step if sight.step is not None else attempt.last_step,
        exit_codes={node: _code(exit.code, exit_signal(exit)) for node, exit in exits.items()},
        log_files=run.log_files if run and run.log_files else attempt.log_files,
        utilization=sight.utilization if sight.utilization is not None else attempt.utilization,
    )


def _code(code: int | None, signal: int | None) -> int:
    """As Python has it: a signal is negative."""
    return code if code is not None else -(signal or 0)


def _saved(attempt: Attempt) -> str:
    if attempt.durable_step is None:
        return "; it left no new checkpoint"
    return f"; its last checkpoint is step {attempt.durable_step}"
