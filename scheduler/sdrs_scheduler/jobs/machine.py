"""The life of a job: what is seen of it in, its new records and what to do out. No clock, no I/O.

It goes by levels, not by edges: what is to be done follows from the record and from what is seen, at every look anew.
So a scheduler that was killed anywhere asks for the same things again, and all of them may be asked for twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sdrs_scheduler.executors.executor import RunState
from sdrs_scheduler.jobs.budgets import with_progress
from sdrs_scheduler.jobs.classify import classify
from sdrs_scheduler.jobs.endings import ended
from sdrs_scheduler.jobs.job import Attempt, Job, JobState, Slot, Verdict, Wish
from sdrs_scheduler.jobs.resume import FROM_THE_BEGINNING, Generation
from sdrs_scheduler.jobs.sight import Begin, DumpStacks, Gather, Instruction, Kill, Resolve, Sight, Step, Warn
from sdrs_scheduler.jobs.spec import Action, FailureClass
from sdrs_scheduler.jobs.transitions import clipped, moved, told


@dataclass(frozen=True, slots=True)
class MachineSettings:
    # Between the dump of a hanging run's stacks and its end.
    stacks_seconds: float = 5.0
    # Until one that its executor does not even know is given up.
    start_seconds: float = 600.0


def advance(job: Job, attempt: Attempt | None, sight: Sight, settings: MachineSettings) -> Step:
    """``attempt`` is the newest one of the job, if there is any."""
    if attempt is not None and job.state.has_nodes:
        if attempt.home not in ("", sight.home):
            return _out_of_sight(job, attempt, sight)
        if job.why == _elsewhere(attempt):
            return Step(told(job, sight.now_unix_ms, f"attempt {attempt.number} is looked after again"), attempt)
    if job.wish is not Wish.NONE and (step := _carry_out(job, attempt, sight)) is not None:
        return step
    if job.state in (JobState.SUBMITTED, JobState.PREEMPTED):
        sentence = "queued" if job.state is JobState.SUBMITTED else "queued again"
        return Step(moved(job, JobState.QUEUED, sight.now_unix_ms, sentence, job.last_end), attempt)
    if not job.state.has_nodes or attempt is None:
        return Step(job, attempt)
    return _BY_STATE[job.state](job, attempt, sight, settings)


def placed(job: Job, slots: tuple[Slot, ...], executor: str, now_unix_ms: int) -> Step:
    """Nodes are chosen: the next attempt begins with this very change of the job's record (P22)."""
    eligible_unix_ms = max(job.submitted_unix_ms, job.eligible_unix_ms)
    job = replace(job, attempt=job.attempt + 1, slots=slots, is_promised=False)
    attempt = Attempt(
        job.id,
        job.attempt,
        slots,
        executor,
        eligible_unix_ms=min(eligible_unix_ms, now_unix_ms),
        scheduled_unix_ms=now_unix_ms,
    )
    nodes = ", ".join(slot.node for slot in slots)
    job = moved(job, JobState.SCHEDULED, now_unix_ms, f"attempt {attempt.number} gets {nodes}")
    return Step(job, attempt, (Resolve(),))


def warned(job: Job, attempt: Attempt, because: str, sight: Sight) -> Step:
    """It is to save and leave. One that has not come so far has nothing to save, and goes at once."""
    now = sight.now_unix_ms
    if job.state is JobState.SCHEDULED:
        return _withdrawn(job, attempt, f"preempted {because} before it started", sight)
    attempt = replace(
        attempt,
        warned_unix_ms=now,
        warned_because=because,
        warned_after_unix_ms=sight.newest.committed_unix_ms if sight.newest else attempt.fresh_after_unix_ms,
    )
    grace_seconds = job.spec.checkpoint.grace_seconds
    sentence = f"warned: to be preempted {because}; its checkpoint is waited for, at most {grace_seconds:g} s"
    job = moved(job, JobState.CHECKPOINTING, now, sentence)
    return Step(job, attempt, (Warn(_deadline(job, attempt)),))


