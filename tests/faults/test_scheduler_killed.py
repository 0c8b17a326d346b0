"""The scheduler, the storage under its jobs, and both: killed while jobs run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_scheduler.jobs.job import JobState, Wish
from sdrs_scheduler.jobs.spec import CheckpointWish, FailureClass
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.scheduler_process import PATIENCE_SECONDS, TRAINER, SchedulerProcess, scheduled
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), node_count=3) as cluster:
        yield cluster


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
)


@pytest.mark.timeout(240)
def test_a_scheduler_killed_at_each_state_change_starts_a_job_once(cluster: LocalCluster, tmp_path: Path) -> None:
    """One job for each point; each leaves a line whenever it is started."""
    with scheduled(cluster, tmp_path) as jobs:
        for number, point in enumerate(POINTS):
            jobs.scheduler.kill()
            name = f"point-{number}"
            started = tmp_path / f"{name}.started"
            code = f"import time; open({str(started)!r}, 'a').write('x'); time.sleep(1)"
            job_id = jobs.submit(name, code)
            jobs.scheduler.start(wait=False, SDRS_SCHEDULER_FAULT_POINTS=f"{point}=kill")
            assert jobs.scheduler.wait_for_death() == -signal.SIGKILL
            jobs.scheduler.start()
            job = jobs.reach(job_id, JobState.SUCCEEDED)
            assert (point, job.attempt, started.read_text()) == (point, 1, "x")


def test_jobs_go_on_without_a_scheduler_and_their_end_is_found(cluster: LocalCluster, tmp_path: Path) -> None:
    with scheduled(cluster, tmp_path) as jobs:
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
        # The same runs, seen by another process: its own folder, but the first one's runs are in the first one's.
        job_id = jobs.submit("outlives", "import time; time.sleep(1)")
        jobs.reach(job_id, JobState.SUCCEEDED)
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


def test_a_storage_node_killed_in_mid_job_costs_no_retry(cluster: LocalCluster, tmp_path: Path) -> None:
    with scheduled(cluster, tmp_path) as jobs:
        jobs.cluster.create_pool("safe", "L2")
        wish = CheckpointWish(pool="safe")
        job_id = jobs.submit("failover", TRAINER, environment={"GOAL": "40"}, checkpoint=wish)
        jobs.reach(job_id, JobState.RUNNING)
        jobs.saved("failover", 3)
        node = next(daemon for daemon in cluster.nodes if daemon.name == jobs.job(job_id).slots[0].node)
        node.kill()
        os.kill(jobs.running_pid(job_id), signal.SIGKILL)
        try:
            job = jobs.reach(job_id, JobState.SUCCEEDED)
        finally:
            node.start()
            cluster.wait_until_up()
        first, second = jobs.attempts(job_id)
        assert first.verdict is not None
        assert first.verdict.failure is FailureClass.NODE_LOST
        assert not first.verdict.charged
        assert second.slots[0].node != node.name
        assert second.resume_step is not None
        assert job.spent == {}


def test_a_corrupted_newest_checkpoint_is_passed_over_and_told(cluster: LocalCluster, tmp_path: Path) -> None:
    with scheduled(cluster, tmp_path) as jobs:
        before = set(cluster.fragments())
        job_id = jobs.submit("corrupt", TRAINER, environment={"GOAL": "1000", "PAUSE": "0.5"})
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
