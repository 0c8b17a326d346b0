"""Jobs in words: tables, facts, and the sentence that tells why a job is as it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sdrs.cli.amounts import format_age, format_bytes, format_duration, format_time
from sdrs.cli.output import Column, Listing
from sdrs_scheduler.cli.job_records import attempt_state, iso_time
from sdrs_scheduler.jobs.goodput import Goodput
from sdrs_scheduler.jobs.job import Attempt, Job, JobState, Line, Slot, Wish
from sdrs_scheduler.jobs.spec import JobSpec, Resources

IDLE = "no scheduler is running: nothing is started or decided until there is one, start it with `sdrs up`"

_NODES_NAMED = 4
_DOING = {
    JobState.SCHEDULED: "is about to start",
    JobState.STARTING: "is starting",
    JobState.RUNNING: "runs",
    JobState.CHECKPOINTING: "saves a last checkpoint before it gives way",
}


def job_listing(jobs: Sequence[Job], now_unix_ms: int, when_empty: str) -> Listing:
    columns = [
        Column("ID"),
        Column("STATE"),
        Column("QUEUE"),
        Column("USER"),
        Column("PRIO", is_number=True),
        Column("GPUS", is_number=True),
        Column("ATTEMPT", is_number=True),
        Column("DURABLE", is_number=True),
        Column("AGE"),
        Column("WHY", folds=True),
    ]
    rows = [
        (
            job.id,
            state_words(job),
            job.spec.queue,
            job.user,
            str(job.spec.priority),
            str(job.spec.resources.gpus),
            str(job.attempt or ""),
            "" if job.progress_step is None else str(job.progress_step),
            format_duration((now_unix_ms - job.submitted_unix_ms) / 1000),
            job.why,
        )
        for job in jobs
    ]
    return Listing(columns, rows, when_empty)


def state_words(job: Job) -> str:
    return f"{job.state} ({job.wish} asked)" if job.wish else str(job.state)


def attempt_listing(attempts: Sequence[Attempt], now_unix_ms: int) -> Listing:
    columns = [
        Column("ATTEMPT", is_number=True),
        Column("STATE"),
        Column("NODES"),
        Column("FROM STEP", is_number=True),
        Column("LAST STEP", is_number=True),
        Column("DURABLE", is_number=True),
        Column("STARTED"),
        Column("RAN", is_number=True),
        Column("FAILURE"),
        Column("CHARGED"),
        Column("WHAT", folds=True),
    ]
    rows = [
        (
            str(attempt.number),
            attempt_state(attempt),
            _nodes(attempt.slots),
            "start" if attempt.resume_step is None else str(attempt.resume_step),
            _last_step(attempt),
            "" if attempt.durable_step is None else str(attempt.durable_step),
            format_time(attempt.started_unix_ms) or "",
            _ran(attempt, now_unix_ms),
            str(attempt.verdict.failure or "") if attempt.verdict else "",
            ("yes" if attempt.verdict.charged else "no") if attempt.verdict and attempt.verdict.failure else "",
            attempt.verdict.sentence if attempt.verdict else attempt.resume_note,
        )
        for attempt in attempts
    ]
    return Listing(columns, rows, "it was not started yet")


def _last_step(attempt: Attempt) -> str:
    """What it saved it has reached, also if the beat that would have told it came no more."""
    steps = [step for step in (attempt.last_step, attempt.durable_step) if step is not None]
    return str(max(steps)) if steps else ""


def _ran(attempt: Attempt, now_unix_ms: int) -> str:
    if not attempt.started_unix_ms:
        return ""
    return format_duration(((attempt.ended_unix_ms or now_unix_ms) - attempt.started_unix_ms) / 1000)


def job_facts(job: Job, attempts: Sequence[Attempt], now_unix_ms: int) -> dict[str, str]:
    spec = job.spec
    facts = {
        "job": job.id,
        "state": state_words(job),
        "why": job.why,
        "user": f"{job.user} of {spec.tenant}" if spec.tenant else job.user,
        "queue": f"{spec.queue}, priority {spec.priority}",
        "resources": resources_words(spec.resources),
        "executor": f"{spec.executor}, in {spec.workdir}" if spec.workdir else spec.executor,
        "command": command_words(spec),
        "placement": placement_words(job.slots),
        "attempts": attempts_words(job, attempts),
        "retries": budget_words(job),
        "checkpoints": checkpoint_words(spec),
        "submitted": f"{format_time(job.submitted_unix_ms)} ({format_age(job.submitted_unix_ms, now_unix_ms)})",
    }
    if job.depends_on:
        facts["after"] = ", ".join(job.depends_on)
    if job.excluded_nodes:
        facts["excluded nodes"] = ", ".join(job.excluded_nodes)
    if spec.deadline_unix:
        facts["deadline"] = iso_time(spec.deadline_unix)
    if job.eligible_unix_ms > now_unix_ms and not job.state.is_over:
        facts["not before"] = format_time(job.eligible_unix_ms) or ""
    if job.ended_unix_ms:
        facts["ended"] = f"{format_time(job.ended_unix_ms)} ({format_age(job.ended_unix_ms, now_unix_ms)})"
    return facts


def resources_words(resources: Resources) -> str:
    nodes = "1 node" if resources.nodes == 1 else f"{resources.nodes} nodes"
    parts = [f"{nodes} × {resources.gpus_per_node} GPU{'' if resources.gpus_per_node == 1 else 's'}"]
    if resources.gpu_type:
        parts.append(f"of type {resources.gpu_type}")
    if resources.node_group:
        parts.append(f"in {resources.node_group}")
    if resources.cpus_per_node:
        parts.append(f"{resources.cpus_per_node} CPUs each")
    if resources.memory_bytes_per_node:
        parts.append(f"{format_bytes(resources.memory_bytes_per_node)} each")
    if resources.exclusive:
        parts.append("exclusive")
    return ", ".join(parts)


def command_words(spec: JobSpec) -> str:
    return spec.command if isinstance(spec.command, str) else " ".join(spec.command)


def placement_words(slots: Sequence[Slot]) -> str:
    return "; ".join(f"{slot.node}: GPU {_ranges(slot.gpus)}" if slot.gpus else slot.node for slot in slots)


def _ranges(numbers: Sequence[int]) -> str:
    """0-3, 6: runs of numbers, short."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _nodes(slots: Sequence[Slot]) -> str:
    more = f" +{len(slots) - _NODES_NAMED}" if len(slots) > _NODES_NAMED else ""
    return ",".join(slot.node for slot in slots[:_NODES_NAMED]) + more