def _out_of_sight(job: Job, attempt: Attempt, sight: Sight) -> Step:
    """Launched by a scheduler that keeps its runs elsewhere. It may well run: nothing is concluded, nothing started."""
    now, why = sight.now_unix_ms, _elsewhere(attempt)
    if job.wish is Wish.CANCEL:
        sentence = f"cancelled ({job.wish_note}); what it may have running at {attempt.home} was not ended"
        attempt = replace(attempt, ended_unix_ms=now, detected_unix_ms=now, verdict=_cancelled(job))
        return Step(replace(moved(job, JobState.CANCELLED, now, sentence), wish=Wish.NONE), attempt)
    return Step(job if job.why == why else told(job, now, why), attempt)


def _elsewhere(attempt: Attempt) -> str:
    return (
        f"attempt {attempt.number} is known only to the scheduler of {attempt.home}, which does not decide now: start "
        "that one and stop the other; if it is gone for good, cancel the job and requeue it"
    )


def _deadline(job: Job, attempt: Attempt) -> int:
    return attempt.warned_unix_ms + int(job.spec.checkpoint.grace_seconds * 1000)


def _carry_out(job: Job, attempt: Attempt | None, sight: Sight) -> Step | None:
    """What somebody wished for; None: it is under way, or not to be thought of now."""
    now, done = sight.now_unix_ms, replace(job, wish=Wish.NONE)
    is_launched = job.state.has_nodes and job.state is not JobState.SCHEDULED and attempt is not None
    match job.wish:
        case Wish.CANCEL if job.state.is_over:
            return Step(done, attempt)
        case Wish.CANCEL | Wish.HOLD if job.state is JobState.SCHEDULED and attempt is not None:
            return _withdrawn(job, attempt, f"{job.wish} before it started ({job.wish_note})", sight)
        case Wish.CANCEL if not is_launched:
            return Step(moved(done, JobState.CANCELLED, now, f"cancelled ({job.wish_note})"), attempt)
        case Wish.HOLD if job.state.is_over or job.state is JobState.HELD:
            return Step(done, attempt)
        case Wish.HOLD if not is_launched:
            return Step(moved(done, JobState.HELD, now, f"held ({job.wish_note})"), attempt)
        case Wish.RELEASE:
            if job.state is JobState.HELD:
                return Step(moved(done, JobState.QUEUED, now, f"released ({job.wish_note})"), attempt)
            return Step(done, attempt)
        case Wish.REQUEUE if job.state.is_over:
            fresh = replace(done, spent={}, no_progress_count=0, eligible_unix_ms=now, excluded_nodes=())
            return Step(moved(fresh, JobState.QUEUED, now, f"queued again ({job.wish_note})"), attempt)
        case Wish.REQUEUE | Wish.PREEMPT if not is_launched and job.state is not JobState.SCHEDULED:
            return Step(done, attempt)
        case Wish.HOLD | Wish.REQUEUE | Wish.PREEMPT if job.state is not JobState.CHECKPOINTING:
            assert attempt is not None
            if attempt.verdict is not None:
                return None  # it is being killed for another reason
            # A hold is remembered until the end: it decides what comes then.
            kept = job if job.wish is Wish.HOLD else done
            return warned(kept, attempt, f"because {job.wish} was asked for ({job.wish_note})", sight)
        case Wish.REQUEUE | Wish.PREEMPT:
            return Step(done, attempt)  # it is leaving already
    return None


def _withdrawn(job: Job, attempt: Attempt, sentence: str, sight: Sight) -> Step:
    """Nothing was launched: the attempt is closed, and nobody is charged."""
    now = sight.now_unix_ms
    attempt = replace(
        attempt,
        ended_unix_ms=now,
        detected_unix_ms=now,
        verdict=Verdict(FailureClass.PREEMPTED, sentence, Action.REQUEUE),
    )
    after = {Wish.CANCEL: JobState.CANCELLED, Wish.HOLD: JobState.HELD}.get(job.wish, JobState.QUEUED)
    return Step(moved(replace(job, wish=Wish.NONE, eligible_unix_ms=now), after, now, sentence), attempt)


