"""``sdrs job`` against a real control plane, with records only: what it prints, its JSON and its exit codes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sdrs import Cluster
from sdrs.records import Records
from sdrs_scheduler import keys
from sdrs_scheduler.entries import NodeRecord, Strike
from sdrs_scheduler.jobs.job import Attempt, JobId, JobState, Slot, Verdict, Wish
from sdrs_scheduler.jobs.spec import Action, FailureClass
from tests.support.cluster import LocalCluster
from tests.support.job_program import JobProgram, StandInScheduler

JOB = "name: {name}\ncommand: python train.py\n"
PROMISED_FIELDS = {"id", "name", "state", "queue", "priority", "user", "why", "attempt", "submitted", "gpus", "slots"}


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def program(shared_cluster: LocalCluster) -> JobProgram:
    return JobProgram(shared_cluster.url)


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[Cluster]:
    with shared_cluster.connect() as cluster:
        yield cluster


@pytest.fixture
def scheduler(cluster: Cluster) -> StandInScheduler:
    return StandInScheduler(cluster)


def test_a_job_is_submitted_listed_shown_and_found_by_name(program: JobProgram, tmp_path: Path) -> None:
    made = program.submit(tmp_path, JOB.format(name="first") + "resources: {nodes: 2, gpus_per_node: 8}\n")
    assert made.keys() >= PROMISED_FIELDS
    assert (made["name"], made["state"], made["gpus"], made["queue"]) == ("first", "submitted", 16, "default")
    assert made["id"].startswith("first-")
    listed = {job["id"]: job for job in program.json("job", "list")}
    assert listed[made["id"]] == made
    assert "submitted by" in program.run("job", "list")
    for word in ("first", made["id"]):
        shown = program.json("job", "show", word)
        assert (shown["id"], shown["spec"]["command"], shown["attempts"]) == (made["id"], "python train.py", [])
        assert shown["spec"]["workdir"] == str(Path.cwd())
    told = program.run("job", "show", "first")
    assert "2 nodes × 8 GPUs" in told
    assert "none yet: it starts from the beginning" in told
    assert program.json("job", "attempts", "first") == []


def test_without_a_scheduler_it_is_said(program: JobProgram, scheduler: StandInScheduler, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(name="lonely"))
    scheduler.renew_lease(0)
    result = program.result("job", "submit", str(file))
    assert result.exit_code == 0
    assert "no scheduler is running" in result.stderr
    assert "`sdrs up`" in result.stderr
    assert "No scheduler is running" in program.run("job", "why", "lonely")
    scheduler.renew_lease(now_ms())
    assert program.result("job", "hold", "lonely").stderr == ""
    assert "scheduler" not in program.run("job", "why", "lonely")
    scheduler.renew_lease(0)


def test_options_go_before_the_file_and_a_held_job_waits_for_its_release(program: JobProgram, tmp_path: Path) -> None:
    program.run("queue", "create", "urgent")
    made = program.submit(
        tmp_path, JOB.format(name="held") + "priority: 3\n", "--hold", "--queue", "urgent", "--priority", "90"
    )
    assert (made["state"], made["queue"], made["priority"]) == ("held", "urgent", 90)
    assert "sdrs job release" in program.run("job", "why", "held")
    assert program.json("job", "release", "held")["wish"] == "release"


def test_jobs_of_one_file_wait_for_each_other_in_any_order(program: JobProgram, tmp_path: Path) -> None:
    file = tmp_path / "dag.yaml"
    file.write_text(
        "name: dag-train\ncommand: x\ndepends_on: [dag-prep]\n---\nname: dag-prep\ncommand: x\n---\n"
        "name: dag-eval\ncommand: x\ndepends_on: [dag-train, dag-prep]\n"
    )
    train, prep, evaluation = program.json("job", "submit", str(file))
    assert [train["name"], prep["name"], evaluation["name"]] == ["dag-train", "dag-prep", "dag-eval"]
    assert train["depends_on"] == [prep["id"]]
    assert evaluation["depends_on"] == [train["id"], prep["id"]]


@pytest.mark.parametrize(
    ("more", "code", "told"),
    [
        ("depends_on:\n  - nobody\n", 2, 'job.yaml:4: depends_on[0]: there is no job "nobody"'),
        (
            "queue: nowhere\n",
            2,
            'job.yaml:3: queue: "nowhere" does not exist: make it with `sdrs queue create nowhere`',
        ),
        ("checkpoint:\n  pool: nowhere\n", 2, 'job.yaml:4: checkpoint.pool: "nowhere" does not exist'),
        ("checkpoint: {pool: default, level: L3}\n", 2, "job.yaml:3: checkpoint.level: L3 is more than pool default"),
        ("priority: high\n", 2, 'job.yaml:3: priority: "high" is not a whole number: give 0 to 100'),
    ],
)
def test_what_cannot_be_submitted_is_told_with_its_line(
    program: JobProgram, tmp_path: Path, more: str, code: int, told: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(name="never") + more)
    assert told in program.run("job", "submit", str(file), expect=code)
    assert told in program.json("job", "submit", str(file), expect=code)["error"]["message"]
    assert "never" not in {job["name"] for job in program.json("job", "list", "--all")}


def test_a_queue_that_is_gone_is_told_where_it_was_named(program: JobProgram, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(name="placed"))
    assert "Invalid value for --queue" in program.run("job", "submit", str(file), "--queue", "gone", expect=2)
    program.run("queue", "create", "gone")
    made = program.json("job", "submit", str(file), "--queue", "gone")[0]
    program.run("job", "cancel", made["id"])
    assert made["id"] in program.run("queue", "delete", "gone", "--yes", expect=4)


def test_a_history_in_use_is_refused_and_told_by_whom(program: JobProgram, tmp_path: Path) -> None:
    holder = program.submit(tmp_path, JOB.format(name="holder"))
    file = tmp_path / "second.yaml"
    file.write_text(JOB.format(name="second") + "checkpoint:\n  history: holder\n")
    told = program.run("job", "submit", str(file), expect=4)
    assert "second.yaml:4: checkpoint.history" in told
    assert holder["id"] in told
    assert holder["id"] in program.run("job", "clone", "holder", expect=4)


def test_a_dependency_that_has_failed_is_refused(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    broken = program.submit(tmp_path, JOB.format(name="broken"))
    scheduler.change(broken["id"], now_ms(), "it crashed", state=JobState.FAILED)
    file = tmp_path / "next.yaml"
    file.write_text(JOB.format(name="next") + "depends_on: [broken]\n")
    assert f"job {broken['id']} is failed" in program.run("job", "submit", str(file), expect=4)


def test_a_history_with_checkpoints_is_continued_and_said(
    program: JobProgram, cluster: Cluster, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    cluster.checkpoints("old").save(40, {"w": np.zeros(10)}).wait(timeout=60)
    file = tmp_path / "old.yaml"
    file.write_text(JOB.format(name="old"))
    assert "newest checkpoint is step 40" in program.run("job", "submit", str(file))
    assert program.json("job", "show", "old")["resume_point"]["step"] == 40
    assert "step 40, L1" in program.run("job", "show", "old")


def test_wishes_are_on_record_with_who_and_why(
    program: JobProgram, tmp_path: Path, scheduler: StandInScheduler
) -> None:
    made = program.submit(tmp_path, JOB.format(name="wished"))
    asked = program.json("job", "hold", "wished", "--reason", "wrong data")
    assert (asked["wish"], asked["wish_note"].endswith(": wrong data")) == ("hold", True)
    assert "wrong data" in program.run("job", "why", "wished")
    assert "hold asked" in program.run("job", "list")
    assert "it does not run" in program.run("job", "preempt", "wished", expect=4)
    assert "it waits already" in program.run("job", "requeue", "wished", expect=4)
    slots = (Slot("node-1", (0, 1, 2, 5)),)
    scheduler.change(made["id"], now_ms(), "started", state=JobState.RUNNING, slots=slots, wish=Wish.NONE, attempt=1)
    assert program.json("job", "preempt", "wished")["wish"] == "preempt"
    assert program.json("job", "requeue", "wished")["wish"] == "requeue"
    # No terminal, nobody to ask: what is saved stays.
    assert program.json("job", "cancel", made["id"])["wish"] == "cancel"
    over = {"state": JobState.CANCELLED, "wish": Wish.NONE, "ended_unix_ms": now_ms()}
    scheduler.change(made["id"], now_ms(), "cancelled", **over)
    assert "cancelled already" in program.run("job", "cancel", "wished", expect=4)
    assert listed(program, "--state", "cancelled") == {"wished"}
    # Whoever polls the list sees how it ended, for a day.
    assert "wished" in listed(program)
    assert "wished" not in listed(program, "--active")
    two_days_ago = now_ms() - 2 * 24 * 3600 * 1000
    scheduler.change(made["id"], now_ms(), "cancelled", ended_unix_ms=two_days_ago)
    assert "wished" not in listed(program)
    assert "wished" in listed(program, "--all") & listed(program, "--state", "cancelled")
    assert "not both" in program.run("job", "list", "--all", "--active", expect=2)


def listed(program: JobProgram, *options: str) -> set[str]:
    return {job["name"] for job in program.json("job", "list", *options)}


def test_a_priority_is_changed_live(program: JobProgram, tmp_path: Path) -> None:
    made = program.submit(tmp_path, JOB.format(name="raised"))
    assert program.json("job", "set", made["id"], "--priority", "77")["priority"] == 77
    assert "50 → 77" in program.run("job", "why", "raised")
    assert "0<=x<=100" in program.run("job", "set", "raised", "--priority", "101", expect=2)


def test_a_name_that_two_jobs_have_is_refused_with_their_ids(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    one = program.submit(tmp_path, JOB.format(name="twin"))
    other = program.submit(tmp_path, JOB.format(name="twin") + "checkpoint: {history: twin-2}\n")
    told = program.run("job", "show", "twin", expect=2)
    assert one["id"] in told
    assert other["id"] in told
    scheduler.change(other["id"], now_ms(), "done", state=JobState.SUCCEEDED)
    assert program.json("job", "show", "twin")["id"] == one["id"]
    scheduler.change(one["id"], now_ms(), "done", state=JobState.SUCCEEDED)
    assert program.json("job", "show", "twin")["id"] == other["id"]
    assert "neither by id nor by name" in program.run("job", "show", "nobody", expect=1)


def test_a_clone_is_the_same_job_again_and_with_a_name_it_starts_afresh(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    made = program.submit(tmp_path, JOB.format(name="origin") + "priority: 7\n")
    other = program.json("job", "clone", "origin", "--name", "origin-2")
    assert (other["name"], other["priority"], other["history"]) == ("origin-2", 7, "origin-2")
    scheduler.change(made["id"], now_ms(), "done", state=JobState.SUCCEEDED)
    again = program.json("job", "clone", made["id"])
    assert (again["name"], again["history"], again["id"] != made["id"]) == ("origin", "origin", True)
    assert f"cloned from {made['id']}" in program.run("job", "why", again["id"])


def test_a_failed_job_tells_what_happened_and_what_was_decided(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    made = program.submit(tmp_path, JOB.format(name="crashed"))
    verdict = Verdict(FailureClass.CRASH, "rank 0 on node-1 exited with 1", Action.RESTART, charged=True)
    attempts = [
        Attempt(
            JobId(made["id"]),
            number,
            (Slot("node-1", (0,)),),
            "local",
            resume_step=None if number == 1 else 10,
            started_unix_ms=now_ms() - 60_000,
            ended_unix_ms=now_ms() - 30_000,
            last_step=15,
            exit_codes={"node-1": 1},
            verdict=verdict,
        )
        for number in (1, 2)
    ]
    scheduler.put_attempts(made["id"], attempts)
    scheduler.change(
        made["id"],
        now_ms(),
        "rank 0 on node-1 exited with 1, and no retry is left",
        state=JobState.FAILED,
        attempt=2,
        spent={FailureClass.CRASH: 2},
        ended_unix_ms=now_ms(),
    )
    told = program.run("job", "why", "crashed")
    assert f"{made['id']} failed 0s ago after 2 attempts: rank 0 on node-1 exited with 1, and no retry" in told
    assert "submitted by" in told
    rows = program.json("job", "attempts", "crashed")
    assert [(row["attempt"], row["state"], row["failure"], row["charged"]) for row in rows] == [
        (1, "ended", "crash", True),
        (2, "ended", "crash", True),
    ]
    assert rows[1]["exit_codes"] == {"node-1": 1}
    shown = program.run("job", "show", "crashed")
    assert "2 (2 × crash)" in shown
    assert "1 of 3 left" in shown
    assert program.result("job", "show", "crashed", "-w").exit_code == 1


def test_a_running_job_tells_where_and_since_when(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    made = program.submit(tmp_path, JOB.format(name="busy"))
    slots = (Slot("node-1", (0, 1, 2, 5)), Slot("node-2", (7,)))
    started = now_ms() - 125_000
    attempt = Attempt(
        JobId(made["id"]), 1, slots, "local", started_unix_ms=started, running_unix_ms=started, last_step=9
    )
    scheduler.put_attempts(made["id"], [attempt])
    scheduler.change(made["id"], now_ms(), "started on 2 nodes", state=JobState.RUNNING, slots=slots, attempt=1)
    told = program.run("job", "why", "busy")
    assert "runs on node-1,node-2 since" in told
    assert "as attempt 1 from the beginning, at step 9" in told
    assert "node-1: GPU 0-2, 5; node-2: GPU 7" in program.run("job", "show", "busy")


def test_waiting_for_a_job_tells_each_state_and_ends_with_it(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(name="followed"))

    def run_it() -> None:
        while True:
            made = [stored.value for stored in scheduler.ledger.jobs() if stored.value.spec.name == "followed"]
            if made:
                break
            time.sleep(0.05)
        scheduler.change(made[0].id, now_ms(), "it is its turn", state=JobState.RUNNING)
        scheduler.change(made[0].id, now_ms(), "it has ended by itself", state=JobState.SUCCEEDED)

    thread = threading.Thread(target=run_it)
    thread.start()
    result = program.result("job", "submit", str(file), "-w")
    thread.join()
    assert result.exit_code == 0, result.output
    assert "succeeded: it has ended by itself" in result.stdout
    assert program.json("job", "show", "followed", "-w")["state"] == "succeeded"


def test_one_that_was_asked_to_start_again_is_waited_for(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = program.submit(tmp_path, JOB.format(name="second-chance"))
    scheduler.change(made["id"], now_ms(), "it crashed", state=JobState.FAILED)
    assert program.json("job", "requeue", made["id"])["state"] == "failed"

    wait = Records.wait

    def run_it_and_wait(records: Records, prefix: str, after_revision: int, timeout_seconds: float) -> int:
        if scheduler.ledger.job(made["id"]).value.state is JobState.FAILED:
            scheduler.change(made["id"], now_ms(), "done", state=JobState.SUCCEEDED, wish=Wish.NONE)
        return wait(records, prefix, after_revision, timeout_seconds)

    monkeypatch.setattr(Records, "wait", run_it_and_wait)
    assert program.json("job", "show", made["id"], "-w")["state"] == "succeeded"


def test_logs_are_read_where_they_lie(program: JobProgram, scheduler: StandInScheduler, tmp_path: Path) -> None:
    made = program.submit(tmp_path, JOB.format(name="logged"))
    assert "has no attempt yet" in program.run("job", "logs", "logged", expect=1)
    files = [tmp_path / "node-1.log", tmp_path / "node-2.log"]
    files[0].write_text("three\nfour\n")
    (tmp_path / "node-1.log.1").write_text("one\ntwo\n")
    files[1].write_text("other")
    attempt = Attempt(JobId(made["id"]), 1, (), "local", log_files=tuple(map(str, files)), ended_unix_ms=1)
    gone = Attempt(JobId(made["id"]), 2, (Slot("far", ()),), "local", log_files=("/nowhere/far.log",), ended_unix_ms=1)
    scheduler.put_attempts(made["id"], [attempt, gone])
    scheduler.change(made["id"], now_ms(), "done", state=JobState.SUCCEEDED, attempt=2)
    assert program.run("job", "logs", "logged", "--attempt", "1").splitlines() == [
        *(f"node-1 | {word}" for word in ("one", "two", "three", "four")),
        "node-2 | other",
    ]
    assert (
        program.run("job", "logs", "logged", "--attempt", "1", "--node", "node-1", "--tail", "3")
        == "two\nthree\nfour\n"
    )
    followed = program.run("job", "logs", "logged", "--attempt", "1", "-f", "--tail", "1")
    assert sorted(followed.splitlines()) == ["node-1 | four", "node-2 | other"]
    told = program.run("job", "logs", "logged", expect=1)
    assert "/nowhere/far.log" in told
    assert "far" in told
    assert "it ran on node-1, node-2" in program.run("job", "logs", "logged", "--attempt", "1", "--node", "x", expect=1)
    record = program.json("job", "logs", "logged", "--attempt", "1", "--tail", "1")
    assert [one["lines"] for one in record["files"]] == [["four"], ["other"]]


def test_logs_are_followed_from_attempt_to_attempt(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    made = program.submit(tmp_path, JOB.format(name="trailed"))
    logs = [tmp_path / str(number) / "node-1.log" for number in (1, 2)]
    for path in logs:
        path.parent.mkdir()
    logs[0].write_text("before\n")
    attempt = Attempt(JobId(made["id"]), 1, (), "local", log_files=(str(logs[0]),))

    def run_it() -> None:
        scheduler.put_attempts(made["id"], [attempt])
        scheduler.change(made["id"], now_ms(), "runs", state=JobState.RUNNING, attempt=1)
        with open(logs[0], "a") as file:
            for number in range(20):
                print(f"line {number}", file=file, flush=True)
                time.sleep(0.05)
        scheduler.put_attempts(made["id"], [replace(attempt, ended_unix_ms=now_ms())])
        logs[1].write_text("again\n")
        second = replace(attempt, number=2, log_files=(str(logs[1]),), ended_unix_ms=now_ms())
        scheduler.put_attempts(made["id"], [second])
        scheduler.change(made["id"], now_ms(), "done", state=JobState.SUCCEEDED, attempt=2)

    thread = threading.Thread(target=run_it)
    thread.start()
    told = program.run("job", "logs", "trailed", "-f")
    thread.join()
    expected = ["before", *(f"line {number}" for number in range(20)), "--- attempt 2", "again"]
    assert told.splitlines() == expected
    assert "leave one of both out" in program.run("job", "logs", "trailed", "-f", "-o", "json", expect=2)


def test_queues_are_made_changed_shown_and_deleted(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    made = program.json("queue", "create", "research", "--gpus", "16", "--max-gpus", "32")
    assert (made["id"], made["state"], made["gpus"], made["max_gpus"], made["weight"]) == (
        "research",
        "open",
        16,
        32,
        1,
    )
    assert program.json("queue", "create", "research", expect=1)["error"]["reason"] == "ALREADY_EXISTS"
    changed = program.json("queue", "set", "research", "--max-gpus", "none", "--weight", "2.5", "--no-reclaims")
    assert (changed["gpus"], changed["max_gpus"], changed["weight"], changed["reclaims"]) == (16, None, 2.5, False)
    assert "--max-gpus 16 or more" in program.run("queue", "set", "research", "--max-gpus", "8", expect=2)
    assert "nothing to change" in program.run("queue", "set", "research", expect=2)
    assert "no number of GPUs" in program.run("queue", "set", "research", "--gpus", "-3", expect=2)
    assert program.json("queue", "set", "research", "--closed")["state"] == "closed"

    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(name="queued") + "queue: research\nresources: {nodes: 2, gpus_per_node: 4}\n")
    result = program.result("job", "submit", str(file))
    assert 'queue "research" is closed' in result.stderr
    job_id = program.json("job", "show", "queued")["id"]
    row = next(row for row in program.json("queue", "list") if row["name"] == "research")
    assert (row["waiting_count"], row["running_count"], row["used_gpus"]) == (1, 0, 0)
    scheduler.change(job_id, now_ms(), "runs", state=JobState.RUNNING)
    shown = program.json("queue", "show", "research")
    assert (shown["waiting_count"], shown["running_count"], shown["used_gpus"]) == (0, 1, 8)
    assert [job["id"] for job in shown["jobs"]] == [job_id]
    assert "8 GPUs" in program.run("queue", "show", "research")

    assert "--yes" in program.run("queue", "delete", "research", expect=2)
    assert job_id in program.run("queue", "delete", "research", "--yes", expect=4)
    scheduler.change(job_id, now_ms(), "done", state=JobState.SUCCEEDED)
    assert program.json("queue", "delete", "research", "--yes")["name"] == "research"
    assert "research" not in {row["name"] for row in program.json("queue", "list")}
    assert "sdrs queue create research" in program.run("job", "clone", job_id, expect=1)
    assert "there is no queue" in program.run("queue", "show", "research", expect=1)
    assert "default" in {row["name"] for row in program.json("queue", "list")}


def test_goodput_is_told_by_job_and_in_all(program: JobProgram, scheduler: StandInScheduler, tmp_path: Path) -> None:
    made = program.submit(tmp_path, JOB.format(name="measured") + "resources: {nodes: 1, gpus_per_node: 4}\n")
    before = program.json("job", "goodput")
    assert made["id"] not in {job["id"] for job in before["jobs"]}
    lost = Attempt(
        JobId(made["id"]),
        1,
        (),
        "local",
        scheduled_unix_ms=1_000,
        running_unix_ms=2_000,
        durable_unix_ms=7_000,
        ended_unix_ms=9_000,
        verdict=Verdict(FailureClass.CRASH, "it crashed"),
    )
    scheduler.put_attempts(made["id"], [lost])
    told = program.json("job", "goodput")
    (job,) = [job for job in told["jobs"] if job["id"] == made["id"]]
    assert (job["name"], job["effective_seconds"], job["lost_seconds"], job["loading_seconds"]) == ("measured", 5, 2, 1)
    # Of four GPUs.
    assert told["cluster"]["lost_seconds"] == before["cluster"]["lost_seconds"] + 8
    assert "62 %" in program.run("job", "goodput")


def test_nodes_are_told_with_their_jobs_and_strikes_and_cleared(
    program: JobProgram, scheduler: StandInScheduler, tmp_path: Path
) -> None:
    made = program.submit(tmp_path, JOB.format(name="on-a-node"))
    scheduler.change(made["id"], now_ms(), "runs", state=JobState.RUNNING, slots=(Slot("gpu-07", (0, 1)),))
    strikes = (Strike(now_ms(), FailureClass.GPU, JobId("old-1a2b"), "GPU 3 is bad"),)
    node = NodeRecord("gpu-07", "slurm", 8, "a100", strikes=strikes, cordoned_because="2 failures", is_told=True)
    stored = NodeRecord("node-1", "local", 8, strikes=strikes, cordoned_because="lost", is_storage_node=True)
    scheduler.ledger.change({}, {keys.node("gpu-07"): node, keys.node("node-1"): stored})

    told = {row["id"]: row for row in program.json("job", "nodes")}["gpu-07"]
    assert (told["name"], told["state"], told["why"]) == ("gpu-07", "cordoned", "2 failures")
    assert (told["gpus"], told["used_gpus"], told["gpu_type"], told["executor"]) == (8, 2, "a100", "slurm")
    assert told["jobs"] == [{"id": made["id"], "name": "on-a-node", "state": "running"}]
    assert [strike["failure"] for strike in told["strikes"]] == ["gpu"]
    assert made["id"] in program.run("job", "nodes")

    assert "node uncordon node-1" in program.run("job", "nodes", "--clear", "node-1", expect=4)
    assert "knows no node" in program.run("job", "nodes", "--clear", "gpu-99", expect=1)
    cleared = program.json("job", "nodes", "--clear", "gpu-07")
    assert [(row["id"], row["state"], row["strikes"]) for row in cleared] == [("gpu-07", "up", [])]
    # Should it be cordoned once more, that is told anew.
    assert not scheduler.ledger.nodes()["gpu-07"].value.is_told
    scheduler.change(made["id"], now_ms(), "done", state=JobState.SUCCEEDED, slots=())