def attempts_words(job: Job, attempts: Sequence[Attempt]) -> str:
    if not attempts:
        return "none yet"
    failures: dict[str, int] = {}
    for attempt in attempts:
        if attempt.verdict and attempt.verdict.failure:
            failures[attempt.verdict.failure.value] = failures.get(attempt.verdict.failure.value, 0) + 1
    ended = ", ".join(f"{count} × {failure}" for failure, count in sorted(failures.items()))
    return f"{job.attempt}" + (f" ({ended})" if ended else "")


def budget_words(job: Job) -> str:
    """What is left: a class with a budget of its own is counted alone, all others share ``max``."""
    retry = job.spec.retry
    shared = sum(count for failure, count in job.spent.items() if failure not in retry.budgets)
    parts = [f"{max(0, retry.max - shared)} of {retry.max} left"]
    parts += [
        f"{max(0, budget - job.spent.get(failure, 0))} of {budget} for {failure}"
        for failure, budget in sorted(retry.budgets.items())
    ]
    if retry.free_on:
        parts.append(f"free: {', '.join(retry.free_on)}")
    if retry.no_progress_limit:
        parts.append(f"{job.no_progress_count} of {retry.no_progress_limit} starts in a row without progress")
    return "; ".join(parts)


def goodput_words(goodput: Goodput) -> str:
    """Where its time went."""
    if goodput.ratio is None:
        return f"none yet, {format_duration(goodput.queueing_seconds)} queued"
    words = (
        f"{100 * goodput.ratio:.0f} %: {format_duration(goodput.effective_seconds)} effective, "
        f"{format_duration(goodput.lost_seconds)} lost, {format_duration(goodput.loading_seconds)} loading, "
        f"{format_duration(goodput.queueing_seconds)} queued"
    )
    return words + (f", GPUs {100 * goodput.utilization:.0f} % used" if goodput.utilization is not None else "")


