"""The scheduler, the storage under its jobs, and both: killed while jobs run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_scheduler.jobs.job import JobState, Wish
from sdrs_scheduler.jobs.spec import CheckpointWish, FailureClass, Resources
from tests.support.battered import POOL, BatteredCluster, make_battered, running
from tests.support.cluster import LocalCluster
from tests.support.scheduler_process import IMPATIENT, PATIENCE_SECONDS, TRAINER, SchedulerProcess, scheduled
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def battered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatteredCluster]:
    with running(make_battered(tmp_path_factory.mktemp("cluster"), node_count=3)) as battered:
        yield battered


@pytest.fixture
def cluster(battered: BatteredCluster) -> LocalCluster:
    battered.heal()
    return battered.local


# In the order in which a job comes by that is preempted once.
POINTS = (
    "job.queued.recorded",
    "job.scheduled.decided",
    "job.scheduled.recorded",
    "job.starting.decided",
    "job.starting.recorded",
    "attempt.opened",
    "attempt.launched",
    "job.running.decided",
    "job.running.recorded",
    "job.checkpointing.decided",
    "job.checkpointing.recorded",
    "job.preempted.recorded",
    "job.succeeded.decided",
)
TELLS_ITS_STARTS = """
import os, sys, time
with open("starts", "a") as file:
    file.write(os.environ["SDRS_ATTEMPT"])
while not os.path.exists("go"):
    time.sleep(0.05)
"""


@pytest.mark.timeout(240)
def test_a_scheduler_killed_at_each_state_change_starts_each_attempt_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with scheduled(cluster, tmp_path, **IMPATIENT) as jobs:
        jobs.scheduler.kill()
        job_id = jobs.submit("often", TELLS_ITS_STARTS, checkpoint=CheckpointWish(grace_seconds=1))
        for point in POINTS:
            if point == "job.checkpointing.decided":
                jobs.ledger.wish(job_id, Wish.PREEMPT, "ann")
            if point == "job.succeeded.decided":
                (tmp_path / "go").touch()
            jobs.scheduler.start(wait=False, SDRS_SCHEDULER_FAULT_POINTS=f"{point}=kill")
            assert jobs.scheduler.wait_for_death() == -signal.SIGKILL, point
        jobs.scheduler.start()
        assert jobs.reach(job_id, JobState.SUCCEEDED).attempt == 2
        assert (tmp_path / "starts").read_text() == "12"
        assert [attempt.verdict and attempt.verdict.failure for attempt in jobs.attempts(job_id)] == [
            FailureClass.PREEMPTED,
            None,
        ]


def test_jobs_go_on_without_a_scheduler_and_their_end_is_found(cluster: LocalCluster, tmp_path: Path) -> None:
    with scheduled(cluster, tmp_path, **IMPATIENT) as jobs:
        done = jobs.submit("done", TRAINER, environment={"GOAL": "8"})
        lost = jobs.submit("lost", TRAINER, environment={"GOAL": "12"})
        for job_id in (done, lost):
            jobs.reach(job_id, JobState.RUNNING)
        jobs.saved("lost", 2)
        jobs.scheduler.kill()
        os.kill(jobs.running_pid(lost), signal.SIGKILL)
        wait_for(lambda: not jobs.pids(done) and not jobs.pids(lost), "both to end", PATIENCE_SECONDS)
        jobs.scheduler.start()
        assert jobs.reach(done, JobState.SUCCEEDED).attempt == 1
        assert jobs.reach(lost, JobState.SUCCEEDED).attempt == 2


def test_of_two_schedulers_the_second_takes_over_when_the_first_is_killed(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with scheduled(cluster, tmp_path, lease_seconds=3.0) as jobs:
        second = SchedulerProcess(tmp_path, cluster.url, {"lease_seconds": 3.0}, name="second")
        second.start()
        try:
            term = jobs.ledger.term()
            jobs.scheduler.kill()
            wait_for(lambda: jobs.ledger.term() != term, "the second to take over", PATIENCE_SECONDS)
            other = jobs.submit("later", "")
            jobs.reach(other, JobState.SUCCEEDED)
        finally:
            assert second.stop() == 0


def test_a_storage_node_killed_in_mid_job_costs_no_retry(battered: BatteredCluster, tmp_path: Path) -> None:
    battered.heal()
    with scheduled(battered.local, tmp_path) as jobs:
        wish = CheckpointWish(pool=POOL)
        job_id = jobs.submit("failover", TRAINER, environment={"GOAL": "30", "PAUSE": "0.1"}, checkpoint=wish)
        jobs.reach(job_id, JobState.RUNNING)
        jobs.saved("failover", 3)
        node = battered.node(jobs.job(job_id).slots[0].node)
        node.kill()
        os.kill(jobs.running_pid(job_id), signal.SIGKILL)
        job = jobs.reach(job_id, JobState.SUCCEEDED)
        first, second = jobs.attempts(job_id)
        assert first.verdict is not None
        assert (first.verdict.failure, first.verdict.charged, job.spent) == (FailureClass.NODE_LOST, False, {})
        assert second.slots[0].node != node.name
        assert second.resume_step is not None


# The first time it ends when it is told to, as if it had not survived what the storage went through.
FRAGILE = """
import os, sys, time
while os.environ["SDRS_ATTEMPT"] == "1":
    if os.path.exists("primary-died"):
        sys.exit(1)
    time.sleep(0.05)
