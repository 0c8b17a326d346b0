"""A real scheduler process over a real cluster, and its jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import sdrs
from sdrs_core.errors import RefusedError
from sdrs_scheduler.jobs.job import Attempt, Job, JobState, Wish
from sdrs_scheduler.jobs.spec import Backoff, JobSpec, Resources, Retry
from sdrs_scheduler.ledger import Ledger
from tests.support.cluster import LocalCluster
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 90.0
# Looks often and waits for nobody: where no node dies, and nobody minds that a job is preempted right after its start.
IMPATIENT: dict[str, Any] = {
    "tick_seconds": 0.05,
    "idle_tick_seconds": 0.2,
    "settle_seconds": 0.2,
    "stacks_seconds": 0.5,
    "policy": {"hysteresis_seconds": 0.0},
}
# Saves every step; each step lasts a while, so that tests have time to break things.
TRAINER = """
import os, sys, time
import numpy, sdrs

job = sdrs.current_job()
ckpts = job.checkpoints()
state = {"step": 0, "w": numpy.zeros(int(os.environ.get("COUNT", "1000")))}
if job.resume_step is not None:
    state = ckpts.restore()
    assert state["step"] == job.resume_step, (state["step"], job.resume_step)
print("begins after", state["step"], flush=True)
goal = int(os.environ.get("GOAL", "1000000"))
while state["step"] < goal:
    state["step"] += 1
    state["w"] = state["w"] + state["step"]
    job.report(step=state["step"])
    ckpts.save(state["step"], state).wait()
    if job.preempted:
        job.leave()
    time.sleep(float(os.environ.get("PAUSE", "0.2")))
print("sum", state["w"][0], flush=True)
"""


@dataclass
class SchedulerProcess:
    folder: Path
    url: str
    settings: dict[str, Any] = field(default_factory=dict)
    name: str = "scheduler"
    process: subprocess.Popen[bytes] | None = None

    @property
    def data_dir(self) -> Path:
        return self.folder / self.name

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self, *, wait: bool = True, **environment: str) -> None:
        settings = {"url": self.url, "data_dir": str(self.data_dir), "settle_seconds": 2.0, **self.settings}
        config = self.folder / f"{self.name}.toml"
        config.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in settings.items()))
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sdrs_scheduler", "--config", str(config)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
        if wait:
            wait_for(self._is_ready, f"the scheduler to be ready; its log is {self.log_path}", PATIENCE_SECONDS)

    def _is_ready(self) -> bool:
        assert self.process
        if self.process.poll() is not None:
            raise AssertionError(f"the scheduler exited:\n{self.log_path.read_text()[-3000:]}")
        try:
            return bool(json.loads((self.data_dir / "run.json").read_text())["pid"] == self.process.pid)
        except FileNotFoundError:
            return False

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def wait_for_death(self) -> int:
        assert self.process
        return self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        assert self.process
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + "}"
    return json.dumps(value)


class Jobs:
    """What tests do with jobs and see of them."""

    def __init__(self, cluster: sdrs.Cluster, folder: Path, scheduler: SchedulerProcess) -> None:
        self.cluster = cluster
        self.ledger = Ledger(cluster.records)
        self.folder = folder
        self.scheduler = scheduler

    def submit(self, name: str, code: str, **fields: Any) -> str:
        """A job that runs this Python."""
        program = self.folder / f"{name}.py"
        program.write_text(code)
        return self.submit_command(name, sys.executable, str(program), **fields)

    def submit_command(self, name: str, *command: str, **fields: Any) -> str:
        given: dict[str, Any] = {
            "resources": Resources(1, 1),
            "retry": Retry(backoff=Backoff(0.2, 1.0)),
            "workdir": str(self.folder),
            **fields,
        }
        now_unix_ms = time.time_ns() // 1_000_000
        return self.ledger.submit(JobSpec(name, command, **given), "ann", now_unix_ms=now_unix_ms).id

    def job(self, job_id: str) -> Job:
        return self.ledger.job(job_id).value

    def attempts(self, job_id: str) -> list[Attempt]:
        return [stored.value for stored in self.ledger.attempts(job_id)]

    def reach(self, job_id: str, *states: JobState, attempt: int = 0) -> Job:
        def there() -> bool:
            job = self.job(job_id)
            return job.state in states and job.attempt >= attempt

        wait_for(there, f"{job_id} to be {states}: {self.told(job_id)}", PATIENCE_SECONDS)
        return self.job(job_id)

    def end_all(self) -> None:
        """Whoever is still there would be in the way of the next test."""
        left = [stored.value.id for stored in self.ledger.jobs() if not stored.value.state.is_over]
        for job_id in left:
            with suppress(RefusedError):  # it has just ended by itself
                self.ledger.wish(job_id, Wish.CANCEL, "the test is over")
        for job_id in left:
            self.reach(job_id, JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED)

    def told(self, job_id: str) -> str:
        return f"see {self.scheduler.log_path}"

    def log(self, job_id: str, attempt: int = 0) -> str:
        """What its processes said in this attempt; without a number, in the newest."""
        number = attempt or self.job(job_id).attempt
        return "".join(Path(name).read_text() for name in self.attempts(job_id)[number - 1].log_files)

    def saved(self, history: str, step: int) -> None:
        """A generation of at least this step is committed."""

        def there() -> bool:
            newest = self.cluster.checkpoints(history).latest()
            return newest is not None and newest.step >= step

        wait_for(there, f"{history} to have step {step}; see {self.scheduler.log_path}", PATIENCE_SECONDS)

    def pids(self, job_id: str) -> list[int]:
        """The processes of its command, wherever they hang."""
        program = str(self.folder / f"{self.job(job_id).spec.name}.py").encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if program in _words(path)]

    def running_pid(self, job_id: str) -> int:
        return wait_for(lambda: self.pids(job_id), f"a process of {job_id}", PATIENCE_SECONDS)[0]


def _words(cmdline: Path) -> list[bytes]:
    try:
        return cmdline.read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


@contextmanager
def scheduled(cluster: LocalCluster, folder: Path, **settings: Any) -> Iterator[Jobs]:
    """A scheduler over ``cluster``; whatever it started is ended with it."""
    scheduler = SchedulerProcess(folder, cluster.url, settings)
    scheduler.start()
    try:
        with cluster.connect() as connection:
            yield Jobs(connection, folder, scheduler)
    finally:
        # In good order: the next one need not wait until its lease is over.
        if scheduler.process and scheduler.process.poll() is None:
            scheduler.stop()
        _end_runs(scheduler.data_dir)


def _end_runs(data_dir: Path) -> None:
    """Shepherds and what they keep: their run's folder is on their command lines."""
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(map(str, process.info["cmdline"] or ()))
        if str(data_dir) in words and "shepherd" in words:
            for child in [*process.children(recursive=True), process]:
                try:
                    child.kill()
                except psutil.NoSuchProcess:
                    continue
