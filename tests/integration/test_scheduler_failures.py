"""Real jobs that fail as jobs do, over a real scheduler: what it takes their end for, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sdrs_scheduler.jobs.job import JobState, Verdict, Wish
from sdrs_scheduler.jobs.spec import Action, Backoff, FailureClass, FailurePolicy, HangWatch, Resources, Retry
from tests.support.cluster import LocalCluster
from tests.support.program import Program
from tests.support.scheduler_process import IMPATIENT, Jobs, scheduled
from tests.support.waiting import wait_for

QUICK = Backoff(0.1, 0.2)
ONCE = Retry(max=0, backoff=QUICK)

OVER_ITS_LIMIT = "import time; taken = b'x' * (300 << 20); time.sleep(600)"
OUT_OF_GPU_MEMORY = "raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')"
# The thread that beats goes on; the training does not. The next start gets through.
STUCK = """
import os, time, sdrs
job = sdrs.current_job()
job.report(step=1)
def waits_for_godot():
    time.sleep(600)
if job.attempt == 1:
    waits_for_godot()
"""
CRASHES = "import sys; sys.exit(1)"
# A new checkpoint before each crash, until there are four.
CREEPS = """
import sys, sdrs
job = sdrs.current_job()
step = (job.resume_step or 0) + 1
job.checkpoints().save(step, {"step": step}).wait()
sys.exit(0 if step == 4 else 1)
"""
BLAMES_ITS_NODE = """
import os, sys
if os.environ["SDRS_ATTEMPT"] == "1":
    sys.exit("NCCL error: link of mlx5_0 is flapping")
print("ran on", os.environ["SDRS_NODE"])
"""
DIVERGES = """
import time, sdrs
job = sdrs.current_job()
ckpts = job.checkpoints()
step = job.resume_step or 0
while step < 3:
    step += 1
    ckpts.save(step, {"step": step}).wait()
if job.attempt == 1:
    job.report(step=4, loss=float("nan"))
    time.sleep(600)
"""
BREAKS_A_GPU = """
import os, sys
if os.environ["SDRS_ATTEMPT"] == "1":
    sys.exit("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus")
