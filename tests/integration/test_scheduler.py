"""A real scheduler over real daemons, with real jobs that save."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sdrs_scheduler.jobs.job import JobState, Wish
from sdrs_scheduler.jobs.spec import CheckpointWish, FailureClass, HangWatch, Launch, Resources
from tests.support.cluster import LocalCluster
from tests.support.scheduler_process import IMPATIENT, TRAINER, Jobs, scheduled
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def jobs(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with scheduled(shared_cluster, tmp_path_factory.mktemp("scheduler"), **IMPATIENT) as jobs:
        yield jobs


def test_a_job_that_is_killed_goes_on_from_its_verified_checkpoint_with_the_same_result(jobs: Jobs) -> None:
    job_id = jobs.submit("killed", TRAINER, environment={"GOAL": "25", "PAUSE": "0.1"})
    jobs.reach(job_id, JobState.RUNNING)
    jobs.saved("killed", 3)
    os.kill(jobs.running_pid(job_id), signal.SIGKILL)
    job = jobs.reach(job_id, JobState.SUCCEEDED)
    first, second = jobs.attempts(job_id)
    assert first.verdict is not None
    assert first.verdict.failure is FailureClass.KILLED
    assert second.resume_step is not None
    assert second.resume_step >= 3
    assert any("verified" in line.text for line in job.story)
    assert f"sum {sum(range(26)):.1f}" in jobs.log(job_id)


def test_a_warned_job_saves_and_leaves_and_comes_back_when_it_is_released(jobs: Jobs) -> None:
    job_id = jobs.submit("held", TRAINER, checkpoint=CheckpointWish(grace_seconds=60))
    jobs.reach(job_id, JobState.RUNNING)
    jobs.saved("held", 2)
    jobs.ledger.wish(job_id, Wish.HOLD, "ann")
    jobs.reach(job_id, JobState.HELD)
    first = jobs.attempts(job_id)[0]
    assert first.verdict is not None
    assert first.verdict.failure is FailureClass.PREEMPTED
    # It was not the grace that ended it.
    assert first.ended_unix_ms - first.warned_unix_ms < 60_000
    newest = jobs.cluster.checkpoints("held").latest()
    jobs.ledger.wish(job_id, Wish.RELEASE, "ann")
    jobs.reach(job_id, JobState.RUNNING, attempt=2)
    assert newest is not None
    assert jobs.attempts(job_id)[1].resume_step == newest.step
    jobs.ledger.wish(job_id, Wish.CANCEL, "ann")
    jobs.reach(job_id, JobState.CANCELLED)
    assert jobs.pids(job_id) == []


def test_a_more_important_job_gets_the_place_of_one_that_saves_first_and_comes_back(jobs: Jobs) -> None:
    whole = Resources(nodes=2, gpus_per_node=8)
    low = jobs.submit("low", TRAINER, priority=10, resources=whole, launch=Launch.ONCE)
    jobs.reach(low, JobState.RUNNING)
    jobs.saved("low", 2)
    high = jobs.submit("high", "", priority=90, resources=whole, launch=Launch.ONCE)
    jobs.reach(high, JobState.SUCCEEDED)
    jobs.reach(low, JobState.RUNNING, attempt=2)
    first, second = jobs.attempts(low)
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged) == (FailureClass.PREEMPTED, False)
    assert high in first.verdict.sentence
    assert first.durable_step is not None
    assert second.resume_step == first.durable_step
    jobs.ledger.wish(low, Wish.CANCEL, "ann")
    jobs.reach(low, JobState.CANCELLED)


def test_a_frozen_job_hangs_has_its_stacks_dumped_and_is_restarted(jobs: Jobs) -> None:
    job_id = jobs.submit("frozen", TRAINER, hang=HangWatch(heartbeat_seconds=5))
    jobs.reach(job_id, JobState.RUNNING)
    jobs.saved("frozen", 2)
    os.kill(jobs.running_pid(job_id), signal.SIGSTOP)
    jobs.reach(job_id, JobState.RUNNING, attempt=2)
    first = jobs.attempts(job_id)[0]
    assert first.verdict is not None
    assert first.verdict.failure is FailureClass.HANG
    assert "most recent call first" in jobs.log(job_id, attempt=1)
    jobs.ledger.wish(job_id, Wish.CANCEL, "ann")
    jobs.reach(job_id, JobState.CANCELLED)


def test_what_a_job_says_by_its_exit_code_counts(jobs: Jobs) -> None:
    first = "import os, sys; sys.exit({} if os.environ['SDRS_ATTEMPT'] == '1' else 0)"
    ids = {code: jobs.submit(f"exits-{code}", first.format(code)) for code in (0, 1, 75, 93, 200, 210)}
    expected = {
        0: (JobState.SUCCEEDED, 1, None, False),
        1: (JobState.SUCCEEDED, 2, FailureClass.CRASH, True),
        75: (JobState.SUCCEEDED, 2, FailureClass.REQUEUED, False),
        93: (JobState.FAILED, 1, FailureClass.NEVER_RESTART, False),
        200: (JobState.SUCCEEDED, 2, FailureClass.TRANSIENT, True),
        210: (JobState.FAILED, 1, FailureClass.PERMANENT, False),
    }
    for code, (state, attempt, failure, charged) in expected.items():
        job = jobs.reach(ids[code], JobState.SUCCEEDED, JobState.FAILED)
        verdict = jobs.attempts(ids[code])[0].verdict
        assert verdict is not None
        assert (job.state, job.attempt, verdict.failure, verdict.charged) == (state, attempt, failure, charged), code


def test_a_job_that_needs_more_than_there_is_is_told_so(jobs: Jobs) -> None:
    job_id = jobs.submit("huge", "", resources=Resources(64, 8))
    wait_for(lambda: "64" in jobs.job(job_id).why, "why it waits", 60)
    jobs.ledger.wish(job_id, Wish.CANCEL, "ann")
    jobs.reach(job_id, JobState.CANCELLED)
