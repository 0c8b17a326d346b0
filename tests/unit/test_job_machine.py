"""The machine alone: whatever is seen, only legal moves, and records that fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.errors import InternalError
from sdrs_scheduler.executors.executor import Exit, RunFacts, RunState
from sdrs_scheduler.jobs import machine
from sdrs_scheduler.jobs.classify import Evidence
from sdrs_scheduler.jobs.job import Attempt, Job, JobId, JobState, Slot, Wish
from sdrs_scheduler.jobs.machine import MachineSettings, advance
from sdrs_scheduler.jobs.resume import Generation, Resumption
from sdrs_scheduler.jobs.sight import Begin, Forget, Gather, Kill, Sight
from sdrs_scheduler.jobs.spec import JobSpec
from sdrs_scheduler.jobs.transitions import NEXT, moved

SETTINGS = MachineSettings()
SLOTS = (Slot("n1", (0, 1)),)


def test_every_state_has_its_successors_and_no_other_move_is_possible() -> None:
    assert set(NEXT) == set(JobState)
    for state in JobState:
        for after in JobState:
            job = Job(JobId("j"), JobSpec("j", "x"), "ann", 0, state)
            if after in NEXT[state]:
                assert moved(job, after, 1, "so").state is after
            else:
                with pytest.raises(InternalError):
                    moved(job, after, 1, "so")


runs = st.none() | st.builds(
    RunFacts,
    st.sampled_from(list(RunState)),
    started_unix_ms=st.just(5),
    exits=st.just({}) | st.builds(lambda code: {"n1": Exit(code)}, st.sampled_from([0, 1, 75, 93])),
    lost_nodes=st.just(()) | st.just(("n1",)),
)
sights = st.builds(
    lambda run, resumption, evidence, step, nan, hang, newest, durable, error, down, blocked: Sight(
        0, run, resumption, blocked, evidence, step, nan, None, hang, newest, durable, error, down
    ),
    runs,
    st.none() | st.just(Resumption(None)) | st.just(Resumption(3, "", True, 7)),
    st.none() | st.builds(lambda code: Evidence(exits={"n1": Exit(code)}), st.sampled_from([0, 1, 75, 93])),
    st.none() | st.integers(0, 9),
    st.none() | st.just(4),
    st.sampled_from(["", "silent"]),
    st.none() | st.builds(lambda step: Generation(f"s{step}", step, committed_unix_ms=step * 1000), st.integers(0, 20)),
    st.booleans(),
    st.sampled_from(["", "no such file"]),
    st.just({}) | st.just({"n1": "down"}),
    st.sampled_from(["", "out of reach"]),
)
happenings = st.lists(
    st.tuples(sights, st.sampled_from([*Wish, *[Wish.NONE] * 6]), st.integers(1, 30_000)), max_size=40
)


@settings(max_examples=100, deadline=None)
@given(happenings)
def test_whatever_is_seen_the_records_fit_together(story: list[tuple[Sight, Wish, int]]) -> None:
    job, now = Job(JobId("j"), JobSpec("j", "x"), "ann", 0), 1000
    attempt: Attempt | None = None
    ended: set[int] = set()
    for sight, wish, later in story:
        now += later
        job = replace(job, wish=wish if wish else job.wish, wish_note="ann")
        step = advance(job, attempt, replace(sight, now_unix_ms=now), SETTINGS)
        assert step.job.state is job.state or step.job.state in NEXT[job.state]
        job, attempt = step.job, step.attempt
        assert bool(job.slots) == job.state.has_nodes
        assert bool(job.ended_unix_ms) == job.state.is_over
        if attempt is not None:
            assert job.attempt == attempt.number
            # One that is over stays over, and a job without nodes has none that is not.
            assert not (attempt.number in ended and not attempt.ended_unix_ms)
            assert bool(attempt.ended_unix_ms) == (not job.state.has_nodes)
            if attempt.ended_unix_ms:
                assert attempt.verdict is not None
                ended.add(attempt.number)
        if job.state is JobState.QUEUED:
            step = machine.placed(job, SLOTS, "local", now)
            job, attempt = step.job, step.attempt


@settings(max_examples=60, deadline=None)
@given(happenings)
def test_asking_twice_changes_nothing_more(story: list[tuple[Sight, Wish, int]]) -> None:
    """A scheduler that was killed after a change sees the same again, and must not change it once more."""
    job, now = Job(JobId("j"), JobSpec("j", "x"), "ann", 0, JobState.RUNNING, attempt=1, slots=SLOTS), 1000
    attempt: Attempt | None
    attempt = Attempt(JobId("j"), 1, SLOTS, "local", started_unix_ms=1, running_unix_ms=1)
    for sight, _, later in story:
        now += later
        step = advance(job, attempt, replace(sight, now_unix_ms=now), SETTINGS)
        if not step.job.state.has_nodes:
            return
        again = advance(step.job, step.attempt, replace(sight, now_unix_ms=now), SETTINGS)
        if again.job.state.has_nodes:
            assert (again.job, again.attempt) == (step.job, step.attempt)
        job, attempt = step.job, step.attempt


def starting() -> tuple[Job, Attempt]:
    job = Job(JobId("j"), JobSpec("j", "x"), "ann", 0, JobState.STARTING, attempt=1, slots=SLOTS)
    return job, Attempt(JobId("j"), 1, SLOTS, "local", started_unix_ms=1000)


def test_what_nobody_knows_is_begun_and_what_nobody_can_tell_is_left_alone() -> None:
    job, attempt = starting()
    unknown = Sight(2000, RunFacts(RunState.UNKNOWN))
    assert advance(job, attempt, unknown, SETTINGS).instructions == (Begin(),)
    assert advance(job, attempt, Sight(2000), SETTINGS).instructions == ()


def test_one_that_its_executor_never_takes_is_given_up() -> None:
    job, attempt = starting()
    step = advance(job, attempt, Sight(1000 + 601_000, RunFacts(RunState.UNKNOWN)), SETTINGS)
    assert step.attempt is not None
    assert step.attempt.verdict is not None
    assert "did not take it" in step.attempt.verdict.sentence


def test_an_end_is_explained_before_anything_is_decided() -> None:
    job, attempt = starting()
    over = Sight(2000, RunFacts(RunState.ENDED, exits={"n1": Exit(1)}))
    assert advance(job, attempt, over, SETTINGS).instructions == (Gather(),)
    step = advance(job, attempt, replace(over, evidence=Evidence(exits={"n1": Exit(1)})), SETTINGS)
    assert step.job.state is JobState.QUEUED
    assert step.instructions == (Forget(),)


def test_a_reason_to_kill_is_on_record_before_the_kill() -> None:
    job, attempt = starting()
    job = replace(job, state=JobState.RUNNING)
    step = advance(job, attempt, Sight(2000, RunFacts(RunState.RUNNING), nan_step=3), SETTINGS)
    assert step.attempt is not None
    assert step.attempt.verdict is not None
    assert step.instructions == (Kill(),)
    # Whoever comes after a kill of the scheduler knows why it died of signal 9.
    over = Sight(3000, RunFacts(RunState.ENDED, exits={"n1": Exit(signal=9)}))
    after = advance(step.job, step.attempt, over, SETTINGS)
    assert after.job.roll_back == 1
