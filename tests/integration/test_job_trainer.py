"""The trainer of examples/ as a job: preempted, killed and resumed, it has the losses of the undisturbed training."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from sdrs_scheduler.jobs.job import JobState, Wish
from sdrs_scheduler.jobs.spec import FailureClass, Resources
from tests.support.cluster import LocalCluster
from tests.support.scheduler_process import IMPATIENT, PATIENCE_SECONDS, Jobs, scheduled
from tests.support.waiting import wait_for

TRAINER = Path(__file__).parents[2] / "examples" / "job_trainer.py"
STEPS, SAVE_EVERY = 60, 10


def train(jobs: Jobs, name: str) -> str:
    """Two ranks under torchrun."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(TRAINER))
    options = ("--steps", STEPS, "--save-every", SAVE_EVERY, "--step-seconds", 0.1, "--losses", jobs.folder / name)
    return jobs.submit_command(
        name,
        *(sys.executable, *launcher, *map(str, options)),
        resources=Resources(nodes=1, gpus_per_node=2),
        environment={"OMP_NUM_THREADS": "1"},
    )


def rank_pid(jobs: Jobs, job_id: str) -> int:
    found = wait_for(
        lambda: re.search(r"rank 1 of 2 is pid (\d+)", jobs.log(job_id)), "the second rank", PATIENCE_SECONDS
    )
    return int(found[1])


def losses(path: Path) -> dict[int, set[str]]:
    """By step; more than one if a repeated step differs."""
    found: dict[int, set[str]] = {}
    for line in path.read_text().splitlines():
        step, loss = line.split()
        found.setdefault(int(step), set()).add(loss)
    return found


# Eight ranks and their launchers, each importing torch: that takes its time when others compute.
@pytest.mark.timeout(300)
def test_a_training_that_is_preempted_and_killed_has_the_losses_of_one_that_is_not(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    with scheduled(shared_cluster, tmp_path, **IMPATIENT) as jobs:
        unlucky, undisturbed = train(jobs, "unlucky"), train(jobs, "undisturbed")
        jobs.saved("unlucky", SAVE_EVERY)
        jobs.ledger.wish(unlucky, Wish.PREEMPT, "ann")
        jobs.reach(unlucky, JobState.RUNNING, attempt=2)
        resumed_at = jobs.attempts(unlucky)[1].resume_step
        assert resumed_at is not None
        jobs.saved("unlucky", resumed_at + 1)
        os.kill(rank_pid(jobs, unlucky), signal.SIGKILL)
        for job_id in (unlucky, undisturbed):
            jobs.reach(job_id, JobState.SUCCEEDED)
        first, second, third = jobs.attempts(unlucky)
        assert len(jobs.attempts(undisturbed)) == 1

    # What torchrun makes of its ranks' ends is seen through: those that left by themselves, and one that was killed.
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged) == (FailureClass.PREEMPTED, False)
    assert second.verdict is not None
    assert second.verdict.failure is FailureClass.KILLED
    assert first.durable_step == resumed_at < (third.resume_step or 0) < STEPS

    expected, told = losses(tmp_path / "undisturbed"), losses(tmp_path / "unlucky")
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert told == expected
