"""Which state may follow which; anything else is a defect of ours and never reaches a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sdrs_core.errors import InternalError
from sdrs_scheduler.jobs.job import MAX_STORY_LINES, Job, JobState, Line

_S = JobState

MAX_SENTENCE_CHARACTERS = 1000

NEXT: Mapping[JobState, frozenset[JobState]] = {
    _S.SUBMITTED: frozenset({_S.QUEUED, _S.HELD, _S.CANCELLED}),
    _S.QUEUED: frozenset({_S.SCHEDULED, _S.HELD, _S.CANCELLED}),
    _S.SCHEDULED: frozenset({_S.STARTING, _S.QUEUED, _S.HELD, _S.CANCELLED}),
    _S.STARTING: frozenset({_S.RUNNING, _S.CHECKPOINTING, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.HELD, _S.CANCELLED}),
    _S.RUNNING: frozenset({_S.CHECKPOINTING, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.HELD, _S.CANCELLED}),
    _S.CHECKPOINTING: frozenset({_S.PREEMPTED, _S.QUEUED, _S.SUCCEEDED, _S.FAILED, _S.HELD, _S.CANCELLED}),
    _S.PREEMPTED: frozenset({_S.QUEUED, _S.HELD, _S.CANCELLED}),
    _S.HELD: frozenset({_S.QUEUED, _S.CANCELLED}),
    # Only because somebody asks for it.
    _S.SUCCEEDED: frozenset({_S.QUEUED}),
    _S.FAILED: frozenset({_S.QUEUED}),
    _S.CANCELLED: frozenset({_S.QUEUED}),
}


def clipped(sentence: str) -> str:
    """Other people's words are in it, and a record has a limit: beyond it, it could never be changed again."""
    return sentence if len(sentence) <= MAX_SENTENCE_CHARACTERS else f"{sentence[: MAX_SENTENCE_CHARACTERS - 3]}..."


def with_before(sentence: str, before: str) -> str:
    """What is, then what had happened."""
    return f"{sentence.rstrip('.')}. Before: {before}" if before else sentence


def told(job: Job, now_unix_ms: int, sentence: str, before: str = "") -> Job:
    """``job`` with one more line of its story, which is also why it is as it is; there before what was ``before``."""
    sentence = clipped(sentence)
    story = (*job.story, Line(now_unix_ms, sentence))[-MAX_STORY_LINES:]
    return replace(job, why=with_before(sentence, before), story=story)


def moved(job: Job, state: JobState, now_unix_ms: int, sentence: str, before: str = "") -> Job:
    if state not in NEXT[job.state]:
        raise InternalError(f"job {job.id} cannot go from {job.state} to {state} ({sentence})")
    job = replace(
        job,
        state=state,
        slots=job.slots if state.has_nodes else (),
        ended_unix_ms=now_unix_ms if state.is_over else 0,
    )
    return told(job, now_unix_ms, sentence, before)