"""


def test_a_primary_killed_during_a_save_costs_neither_the_job_nor_a_retry(
    battered: BatteredCluster, tmp_path: Path
) -> None:
    battered.heal()
    most = Resources(nodes=1, gpus_per_node=5)  # no two of them on one node
    large = {"GOAL": "15", "COUNT": "500000"}  # what is small is written in one go
    with scheduled(battered.local, tmp_path) as jobs:
        wish = CheckpointWish(pool=POOL)
        saves = jobs.submit("saves", TRAINER, resources=most, environment=large, checkpoint=wish)
        others = [jobs.submit(f"fragile-{number}", FRAGILE, resources=most) for number in (1, 2)]
        for job_id in (saves, *others):
            jobs.reach(job_id, JobState.RUNNING)
        jobs.saved("saves", 2)
        primary = battered.primary()
        battered.arm(primary, "relay.block=kill")
        primary.wait_for_death()
        step = jobs.cluster.checkpoints("saves").latest()
        assert step is not None
        # The save that was under way got through, and those after it.
        jobs.saved("saves", step.step + 2)
        (tmp_path / "primary-died").touch()
        fragile = next(job_id for job_id in others if jobs.job(job_id).slots[0].node != primary.name)
        job = jobs.reach(fragile, JobState.SUCCEEDED)
        first = jobs.attempts(fragile)[0]
        assert first.verdict is not None
        assert (first.verdict.failure, first.verdict.charged, job.spent) == (FailureClass.STORAGE, False, {})
        assert jobs.reach(saves, JobState.SUCCEEDED).attempt == 1
        assert f"sum {sum(range(16)):.1f}" in jobs.log(saves)


def test_a_corrupted_newest_checkpoint_is_passed_over_and_told(cluster: LocalCluster, tmp_path: Path) -> None:
    with scheduled(cluster, tmp_path) as jobs:
        before = set(cluster.fragments())
        job_id = jobs.submit("corrupt", TRAINER, environment={"PAUSE": "0.5"})
        jobs.reach(job_id, JobState.RUNNING)
        jobs.saved("corrupt", 3)
        jobs.ledger.wish(job_id, Wish.HOLD, "ann")
        jobs.reach(job_id, JobState.HELD)
        newest = jobs.cluster.checkpoints("corrupt").latest()
        assert newest is not None
        blobs = {blob.id for shard in jobs.cluster.checkpoints("corrupt").shards(newest.step) for blob in shard.blobs}
        touched = 0
        for path in set(cluster.fragments()) - before:
            if any(blob in path.name for blob in blobs):
                data = bytearray(path.read_bytes())
                data[len(data) // 3] ^= 0xFF
                path.chmod(0o600)
                path.write_bytes(bytes(data))
                touched += 1
        assert touched
        jobs.ledger.wish(job_id, Wish.RELEASE, "ann")
        job = jobs.reach(job_id, JobState.RUNNING, attempt=2)
        second = jobs.attempts(job_id)[1]
        assert second.resume_step is not None
        assert second.resume_step < newest.step
        assert f"step {newest.step} is damaged" in second.resume_note
        assert any(f"step {newest.step} is damaged" in line.text for line in job.story)
        # The job restores that very step, or dies of its own assertion.
        jobs.saved("corrupt", newest.step)
        assert jobs.job(job_id).attempt == 2