"""
FAILS_FIRST = "import os, sys; sys.exit(93 if os.environ['SDRS_ATTEMPT'] == '1' else 0)"


@pytest.fixture(scope="module")
def all_jobs(shared_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    # One broken GPU is enough.
    settings = {**IMPATIENT, "strikes": {"limit": 1.5}}
    with scheduled(shared_cluster, tmp_path_factory.mktemp("scheduler"), **settings) as jobs:
        yield jobs


@pytest.fixture
def jobs(all_jobs: Jobs) -> Iterator[Jobs]:
    yield all_jobs
    all_jobs.end_all()


def verdicts(jobs: Jobs, job_id: str) -> list[Verdict]:
    return [attempt.verdict for attempt in jobs.attempts(job_id) if attempt.verdict]


def test_a_job_out_of_memory_is_told_by_its_limit_or_by_its_log(jobs: Jobs) -> None:
    limited = Resources(memory_bytes_per_node=200 << 20)
    by_limit = jobs.submit("greedy", OVER_ITS_LIMIT, resources=limited, retry=ONCE)
    by_log = jobs.submit("greedy-gpu", OUT_OF_GPU_MEMORY, retry=ONCE)
    for job_id, words in ((by_limit, "memory limit"), (by_log, "CUDA out of memory")):
        job = jobs.reach(job_id, JobState.FAILED)
        (verdict,) = verdicts(jobs, job_id)
        assert verdict.failure is FailureClass.OUT_OF_MEMORY
        assert words in job.why


def test_a_job_that_beats_but_gets_no_further_hangs_and_is_restarted(jobs: Jobs) -> None:
    job_id = jobs.submit("stuck", STUCK, hang=HangWatch(heartbeat_seconds=60, progress_seconds=2))
    assert jobs.reach(job_id, JobState.SUCCEEDED).attempt == 2
    first = verdicts(jobs, job_id)[0]
    assert first.failure is FailureClass.HANG
    assert "at step 1" in first.sentence
    assert "waits_for_godot" in jobs.log(job_id, attempt=1)


def test_crash_loops_end_and_say_what_was_spent_and_progress_earns_new_retries(jobs: Jobs) -> None:
    spent = jobs.submit("spent", CRASHES, retry=Retry(max=2, no_progress_limit=0, backoff=QUICK))
    idle = jobs.submit("idle", CRASHES, retry=Retry(max=9, no_progress_limit=2, backoff=QUICK))
    creeps = jobs.submit("creeps", CREEPS, retry=Retry(max=1, backoff=QUICK))
    job = jobs.reach(spent, JobState.FAILED)
    assert (job.attempt, job.spent) == (3, {FailureClass.CRASH: 3})
    assert "its 2 retries are spent" in job.why
    job = jobs.reach(idle, JobState.FAILED)
    assert job.attempt == 2
    assert "no_progress_limit" in job.why
    assert jobs.reach(creeps, JobState.SUCCEEDED).attempt == 4
    assert [attempt.resume_step for attempt in jobs.attempts(creeps)] == [None, 1, 2, 3]


def test_a_jobs_own_policies_send_it_elsewhere_or_end_it(jobs: Jobs) -> None:
    flapping = FailurePolicy("flapping", Action.EXCLUDE_NODE, match="mlx5_.* is flapping")
    moves = jobs.submit("moves", BLAMES_ITS_NODE, failure_policies=(flapping,))
    hopeless = FailurePolicy("hopeless", Action.FAIL, exit_codes=(1,))
    ends = jobs.submit("ends", CRASHES, failure_policies=(hopeless,))
    assert jobs.reach(moves, JobState.SUCCEEDED).attempt == 2
    first, second = jobs.attempts(moves)
    assert second.slots[0].node != first.slots[0].node
    assert f"ran on {second.slots[0].node}" in jobs.log(moves)
    job = jobs.reach(ends, JobState.FAILED)
    assert (job.attempt, job.spent) == (1, {})
    assert 'policy "hopeless" says fail' in job.why


def test_a_loss_that_is_no_number_goes_back_one_generation_more(jobs: Jobs) -> None:
    job_id = jobs.submit("diverges", DIVERGES)
    assert jobs.reach(job_id, JobState.SUCCEEDED).attempt == 2
    first, second = jobs.attempts(job_id)
    assert first.verdict is not None
    assert first.verdict.failure is FailureClass.NOT_A_NUMBER
    assert second.resume_step == 2
    assert "step 3 is passed over" in second.resume_note


def test_what_depends_on_a_failed_job_waits_says_so_and_runs_when_that_was_mended(jobs: Jobs) -> None:
    first = jobs.submit("prepares", "")
    second = jobs.submit("trains", FAILS_FIRST, depends_on=("prepares",))
    third = jobs.submit("reports", "", depends_on=("trains",))
    jobs.reach(second, JobState.FAILED)
    wait_for(lambda: "trains (failed: requeue it" in jobs.job(third).why, "why the third one waits", 60)
    assert jobs.job(third).state is JobState.QUEUED
    jobs.ledger.wish(second, Wish.REQUEUE, "ann")
    jobs.reach(third, JobState.SUCCEEDED)
    ended = [jobs.job(job_id).ended_unix_ms for job_id in (first, second, third)]
    assert ended == sorted(ended)
    started = [jobs.attempts(job_id)[0].started_unix_ms for job_id in (second, third)]
    assert started[0] >= ended[0]
    assert started[1] >= ended[1]


def test_a_node_with_too_many_strikes_is_cordoned_and_says_why_until_somebody_opens_it(
    jobs: Jobs, shared_cluster: LocalCluster
) -> None:
    program = Program(shared_cluster.url)
    job_id = jobs.submit("burnt", BREAKS_A_GPU)
    assert jobs.reach(job_id, JobState.SUCCEEDED).attempt == 2
    first, second = jobs.attempts(job_id)
    assert first.verdict is not None
    assert first.verdict.failure is FailureClass.GPU
    node = first.slots[0].node
    assert second.slots[0].node != node
    wait_for(lambda: program.json("node", "show", node)["cordoned"], "the cordon at the storage", 60)
    for verb in (("show", node), ("list",)):
        told = " ".join(program.run("node", *verb).split())
        assert "scheduler: 1 failure within 24 h (1× gpu)" in told
        assert "NVRM: Xid" in told
    both = jobs.submit("both", "", resources=Resources(nodes=2))
    wait_for(lambda: f"Closed: {node} (cordoned: 1 failure" in jobs.job(both).why, "why it waits", 60)
    program.run("node", "uncordon", node)
    jobs.reach(both, JobState.SUCCEEDED)
