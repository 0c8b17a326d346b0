"""``sdrs job`` with a real scheduler behind it: from the file of `init` to the end of the job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sdrs_scheduler.jobs.job import JobState
from tests.support.cluster import LocalCluster
from tests.support.job_program import JobProgram
from tests.support.scheduler_process import IMPATIENT, Jobs, scheduled
from tests.support.waiting import wait_for

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def jobs(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with scheduled(shared_cluster, tmp_path_factory.mktemp("scheduler"), **IMPATIENT) as jobs:
        yield jobs


@pytest.fixture
def program(shared_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobProgram:
    monkeypatch.chdir(tmp_path)
    return JobProgram(shared_cluster.url)


def test_what_init_writes_is_submitted_killed_and_ends_well(program: JobProgram, jobs: Jobs, tmp_path: Path) -> None:
    program.run("job", "init", "mine.yaml")
    script = tmp_path / "train.py"
    script.write_text(script.read_text().replace("STEPS = 600", "STEPS = 50"))
    file = tmp_path / "mine.yaml"
    for usual, now in (("5m", "1s"), ("10s", "1s"), ("python train.py", f"{sys.executable} train.py")):
        file.write_text(file.read_text().replace(f": {usual}", f": {now}"))
    made = program.json("job", "submit", "mine.yaml")[0]
    jobs.saved("mine", 1)
    attempt = jobs.reach(made["id"], JobState.RUNNING).attempt
    os.kill(_worker(jobs, made["id"]), signal.SIGKILL)
    result = program.result("job", "show", "mine", "-w")
    assert result.exit_code == 0, result.output
    assert "succeeded" in result.output

    ended = program.json("job", "attempts", "mine")
    assert ended[attempt - 1]["failure"] == "killed"
    assert ended[-1]["resume_step"] is not None
    assert [row["state"] for row in ended] == ["ended"] * len(ended)
    assert f"goes on from step {ended[-1]['resume_step']}" in program.run("job", "logs", "mine")
    shown = program.json("job", "show", "mine")
    assert shown["resume_point"]["step"] == 50
    assert shown["goodput"]["recoveries"] == {"killed": 1}
    assert shown["advice"]["interval_seconds"] > 0
    assert "succeeded" in program.run("job", "why", "mine")


def _worker(jobs: Jobs, job_id: str) -> int:
    def pids() -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline", "environ"])
            if (process.info["environ"] or {}).get("SDRS_JOB_ID") == job_id
            and (process.info["cmdline"] or ("",))[-1] == "train.py"
        ]

    return wait_for(pids, f"a worker of {job_id}", WAIT_SECONDS)[0]


def test_a_job_that_fails_is_told_by_exit_code_and_sentence(program: JobProgram, jobs: Jobs, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\ncommand: echo so long; exit 210\n")
    result = program.result("job", "submit", "bad.yaml", "-w")
    assert result.exit_code == 1, result.output
    assert "no scheduler" not in result.output
    assert "exited with 210" in program.run("job", "why", "bad")
    assert program.run("job", "logs", "bad", "-f").splitlines()[0] == "so long"


def test_a_held_job_starts_when_it_is_released_and_one_that_runs_is_cancelled(
    program: JobProgram, jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "long.yaml").write_text("name: long\ncommand: echo up; sleep 600\ncheckpoint: {grace: 1s}\n")
    made = program.json("job", "submit", "long.yaml", "--hold")[0]
    assert made["state"] == "held"
    program.run("job", "release", "long")
    jobs.reach(made["id"], JobState.RUNNING)
    assert "runs on node-" in program.run("job", "why", "long")
    program.run("job", "cancel", "long", "--reason", "enough")
    assert program.result("job", "show", "long", "-w").exit_code == 1
    assert "enough" in program.run("job", "why", "long")
    assert "long" not in {job["name"] for job in program.json("job", "list", "--active")}
    assert {job["name"]: job["state"] for job in program.json("job", "list")}["long"] == "cancelled"