def _scheduled(job: Job, attempt: Attempt, sight: Sight, settings: MachineSettings) -> Step:
    if sight.down_nodes:
        node, problem = next(iter(sight.down_nodes.items()))
        return _withdrawn(job, attempt, f"{node} went down before it started ({problem})", sight)
    if sight.resumption is None and sight.blocked_because:
        return _withdrawn(job, attempt, f"{sight.blocked_because}: its nodes are given back meanwhile", sight)
    if sight.resumption is None:
        return Step(job, attempt, (Resolve(),))
    now, resumption = sight.now_unix_ms, sight.resumption
    attempt = replace(
        attempt,
        resume_step=resumption.step,
        resume_note=clipped(resumption.note),
        fresh_after_unix_ms=resumption.newest_unix_ms,
        started_unix_ms=now,
        home=sight.home,
    )
    if job.roll_back:
        at_most = FROM_THE_BEGINNING if resumption.step is None else resumption.step
        job = replace(job, roll_back=0, resume_at_most=at_most)
    nodes = ", ".join(slot.node for slot in attempt.slots)
    sentence = f"attempt {attempt.number} starts on {nodes} {resumption.text}"
    return Step(moved(job, JobState.STARTING, now, sentence, job.last_end), attempt, (Begin(),))


def _starting(job: Job, attempt: Attempt, sight: Sight, settings: MachineSettings) -> Step:
    run = sight.run
    if sight.launch_error and (run is None or run.state is RunState.UNKNOWN):
        return _over(job, attempt, sight)
    if run is None:
        return Step(job, attempt)
    if run.state is RunState.UNKNOWN:
        if job.wish is Wish.CANCEL:
            return ended(job, attempt, _cancelled(job), sight)
        if sight.now_unix_ms - attempt.started_unix_ms > settings.start_seconds * 1000:
            sentence = f"its executor did not take it within {settings.start_seconds:g} s"
            return ended(job, attempt, Verdict(FailureClass.NOT_STARTED, sentence), sight)
        if sight.launch_problem:
            job = replace(job, why=clipped(f"attempt {attempt.number} does not start yet: {sight.launch_problem}"))
        return Step(job, attempt, (Begin(),))
    if run.state is RunState.ENDED:
        return _over(job, attempt, sight)
    if run.state is RunState.RUNNING:
        started = run.started_unix_ms or sight.now_unix_ms
        attempt = replace(attempt, started_unix_ms=started, running_unix_ms=sight.now_unix_ms, log_files=run.log_files)
        nodes = ", ".join(run.nodes or [slot.node for slot in attempt.slots])
        whence = "the beginning" if attempt.resume_step is None else f"step {attempt.resume_step}"
        sentence = f"attempt {attempt.number} runs on {nodes}, from {whence}"
        return Step(moved(job, JobState.RUNNING, sight.now_unix_ms, sentence, job.last_end), attempt)
    if job.wish is Wish.CANCEL:
        return Step(job, attempt, (Kill(),))
    if run.detail and job.why != (why := f"attempt {attempt.number} waits at its executor: {run.detail}"):
        return Step(replace(job, why=why), attempt)
    return Step(job, attempt)


def _running(job: Job, attempt: Attempt, sight: Sight, settings: MachineSettings) -> Step:
    job, attempt = _with_news(job, attempt, sight)
    run = sight.run
    if run is not None and run.state in (RunState.ENDED, RunState.UNKNOWN):
        return _over(job, attempt, sight)
    if attempt.verdict is None and (verdict := _sentence(job, attempt, sight)) is not None:
        attempt = replace(attempt, verdict=verdict, detected_unix_ms=sight.now_unix_ms)
        job = told(job, sight.now_unix_ms, f"{verdict.sentence}; it is being ended")
    if attempt.verdict is not None:
        return Step(job, attempt, _execution(attempt, sight, settings))
    if job.state is JobState.CHECKPOINTING:
        return Step(job, attempt, _farewell(job, attempt, sight))
    return Step(job, attempt)


def _with_news(job: Job, attempt: Attempt, sight: Sight) -> tuple[Job, Attempt]:
    """A first step, and a new durable generation: both go on record."""
    if attempt.last_step is None and sight.step is not None:
        # What it had to load is there.
        attempt = replace(attempt, last_step=sight.step, running_unix_ms=sight.now_unix_ms)
    newest = sight.newest
    if newest is None or newest.step == attempt.durable_step or not _is_own(attempt, newest):
        return job, attempt
    attempt = replace(
        attempt,
        durable_step=newest.step,
        durable_unix_ms=sight.now_unix_ms,
        last_step=max(newest.step, sight.step or 0),
        utilization=sight.utilization if sight.utilization is not None else attempt.utilization,
    )
    return replace(with_progress(job, newest.step), resume_at_most=None), attempt


