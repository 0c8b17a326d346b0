"""A job and its cluster: beats arrive, orders are heard, ranks save one step, a resume goes on where it was told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import sdrs
from sdrs import errors
from tests.support.cluster import LocalCluster
from tests.support.jobs import enter_job
from tests.support.states import make_state, same
from tests.support.waiting import wait_for


@pytest.fixture
def job(shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """This process as the first attempt of a job that is called as the test is."""
    enter_job(monkeypatch, shared_cluster.url, request.node.name[:60].replace("_", "-"), 1)
    made = sdrs.current_job()
    assert made
    yield made
    for left in {made, sdrs.current_job()}:
        left.close()
        left.cluster.close()


def beat_of(cluster: sdrs.Cluster, job_id: str, attempt: int = 1, rank: int = 0) -> dict[str, Any]:
    (note,) = cluster.records.notes(f"beat/{job_id}/{attempt}/{rank}") or [None]
    return dict(json.loads(note.value)) if note else {}


def test_beats_tell_of_steps_and_saves(job: sdrs.CurrentJob, shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        job.report(step=4, loss=0.5)
        wait_for(lambda: beat_of(cluster, job.id).get("step") == 4, "the beat of step 4", 60)
        job.checkpoints().save(9, make_state(1)).wait()
        told = wait_for(lambda: beat_of(cluster, job.id).get("step") == 9 and beat_of(cluster, job.id), "step 9", 60)
        assert (told["loss"], told["rank"], told["pid"]) == (0.5, 0, os.getpid())
        job.report_nan(11)
        wait_for(lambda: beat_of(cluster, job.id)["nan_step"] == 11, "the step that diverged", 60)
        job.close()
        assert beat_of(cluster, job.id)["event"] == "ended"


def test_saves_belong_to_the_attempt_that_the_scheduler_counts(
    job: sdrs.CurrentJob, shared_cluster: LocalCluster
) -> None:
    job.checkpoints().save(1, make_state(1)).wait()
    with shared_cluster.connect() as cluster:
        # What comes back from a start that was replaced is refused.
        cluster.checkpoints(job.history, attempt=f"job:{job.id}:2").save(2, make_state(2)).wait()
    with pytest.raises(errors.StaleAttemptError):
        job.checkpoints(raise_errors=True).save(3, make_state(3)).wait()


def test_orders_are_a_warning(job: sdrs.CurrentJob, shared_cluster: LocalCluster) -> None:
    ckpts = job.checkpoints()
    assert not ckpts.should_save(1)
    with shared_cluster.connect() as cluster:
        cluster.records.post(f"orders/{job.id}/1", json.dumps({"save": True, "deadline_unix_ms": 7}).encode())
    wait_for(lambda: job.warned, "the orders to be heard", 60)
    assert ckpts.should_save(2)
    assert job.preempted
    assert not ckpts.should_save(3)


def restart(monkeypatch: pytest.MonkeyPatch, job: sdrs.CurrentJob, attempt: int, resume_step: int) -> sdrs.CurrentJob:
    job.close()
    enter_job(monkeypatch, job.cluster.url, job.name, attempt, resume_step)
    again = sdrs.current_job()
    assert again
    return again


def test_a_restart_goes_on_from_its_resume_step_and_sets_aside_what_is_later(
    job: sdrs.CurrentJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.NotFoundError):
        job.checkpoints().restore()
    for step in (10, 20, 30):
        job.checkpoints().save(step, make_state(step)).wait()
    again = restart(monkeypatch, job, 2, 20)
    assert again.resume_step == 20
    ckpts = again.checkpoints()
    assert same(ckpts.restore(resume=False), make_state(30))  # this only reads
    assert same(ckpts.restore(), make_state(20))
    latest = ckpts.latest()
    assert latest
    assert latest.step == 20
    ckpts.save(21, make_state(21)).wait()
    assert [save.step for save in ckpts.list()] == [21, 20, 10]


def test_a_resume_step_that_is_gone_leads_to_the_one_before(
    job: sdrs.CurrentJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        job.checkpoints().save(step, make_state(step)).wait()
    job.checkpoints().delete(20)
    again = restart(monkeypatch, job, 2, 20)
    assert same(again.checkpoints().restore(), make_state(10))


RANK = """
import os, sys, time, sdrs
job = sdrs.current_job()
ckpts = job.checkpoints()
pace = float(sys.argv[1])
for step in range(1, 100_000):
    job.report(step=step)
    if ckpts.should_save(step):
        ckpts.save(step, {"step": step}, rank=job.rank, world_size=job.world_size)
        print(f"saved {step}", flush=True)
        if job.preempted:
            job.leave()
    if step == 5:
        print("ready", flush=True)
    time.sleep(pace)
"""


def test_ranks_of_different_paces_save_one_step_after_one_of_them_was_warned(shared_cluster: LocalCluster) -> None:
    environment = {**os.environ, "SDRS_URL": shared_cluster.url, "SDRS_JOB_ID": "ranks-ab12", "SDRS_JOB_NAME": "ranks"}
    environment |= {"SDRS_ATTEMPT": "1", "WORLD_SIZE": "3"}
    ranks = []
    try:
        for rank, pace in enumerate((0.02, 0.03, 0.04)):
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(pace)],
                    env=environment | {"RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for process in ranks:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        ranks[2].send_signal(signal.SIGUSR1)
        said = [process.communicate(timeout=100) for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert [process.returncode for process in ranks] == [75, 75, 75], said
    steps = {line for out, _ in said for line in out.splitlines()}
    assert len(steps) == 1, said
    with shared_cluster.connect() as cluster:
        latest = cluster.checkpoints("ranks").latest()
        assert latest
        assert f"saved {latest.step}" in steps
        assert latest.world_size == 3
        events = [json.loads(note.value)["event"] for note in cluster.records.notes("beat/ranks-ab12/1/")]
        assert events == ["leaving"] * 3


def test_forks_and_beats_do_not_disturb_each_other(job: sdrs.CurrentJob, shared_cluster: LocalCluster) -> None:
    over = threading.Event()

    def wake() -> None:
        while not over.is_set():
            job.rank_state.wakes.put(None)
            over.wait(0.002)

    waker = threading.Thread(target=wake)
    waker.start()
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                os._exit(0 if job.cluster.info() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        over.set()
        waker.join()
    job.report(step=77)
    with shared_cluster.connect() as cluster:
        wait_for(lambda: beat_of(cluster, job.id).get("step") == 77, "beats to go on", 60)
