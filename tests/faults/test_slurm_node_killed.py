"""Jobs of a real scheduler on a real Slurm: preempted with their checkpoint, and robbed of their node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdrs_scheduler.jobs.job import Job, JobState, Wish
from sdrs_scheduler.jobs.spec import FailureClass, Resources
from tests.support.cluster import LocalCluster
from tests.support.scheduler_process import IMPATIENT, TRAINER, Jobs, scheduled
from tests.support.slurm import GPUS_PER_NODE, SlurmCluster, needs_slurm, running_slurm
from tests.support.waiting import wait_for

pytestmark = needs_slurm

WHOLE_NODE = Resources(nodes=1, gpus_per_node=GPUS_PER_NODE)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with running_slurm() as slurm:
        yield slurm


@pytest.fixture(scope="module")
def jobs(shared_cluster: LocalCluster, slurm: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    settings = {"enabled": True, "conf_file": str(slurm.conf_file), "settle_seconds": 1.0}
    with scheduled(
        shared_cluster, tmp_path_factory.mktemp("scheduler"), **IMPATIENT, local={"enabled": False}, slurm=settings
    ) as jobs:
        yield jobs


def train(jobs: Jobs, name: str, goal: int) -> str:
    return jobs.submit(name, TRAINER, executor="slurm", resources=WHOLE_NODE, environment={"GOAL": str(goal)})


def node_of(slurm: SlurmCluster, job: Job) -> str:
    """Where Slurm says that it runs."""
    lines = slurm.run("squeue", "--noheader", "--states=running", "--format=%j %N").stdout.splitlines()
    return next(node for name, node in map(str.split, lines) if str(job.id) in name)


def test_a_job_on_slurm_is_preempted_with_its_checkpoint_and_comes_back(jobs: Jobs, slurm: SlurmCluster) -> None:
    job_id = train(jobs, "slurm-preempted", 12)
    job = jobs.reach(job_id, JobState.RUNNING)
    jobs.saved("slurm-preempted", 2)
    assert node_of(slurm, job) == job.slots[0].node
    jobs.ledger.wish(job_id, Wish.PREEMPT, "ann")
    job = jobs.reach(job_id, JobState.SUCCEEDED)
    first, second = jobs.attempts(job_id)
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged, job.spent) == (FailureClass.PREEMPTED, False, {})
    assert second.resume_step == first.durable_step is not None
    assert f"sum {sum(range(13)):.1f}" in jobs.log(job_id)


def test_a_job_whose_slurm_node_dies_goes_on_elsewhere_from_its_checkpoint_for_free(
    jobs: Jobs, slurm: SlurmCluster
) -> None:
    job_id = train(jobs, "slurm-robbed", 30)
    node = jobs.reach(job_id, JobState.RUNNING).slots[0].node
    jobs.saved("slurm-robbed", 2)
    slurm.kill_node(node)
    try:
        job = jobs.reach(job_id, JobState.SUCCEEDED)
    finally:
        slurm.start_node(node)
        slurm.wait_until_up()
    first, second = jobs.attempts(job_id)
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged, job.spent) == (FailureClass.NODE_LOST, False, {})
    assert first.verdict.blamed_node == node
    assert second.slots[0].node != node
    assert second.resume_step is not None
    assert second.resume_step >= 2
    assert f"sum {sum(range(31)):.1f}" in jobs.log(job_id)
    wait_for(lambda: jobs.ledger.nodes()[node].value.is_up, "the node to be seen up again", 60)
    assert [strike.job_id for strike in jobs.ledger.nodes()[node].value.strikes] == [job_id]
