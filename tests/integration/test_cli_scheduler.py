"""`sdrs up` and `down` with the scheduler as one more daemon, and what becomes of its jobs.

Mostly a stand-in takes the scheduler's place, and one the place of the shepherd of a run: what is looked at is how they
are started, found and stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import sdrs
from tests.support.machine import Machine, own_machine
from tests.support.waiting import wait_for

SCHEDULER = """
import json, os, signal, sys, tomllib
assert sys.argv[1] == "--config"
with open(sys.argv[2], "rb") as file:
    config = tomllib.load(file)
if os.path.exists(os.path.join(config["data_dir"], "..", "broken")):
    sys.exit("the scheduler is broken")
with open(os.path.join(config["data_dir"], "run.json"), "w") as file:
    json.dump({"pid": os.getpid()}, file)
signal.pause()
"""
SHEPHERD = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    package = tmp_path / "stand-in" / "sdrs_scheduler"
    (package / "executors" / "local").mkdir(parents=True)
    for folder in (package, package / "executors", package / "executors" / "local"):
        (folder / "__init__.py").touch()
    (package / "__main__.py").write_text(SCHEDULER)
    (package / "executors" / "local" / "shepherd.py").write_text(SHEPHERD)
    with own_machine(tmp_path, scheduler=True) as machine:
        path = os.pathsep.join([str(package.parent), *(entry for entry in sys.path if entry)])
        machine.environment["PYTHONPATH"] = path
        yield machine


def start_run(machine: Machine, name: str) -> subprocess.Popen[bytes]:
    """What a scheduler would have started, and what outlives it."""
    folder = machine.dir / "scheduler" / "local" / "runs" / name
    folder.mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sdrs_scheduler.executors.local.shepherd", str(folder)],
        env=machine.environment,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    return process


def test_the_scheduler_comes_up_last_is_started_again_when_it_died_and_goes_first(machine: Machine) -> None:
    up = machine.json("up", "--nodes", "1", "--port", "0")
    assert up["started"] == ["controller", "node-1", "scheduler"]
    assert (up["scheduler"], up["no_scheduler"]) == (True, "")
    config = tomllib.loads((machine.dir / "scheduler.toml").read_text())
    assert (config["url"], config["data_dir"]) == (up["url"], str(machine.dir / "scheduler"))
    assert (machine.dir / "scheduler").stat().st_mode & 0o77 == 0, "environments of jobs may hold secrets"
    assert machine.json("up")["started"] == []
    machine.kill("scheduler")
    wait_for(lambda: "scheduler" not in machine.pids(), "the scheduler to be gone")
    assert machine.json("up")["started"] == ["scheduler"]
    down = machine.json("down")
    assert (down["stopped"], down["killed"]) == (["controller", "node-1", "scheduler"], [])

    up = machine.json("up", "--no-scheduler")
    assert (up["started"], up["scheduler"], up["no_scheduler"]) == (["controller", "node-1"], False, "")
    machine.json("down", "--purge", "--yes")
    assert not machine.dir.exists()


def test_jobs_go_on_after_down_which_says_so_unless_they_are_to_be_stopped(machine: Machine) -> None:
    machine.run("up", "--nodes", "1", "--port", "0")
    with start_run(machine, "llm-1a2b.1") as run:
        assert "llm-1a2b.1" in machine.run("down", "--purge", "--yes", expect=4)
        assert machine.pids().keys() == {"controller", "node-1", "scheduler"}, "nothing was stopped"
        _, told = machine.start("down").communicate(timeout=60)
        assert "1 job still runs (llm-1a2b.1)" in told
        assert "sdrs down --stop-jobs" in told
        assert machine.json("down")["left_runs"] == ["llm-1a2b.1"]
        assert run.poll() is None
        assert machine.json("up")["started"] == ["controller", "node-1", "scheduler"]
        down = machine.json("down", "--stop-jobs")
        assert (down["ended_runs"], down["left_runs"]) == (["llm-1a2b.1"], [])
        assert run.wait(60) == 0
    machine.run("down", "--purge", "--yes", "--stop-jobs")
    assert not machine.dir.exists()


def test_a_scheduler_that_cannot_start_takes_nothing_down_with_it_and_says_why(
    machine: Machine, tmp_path: Path
) -> None:
    machine.run("up", "--nodes", "1", "--port", "0", "--no-scheduler")
    (machine.dir / "broken").touch()
    up = machine.json("up")
    assert up["started"] == []
    assert "the scheduler is broken" in up["no_scheduler"]
    assert machine.pids().keys() == {"controller", "node-1"}

    (tmp_path / "stand-in" / "sdrs_scheduler" / "__main__.py").unlink()
    assert "pip install 'sdrs[server]'" in machine.json("up")["no_scheduler"]
    told = "".join(machine.start("up").communicate(timeout=60))
    assert "there is no scheduler: it needs sdrs_scheduler.__main__" in told
    assert machine.pids().keys() == {"controller", "node-1"}


def test_the_real_scheduler_takes_up_its_work_and_leaves_it(tmp_path: Path) -> None:
    with own_machine(tmp_path, scheduler=True) as machine:
        up = machine.json("up", "--nodes", "1", "--port", "0")
        assert (up["scheduler"], up["no_scheduler"]) == (True, "")
        with sdrs.connect(up["url"]) as cluster:
            wait_for(lambda: cluster.records.get("schedule/term"), "a scheduler to decide", 60)
        down = machine.json("down")
        assert (down["stopped"], down["killed"]) == (["controller", "node-1", "scheduler"], [])