def _is_own(attempt: Attempt, generation: Generation) -> bool:
    """Committed since it began; what a forerunner left is not its progress."""
    return generation.committed_unix_ms > attempt.fresh_after_unix_ms


def _sentence(job: Job, attempt: Attempt, sight: Sight) -> Verdict | None:
    """A reason to kill it now."""
    if job.wish is Wish.CANCEL:
        return _cancelled(job)
    if sight.run is not None and sight.run.lost_nodes:
        node = sight.run.lost_nodes[0]
        problem = sight.down_nodes.get(node, "") or "it does not answer"
        return Verdict(FailureClass.NODE_LOST, f"{node} is gone ({problem}): node lost", blamed_node=node)
    if sight.nan_step is not None:
        sentence = f"its loss was not a number at step {sight.nan_step}: it goes back one more generation"
        return Verdict(FailureClass.NOT_A_NUMBER, sentence, Action.ROLL_BACK)
    if sight.hang:
        return Verdict(FailureClass.HANG, f"{sight.hang}: hang, its stacks are in the log")
    limit_ms = job.spec.time_limit_seconds * 1000
    if limit_ms and job.ran_ms + sight.now_unix_ms - attempt.started_unix_ms > limit_ms:
        sentence = f"it ran longer than its time limit of {job.spec.time_limit_seconds:g} s"
        return Verdict(FailureClass.PERMANENT, sentence, Action.FAIL)
    return None


def _cancelled(job: Job) -> Verdict:
    return Verdict(None, f"cancelled ({job.wish_note})", Action.FAIL)


def _execution(attempt: Attempt, sight: Sight, settings: MachineSettings) -> tuple[Instruction, ...]:
    assert attempt.verdict is not None
    is_hang = attempt.verdict.failure is FailureClass.HANG
    if is_hang and sight.now_unix_ms - attempt.detected_unix_ms < settings.stacks_seconds * 1000:
        return (DumpStacks(),)
    return (Kill(),)


def _farewell(job: Job, attempt: Attempt, sight: Sight) -> tuple[Instruction, ...]:
    """Freed at once when what it saved after the warning is durable; at the latest after the grace."""
    deadline_unix_ms = _deadline(job, attempt)
    newest = sight.newest
    has_saved = (
        newest is not None
        and sight.is_newest_durable
        and newest.committed_unix_ms > attempt.warned_after_unix_ms
        and _is_own(attempt, newest)
    )
    if has_saved or sight.now_unix_ms >= deadline_unix_ms:
        return (Kill(),)
    return (Warn(deadline_unix_ms),)


def _over(job: Job, attempt: Attempt, sight: Sight) -> Step:
    """It has ended; why, is told by its sentence, or by what is found."""
    if attempt.verdict is not None and not _is_done_nevertheless(attempt.verdict, sight):
        return ended(job, attempt, attempt.verdict, sight)
    if job.wish is Wish.CANCEL:
        return ended(job, attempt, _cancelled(job), sight)
    if sight.evidence is None:
        return Step(job, attempt, (Gather(),))
    evidence = replace(
        sight.evidence,
        warned_because=attempt.warned_because,
        launch_error=sight.launch_error,
        nan_step=sight.nan_step,
        is_traceless=sight.run is not None and sight.run.state is RunState.UNKNOWN and not sight.launch_error,
    )
    return ended(job, attempt, classify(evidence, job.spec.failure_policies), sight)


def _is_done_nevertheless(verdict: Verdict, sight: Sight) -> bool:
    """Found to hang, or over its time, it came to its end before it was killed: that counts more than our patience."""
    run = sight.run
    by_patience = verdict.failure in (FailureClass.HANG, FailureClass.PERMANENT)
    if not by_patience or run is None or run.lost_nodes or not run.exits:
        return False
    return all(exit.code == 0 for exit in run.exits.values())


_BY_STATE: dict[JobState, Callable[[Job, Attempt, Sight, MachineSettings], Step]] = {
    JobState.SCHEDULED: _scheduled,
    JobState.STARTING: _starting,
    JobState.RUNNING: _running,
    JobState.CHECKPOINTING: _running,
}
