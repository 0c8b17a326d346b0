"""Real jobs that want the same nodes: who gets them, who leaves, and who comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdrs_scheduler.jobs.job import JobState
from sdrs_scheduler.jobs.spec import CheckpointWish, FailureClass, Launch, Resources
from sdrs_scheduler.policy.view import Queue
from tests.support.cluster import LocalCluster
from tests.support.scheduler_process import IMPATIENT, TRAINER, Jobs, scheduled
from tests.support.waiting import wait_for

WHOLE = Resources(nodes=2, gpus_per_node=8)
HALF = Resources(nodes=1, gpus_per_node=8)
# The first time it never ends and does not listen.
DEAF = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while os.environ["SDRS_ATTEMPT"] == "1":
    time.sleep(0.1)
"""
BRIEF = "import time; time.sleep(0.5)"


@pytest.fixture(scope="module")
def all_jobs(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with scheduled(shared_cluster, tmp_path_factory.mktemp("scheduler"), **IMPATIENT) as jobs:
        yield jobs


@pytest.fixture
def jobs(all_jobs: Jobs) -> Iterator[Jobs]:
    yield all_jobs
    all_jobs.end_all()


def test_a_preempted_job_that_never_saves_is_killed_after_its_grace_and_restarted_for_free(jobs: Jobs) -> None:
    wish = CheckpointWish(grace_seconds=1)
    deaf = jobs.submit("deaf", DEAF, priority=10, resources=WHOLE, launch=Launch.ONCE, checkpoint=wish)
    jobs.reach(deaf, JobState.RUNNING)
    pid = jobs.running_pid(deaf)
    high = jobs.submit("urgent", BRIEF, priority=90, resources=WHOLE, launch=Launch.ONCE)
    jobs.reach(high, JobState.SUCCEEDED)
    job = jobs.reach(deaf, JobState.SUCCEEDED)
    first, second = jobs.attempts(deaf)
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged, job.spent) == (FailureClass.PREEMPTED, False, {})
    assert first.ended_unix_ms - first.warned_unix_ms >= 1000
    assert (first.durable_step, second.resume_step) == (None, None)
    # Never two on one place: it was gone before the other one began.
    assert jobs.attempts(high)[0].started_unix_ms >= first.ended_unix_ms
    assert pid not in jobs.pids(deaf)


def test_idle_capacity_is_lent_and_taken_back_from_the_borrower_who_saves_first(jobs: Jobs) -> None:
    jobs.ledger.put_queue(Queue("research", gpus=8))
    jobs.ledger.put_queue(Queue("production", gpus=8))
    wish = CheckpointWish(grace_seconds=60)
    borrowers = [
        jobs.submit(name, TRAINER, queue="research", priority=90, resources=HALF, checkpoint=wish)
        for name in ("owns", "borrows")
    ]
    for job_id in borrowers:
        jobs.reach(job_id, JobState.RUNNING)
    for name in ("owns", "borrows"):
        jobs.saved(name, 1)
    # Less important, but it asks for what is its own.
    owner = jobs.submit("owner", BRIEF, queue="production", priority=10, resources=HALF)
    jobs.reach(owner, JobState.SUCCEEDED)
    back = wait_for(lambda: [job_id for job_id in borrowers if jobs.job(job_id).attempt == 2], "the borrower back", 60)
    assert len(back) == 1, "no more is taken back than was lent"
    jobs.reach(back[0], JobState.RUNNING)
    first, second = jobs.attempts(back[0])
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged) == (FailureClass.PREEMPTED, False)
    assert owner in first.verdict.sentence
    assert second.resume_step == first.durable_step is not None


def test_gangs_that_each_need_everything_run_one_after_the_other_and_none_starves(jobs: Jobs) -> None:
    gangs = [jobs.submit(name, BRIEF, resources=WHOLE) for name in ("gang-a", "gang-b")]
    small = jobs.submit("small", BRIEF)
    for job_id in (*gangs, small):
        jobs.reach(job_id, JobState.SUCCEEDED)
    lives = sorted(
        (attempt.started_unix_ms, attempt.ended_unix_ms) for gang in gangs for attempt in jobs.attempts(gang)
    )
    assert len(lives) == 2
    assert lives[0][1] <= lives[1][0]
