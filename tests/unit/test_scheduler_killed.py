"""Schedulers that are killed between any two steps, that race, or that wake up late: the jobs' lives go on as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from sdrs_core.errors import SdrsError, StaleTermError, UnavailableError
from sdrs_scheduler.jobs.job import JobState, Wish
from sdrs_scheduler.jobs.spec import Resources
from tests.support.memory_executor import MemoryWorld
from tests.support.scheduling import Stage, spec

MAX_CHANGES = 60


class Killed(BaseException):
    """Not an Exception: nothing in the scheduler may catch it."""


@dataclass
class Killer:
    """Kills the scheduler at its ``at``-th change of the records, before it or right after it."""

    stage: Stage
    at: int
    after: bool
    # What happens at that change instead of a kill: its answer is lost, or it says that a record had moved.
    instead: SdrsError | type[Killed] | None = Killed
    count: int = 0
    is_due: bool = False

    def __post_init__(self) -> None:
        self.stage.records.before_change = self.before
        change = self.stage.records.change

        def changed(**arguments: object) -> int | None:
            revision = change(**arguments)  # type: ignore[arg-type]
            if self.is_due:
                self.is_due = False
                if self.instead is None:
                    return None
                raise self.instead
            return revision

        self.stage.records.change = changed  # type: ignore[method-assign]

    def before(self, compare: Mapping[str, int], put: Mapping[str, bytes]) -> None:
        if "schedule/term" not in compare:
            return
        self.count += 1
        if self.count == self.at:
            if not self.after:
                raise Killed
            self.is_due = True


def tick(stage: Stage) -> None:
    try:
        stage.tick()
    except Killed:
        stage.restart()


def reach(stage: Stage, job_id: str, attempt: int, *states: JobState) -> None:
    for _ in range(300):
        job = stage.job(job_id)
        if job.attempt == attempt and job.state in states:
            return
        tick(stage)
    raise AssertionError(f"in vain: attempt {attempt} {states}; it is {stage.job(job_id)}")


def life(stage: Stage, job_id: str) -> None:
    """Started, saved, crashed, restarted, warned, saved, preempted, restarted, done."""
    reach(stage, job_id, 1, JobState.RUNNING)
    stage.storage.save("llm", 10)
    for _ in range(12):
        tick(stage)
    stage.end(job_id, code=1)
    reach(stage, job_id, 2, JobState.RUNNING)
    stage.ledger.wish(job_id, Wish.PREEMPT, "ann")
    reach(stage, job_id, 2, JobState.CHECKPOINTING)
    stage.clock.seconds += 1
    stage.storage.save("llm", 20)
    reach(stage, job_id, 3, JobState.RUNNING)
    stage.end(job_id, code=0)
    reach(stage, job_id, 3, JobState.SUCCEEDED)


def check(stage: Stage, job_id: str) -> None:
    attempts = stage.attempts(job_id)
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert [attempt.resume_step for attempt in attempts] == [None, 10, 20]
    assert all(attempt.ended_unix_ms and attempt.verdict for attempt in attempts)
    assert [attempt.verdict.charged for attempt in attempts if attempt.verdict] == [True, False, False]
    orders = [stage.world.orders[f"{job_id}.{number}"] for number in (1, 2, 3)]
    assert [order.environment["SDRS_RESUME_STEP"] for order in orders] == ["", "10", "20"]
    assert stage.job(job_id).slots == ()
    # Nothing was started twice, and nothing is left running or remembered.
    assert not any(run.running for run in stage.world.runs.values())


def test_a_life_without_kills_is_as_it_should_be() -> None:
    stage = Stage()
    job_id = stage.submit()
    killer = Killer(stage, at=-1, after=False)
    life(stage, job_id)
    check(stage, job_id)
    assert 10 < killer.count < MAX_CHANGES, "the range of the test below covers all changes"


@pytest.mark.parametrize("after", [False, True])
def test_a_scheduler_killed_at_any_change_is_followed_by_one_that_carries_on(after: bool) -> None:
    for at in range(1, MAX_CHANGES):
        stage = Stage()
        job_id = stage.submit()
        killer = Killer(stage, at, after)
        life(stage, job_id)
        check(stage, job_id)
        if killer.count < at:
            break


@pytest.mark.parametrize("instead", [UnavailableError("the answer is lost"), None])
def test_a_change_that_happened_and_whose_answer_was_lost_is_found_on_record(instead: SdrsError | None) -> None:
    for at in range(1, MAX_CHANGES):
        stage = Stage()
        job_id = stage.submit()
        killer = Killer(stage, at, after=True, instead=instead)
        life(stage, job_id)
        check(stage, job_id)
        if killer.count < at:
            break


def test_a_scheduler_killed_before_it_launched_launches_once_it_is_back() -> None:
    stage = Stage()
    job_id = stage.submit()
    stage.until(lambda: stage.is_in(job_id, JobState.STARTING), "starting")
    stage.world.runs.clear()  # as if it had been killed right before the launch
    stage.restart()
    stage.reach(job_id, JobState.RUNNING)
    assert stage.job(job_id).attempt == 1


def test_jobs_that_ended_while_no_scheduler_ran_are_found() -> None:
    stage = Stage()
    good, bad = stage.running(spec("good")), stage.running(spec("bad"))
    stage.end(good, code=0)
    stage.end(bad, code=1)
    stage.clock.seconds += 500
    stage.restart()
    stage.reach(good, JobState.SUCCEEDED)
    stage.until(lambda: stage.job(bad).attempt == 2, "the restart")


def test_of_two_schedulers_one_decides_and_the_other_follows_when_the_lease_is_over() -> None:
    stage = Stage()
    first, second = stage.parts, stage.another("b")
    job_id = stage.submit()
    for _ in range(100):
        stage.clock.seconds += 0.25
        first.scheduler.tick()
        second.scheduler.tick()
    assert (first.scheduler.leads, second.scheduler.leads) == (True, False)
    assert stage.is_in(job_id, JobState.RUNNING)
    # The first is frozen.
    stage.parts = second
    stage.until(lambda: second.scheduler.leads, "the second to decide")
    stage.end(job_id, code=0)
    stage.reach(job_id, JobState.SUCCEEDED)
    assert [what for what, _ in stage.world.deeds].count("launch") == 1


def test_a_frozen_scheduler_that_wakes_up_changes_nothing() -> None:
    stage = Stage()
    job_id = stage.running()
    first, second = stage.parts, stage.another("b")
    stage.parts = second
    stage.until(lambda: second.scheduler.leads, "the second to decide")
    stage.ledger.wish(job_id, Wish.CANCEL, "ann")
    deeds = len(stage.world.deeds)
    first.scheduler.tick()
    assert stage.is_in(job_id, JobState.RUNNING)
    assert len(stage.world.deeds) == deeds
    assert not first.scheduler.leads
    with pytest.raises(StaleTermError):
        first.leader.commit({}, {"schedule/usage": stage.job(job_id)})
    stage.reach(job_id, JobState.CANCELLED)


def test_a_frozen_scheduler_does_not_launch_what_it_had_decided() -> None:
    stage = Stage()
    first, second = stage.parts, stage.another("b")
    job_id = stage.submit()
    actor = first.scheduler._actor
    stage.until(lambda: stage.is_in(job_id, JobState.SCHEDULED), "scheduled")
    stage.parts = second
    stage.until(lambda: second.scheduler.leads, "the second to decide")
    stage.world.deeds.clear()
    attempt = stage.attempts(job_id)[0]
    with pytest.raises(StaleTermError):
        actor._begin(stage.job(job_id), attempt, first.scheduler._desk.means.executors["local"])
    assert stage.world.deeds == []


def test_runs_that_another_scheduler_keeps_elsewhere_are_neither_started_again_nor_taken_for_gone() -> None:
    stage = Stage()
    running, starting = stage.running(), stage.submit(spec("late"))
    stage.until(lambda: stage.is_in(starting, JobState.STARTING), "starting")
    first = stage.parts
    elsewhere = MemoryWorld(dict(stage.world.nodes), clock=stage.clock.unix_ms)
    stage.parts = stage.another("b", is_alone=False, world=elsewhere, home="there")
    stage.until(lambda: stage.parts.scheduler.leads, "the second one to decide")
    stage.tick(20)
    assert elsewhere.runs == {}
    assert stage.is_in(running, JobState.RUNNING)
    assert stage.is_in(starting, JobState.STARTING)
    assert "is known only to the scheduler of here" in stage.job(running).why
    # One that is gone for good is no dead end.
    stage.ledger.wish(starting, Wish.CANCEL, "ann")
    stage.reach(starting, JobState.CANCELLED)
    stage.parts.leader.resign()
    stage.parts = first
    stage.until(lambda: "is looked after again" in stage.job(running).why, "the first one to decide again")
    stage.end(running, code=0)
    assert stage.reach(running, JobState.SUCCEEDED).attempt == 1


def test_a_scheduler_that_ends_gently_is_followed_at_once() -> None:
    stage = Stage()
    stage.tick()
    stage.parts.leader.resign()
    stage.parts = stage.another("b")
    stage.tick()
    assert stage.parts.scheduler.leads


def test_nothing_is_concluded_while_nobody_answers() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.world.is_reachable = False
    stage.tick(100)
    assert stage.is_in(job_id, JobState.RUNNING)
    stage.storage.is_reachable = False
    stage.tick(100)
    assert stage.is_in(job_id, JobState.RUNNING)
    stage.world.is_reachable = True
    stage.end(job_id, code=1)
    stage.tick(50)
    assert stage.is_in(job_id, JobState.RUNNING), "why it ended cannot be told without the storage"
    stage.storage.is_reachable = True
    stage.until(lambda: stage.job(job_id).attempt == 2, "the restart")


def test_two_gangs_that_could_lock_each_other_out_both_finish() -> None:
    stage = Stage(nodes=2, gpus=4)
    both = [stage.submit(spec(name, resources=Resources(2, 4))) for name in ("a", "b")]
    stage.until(lambda: any(stage.is_in(job_id, JobState.RUNNING) for job_id in both), "one to run")
    first = next(job_id for job_id in both if stage.is_in(job_id, JobState.RUNNING))
    second = next(job_id for job_id in both if job_id != first)
    stage.tick(20)
    assert stage.is_in(second, JobState.QUEUED)
    stage.end(first, code=0)
    stage.reach(second, JobState.RUNNING)