def recovery_words(goodput: Goodput) -> str:
    """Of all its recoveries together."""
    spans, count = goodput.recovery, sum(goodput.recoveries.values())
    return (
        f"{format_duration(spans.total_seconds)} in {count}: detect {spans.detect_seconds:.1f} s, decide "
        f"{spans.decide_seconds:.1f} s, queue {spans.queue_seconds:.1f} s, load {spans.load_seconds:.1f} s"
    )


def checkpoint_words(spec: JobSpec) -> str:
    wish = spec.checkpoint
    parts = [f'history "{spec.history}"']
    if wish.pool:
        parts.append(f"pool {wish.pool}")
    if wish.level:
        parts.append(wish.level)
    if wish.keep:
        parts.append(f"keeps {wish.keep}")
    if wish.interval_auto:
        parts.append("interval by advice")
    elif wish.interval_seconds:
        parts.append(f"every {format_duration(wish.interval_seconds)}")
    return ", ".join([*parts, f"resumes {wish.resume}", f"{format_duration(wish.grace_seconds)} grace"])


def why_sentence(job: Job, attempts: Sequence[Attempt], now_unix_ms: int, *, idle: bool) -> str:
    """What `sdrs job why` tells: what happened and was decided, or what is waited for."""
    sentence = f"{job.id} {_situation(job, attempts, now_unix_ms)}"
    if job.wish is not Wish.NONE:
        asked = f" ({job.wish_note})" if job.wish_note else ""
        sentence += f". It was asked to {job.wish}{asked}, which is not carried out yet"
    if idle and not job.state.is_over:
        sentence += f". {IDLE[0].upper()}{IDLE[1:]}"
    return sentence


def _situation(job: Job, attempts: Sequence[Attempt], now_unix_ms: int) -> str:
    newest = attempts[-1] if attempts else None
    # Sentences of the policy end with a full stop; here more may follow.
    because = f": {job.why.rstrip('.')}" if job.why else ""
    if job.state.has_nodes:
        doing = f"{_DOING[job.state]} on {_nodes(job.slots) or 'no node'}"
        if newest is None:
            return doing + because
        since = newest.running_unix_ms or newest.started_unix_ms or newest.scheduled_unix_ms
        if since:
            doing += f" since {format_time(since)} ({format_age(since, now_unix_ms)})"
        doing += f" as attempt {newest.number}"
        is_plain = job.state is JobState.RUNNING and newest.verdict is None
        if is_plain:
            # All that the scheduler's sentence tells, apart from what was before.
            note = f" ({newest.resume_note})" if newest.resume_note else ""
            doing += f" from {'the beginning' if newest.resume_step is None else f'step {newest.resume_step}'}{note}"
            because = f". Before: {job.last_end}" if job.last_end else ""
        return doing + (f", at step {newest.last_step}" if newest.last_step is not None else "") + because
    if job.state is JobState.HELD:
        told = because.replace(": held (", " (", 1)
        return f"is held{told}. It waits for `sdrs job release {job.id}`"
    if job.state in (JobState.SUBMITTED, JobState.QUEUED, JobState.PREEMPTED):
        waited = format_duration((now_unix_ms - _waits_since(job, newest)) / 1000)
        before = f". Before: {job.last_end}" if job.last_end and job.last_end not in job.why else ""
        return f"waits ({job.state}, {waited}){because}{before}"
    verdict = newest.verdict if newest else None
    # The scheduler's sentence tells it all; where there is none, what became of the last start.
    told = because or (f": {verdict.sentence}" if verdict else "")
    when = f" {format_age(job.ended_unix_ms, now_unix_ms)}" if job.ended_unix_ms else ""
    was = "was cancelled" if job.state is JobState.CANCELLED else str(job.state)
    return f"{was}{when} after {_count(job.attempt)}{told}"


def _waits_since(job: Job, newest: Attempt | None) -> int:
    return (newest.ended_unix_ms if newest else 0) or job.submitted_unix_ms


def _count(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def story_listing(story: Sequence[Line]) -> Listing:
    rows = [(format_time(line.unix_ms) or "", line.text) for line in story]
    return Listing([Column("TIME"), Column("WHAT", folds=True)], rows, "nothing happened yet")
