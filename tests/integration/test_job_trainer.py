"""The trainer of examples/: killed, preempted and resumed, its losses are those of the undisturbed training."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.cluster import LocalCluster
from tests.support.waiting import wait_for

TRAINER = Path(__file__).parents[2] / "examples" / "job_trainer.py"
STEPS = 60


class Training:
    """One start of torchrun with two ranks, as an attempt of a job."""

    def __init__(self, cluster: LocalCluster, name: str, folder: Path, attempt: int, resume_step: int | None) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SDRS_")}
        environment |= {
            "SDRS_URL": cluster.url,
            "SDRS_JOB_ID": f"{name}-ab12",
            "SDRS_JOB_NAME": name,
            "SDRS_ATTEMPT": str(attempt),
            "SDRS_RESUME_STEP": "" if resume_step is None else str(resume_step),
            "OMP_NUM_THREADS": "1",
        }
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        options = ["--steps", str(STEPS), "--save-every", "10", "--losses", str(folder / name)]
        # The first is to be killed in the middle, the second to hear its orders before it is done.
        options += ["--step-seconds", {1: "0.05", 2: "0.5", 3: "0"}[attempt]]
        self.rank_pids: list[int] = []
        self.begun_after: set[int] = set()
        self._log = (folder / f"{name}-{attempt}.log").open("w+")
        self.process = subprocess.Popen(
            [*launcher, str(TRAINER), *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def steps(self) -> Iterator[int]:
        """Each step as it is done, until the training ends."""
        assert self.process.stdout
        for line in self.process.stdout:
            if found := re.match(r"rank \d of 2 is pid (\d+), begins after step (\d+)", line):
                self.rank_pids.append(int(found[1]))
                self.begun_after.add(int(found[2]))
            elif found := re.match(r"step (\d+) loss", line):
                yield int(found[1])

    def run(self) -> int:
        for _ in self.steps():
            pass
        return self.process.wait()

    def kill(self) -> None:
        for pid in (self.process.pid, *self.rank_pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        self._log.close()


@contextmanager
def training(
    cluster: LocalCluster, name: str, folder: Path, attempt: int = 1, resume_step: int | None = None
) -> Iterator[Training]:
    started = Training(cluster, name, folder, attempt, resume_step)
    try:
        yield started
    finally:
        started.close()


def losses(path: Path) -> dict[int, set[str]]:
    """By step; more than one if a repeated step differs."""
    found: dict[int, set[str]] = {}
    for line in path.read_text().splitlines():
        step, loss = line.split()
        found.setdefault(int(step), set()).add(loss)
    return found


def newest_step(cluster: LocalCluster, name: str) -> int:
    with cluster.connect() as connected:
        latest = connected.checkpoints(name).latest()
        return latest.step if latest else 0


# Eight ranks, each importing torch: that takes its time when others compute.
@pytest.mark.timeout(300)
def test_a_training_that_is_killed_and_preempted_has_the_losses_of_one_that_is_not(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    with training(shared_cluster, "unlucky", tmp_path) as first:
        for step in first.steps():
            # A save that was copied becomes a checkpoint also after this; its daemon carries it out.
            if step == 25:
                first.kill()
        assert first.process.wait() == -signal.SIGKILL

    resumed_at = wait_for(lambda: newest_step(shared_cluster, "unlucky"), "a checkpoint", 60)
    with training(shared_cluster, "unlucky", tmp_path, 2, resumed_at) as second:
        for step in second.steps():
            if step == resumed_at + 2:
                with shared_cluster.connect() as cluster:
                    cluster.records.post("orders/unlucky-ab12/2", json.dumps({"save": True}).encode())
        assert second.process.wait() != 0  # torchrun's own code for ranks that left with 75
        assert "exitcode  : 75" in second.log(), second.log()
    assert second.begun_after == {resumed_at}

    left_at = newest_step(shared_cluster, "unlucky")
    assert resumed_at + 2 < left_at < STEPS
    with training(shared_cluster, "undisturbed", tmp_path, 3) as undisturbed:
        with training(shared_cluster, "unlucky", tmp_path, 3, left_at) as third:
            assert third.run() == 0, third.log()
        assert undisturbed.run() == 0, undisturbed.log()
    assert third.begun_after == {left_at}

    expected, told = losses(tmp_path / "undisturbed"), losses(tmp_path / "unlucky")
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert told == expected
    assert newest_step(shared_cluster, "unlucky") == STEPS
