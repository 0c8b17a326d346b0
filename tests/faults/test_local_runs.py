"""Local runs and the death of who looks after them: the scheduler, the shepherd, the machine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM

import pytest

from sdrs_core.errors import UnavailableError
from sdrs_scheduler.executors.executor import Exit, LaunchOrder, RunState
from sdrs_scheduler.executors.local import executor as executor_module
from sdrs_scheduler.executors.local.run_folder import RunFolder
from tests.support.executors import PATIENCE_SECONDS, Bench, gone, is_alive, local_bench
from tests.support.file_systems import needs_root, small_file_system
from tests.support.waiting import wait_for

COUNTS = "echo start >> starts; echo ready; sleep 600"
BY_HAND = [sys.executable, "-P", "-m", "sdrs_scheduler.executors.local.shepherd"]
# As a scheduler does it that is killed in the middle of things.
LAUNCHES = """
import json, sys, time
from pathlib import Path
from sdrs_scheduler.executors.executor import LaunchOrder
from sdrs_scheduler.executors.local.executor import LocalExecutor
from sdrs_scheduler.jobs.job import Slot
from sdrs_scheduler.jobs.spec import Launch
fields = json.loads(sys.argv[2])
slots = tuple(Slot(slot["node"], tuple(slot["gpus"])) for slot in fields.pop("slots"))
LocalExecutor(Path(sys.argv[1]), list).launch(LaunchOrder(slots=slots, launch=Launch(fields.pop("launch")), **fields))
print("launched", flush=True)
time.sleep(600)
"""

# A shepherd to which something happens when it writes a record.
SHEPHERD = """
import os, sys
from pathlib import Path
from sdrs_scheduler.executors.local import run_folder, shepherd
write = run_folder.RunFolder.write_text
def write_text(folder, name, text):
    if name == sys.argv[2] and sys.argv[3] == "dies before":
        os.kill(os.getpid(), 9)
    write(folder, name, text)
    if name == sys.argv[2] and sys.argv[3] == "dies after":
        os.kill(os.getpid(), 9)
    if name == sys.argv[2] and sys.argv[3] == "is killed after":
        (folder.path / "kill").touch()
run_folder.RunFolder.write_text = write_text
sys.exit(shepherd.main(sys.argv[1]))
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with local_bench(tmp_path) as bench:
        yield bench


def folder_of(bench: Bench, run: str) -> Path:
    return bench.folder.parent / "executor/runs" / run


def shepherd_pid(bench: Bench, run: str) -> int:
    pid = json.loads((folder_of(bench, run) / "begun.json").read_text())["pid"]
    assert isinstance(pid, int)
    return pid


def starts(bench: Bench) -> int:
    path = bench.folder / "starts"
    return path.read_text().count("start") if path.exists() else 0


def scheduler(bench: Bench, order: LaunchOrder) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", LAUNCHES, str(bench.folder.parent / "executor"), json.dumps(asdict(order))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_a_run_outlives_its_scheduler_and_its_exit_code_is_not_lost(bench: Bench) -> None:
    order = bench.order("echo ready; until [ -e go ]; do sleep 0.1; done; exit 6", node_count=2)
    with scheduler(bench, order) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "launched\n"
        # Ctrl-C and the end of a terminal meet its whole process group; a run is not in it.
        os.killpg(first.pid, SIGKILL)
    assert bench.running(order.run).nodes == ("n1", "n2")
    (bench.folder / "go").touch()
    assert next(iter(bench.ended(order.run).exits.values())) == Exit(code=6)


@pytest.mark.parametrize("delay_ms", [0, 30, 60, 90, 120, 200])
def test_a_scheduler_killed_while_it_launches_leads_to_one_start(bench: Bench, delay_ms: int) -> None:
    order = bench.order(COUNTS)
    with scheduler(bench, order) as first:
        wait_for(lambda: folder_of(bench, order.run).exists(), "the first step", PATIENCE_SECONDS)
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(delay_ms / 1000)  # a moment in between: any will do
        os.kill(first.pid, SIGKILL)
    bench.executor.launch(order)
    bench.said(order.run, "ready")
    bench.executor.launch(order)
    assert starts(bench) == 1
    bench.executor.kill(order.run)
    bench.ended(order.run)
    assert starts(bench) == 1


class CutOff(Exception):
    pass


@pytest.mark.parametrize("step", ["folder", "hosts", "plan.json", "shepherd", "told"])
def test_a_launch_cut_off_after_each_of_its_steps_is_repeated(
    bench: Bench, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = bench.order(COUNTS)
    make, write, run = RunFolder.make, RunFolder.write_text, subprocess.run

    def cut(name: str) -> None:
        if name == step:
            raise CutOff

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "make", lambda folder: (make(folder), cut("folder")))
        patch.setattr(RunFolder, "write_text", lambda folder, name, text: (write(folder, name, text), cut(name)))
        patch.setattr(
            executor_module.subprocess,
            "run",
            lambda *args, **kwargs: (cut("shepherd"), run(*args, **kwargs), cut("told"))[1],
        )
        with pytest.raises(CutOff):
            bench.executor.launch(order)
    expected = RunState.RUNNING if step == "told" else RunState.UNKNOWN
    assert bench.facts(order.run).state is expected
    bench.executor.launch(order)
    bench.said(order.run, "ready")
    assert starts(bench) == 1


@pytest.mark.parametrize(
    ("record", "what", "start_count", "exits"),
    [
        ("begun.json", "dies before", 1, {"n1": Exit(code=6)}),  # nothing had begun: the repeat begins
        ("begun.json", "dies after", 0, {}),
        ("workers.json", "dies before", 0, {}),
        ("workers.json", "dies after", 0, {}),
        ("exits.json", "dies before", 1, {}),
        ("exits.json", "dies after", 1, {"n1": Exit(code=6)}),
        ("ended.json", "dies before", 1, {"n1": Exit(code=6)}),
        ("ended.json", "dies after", 1, {"n1": Exit(code=6)}),
    ],
)
def test_a_shepherd_killed_at_each_of_its_records_never_leads_to_two_starts(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    record: str,
    what: str,
    start_count: int,
    exits: dict[str, Exit],
) -> None:
    order = bench.order("echo start >> starts; exit 6")
    said = strange_shepherd(bench, order, monkeypatch, record, what)
    assert said == ("it was killed while it started" if record in ("begun.json", "workers.json") else "")
    if record == "begun.json" and what == "dies before":
        assert bench.facts(order.run).state is RunState.UNKNOWN
    bench.executor.launch(order)
    facts = bench.ended(order.run)
    bench.executor.launch(order)
    assert bench.facts(order.run) == facts
    assert facts.exits == exits
    assert starts(bench) == start_count


def test_a_kill_that_comes_while_a_shepherd_starts_is_not_missed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order = bench.order(COUNTS)
    strange_shepherd(bench, order, monkeypatch, "begun.json", "is killed after")
    assert bench.ended(order.run).detail == "killed by the scheduler"
    assert starts(bench) == 0


def strange_shepherd(bench: Bench, order: LaunchOrder, monkeypatch: pytest.MonkeyPatch, record: str, what: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(executor_module.LocalExecutor, "_start_shepherd", lambda *_: None)
        bench.executor.launch(order)
    command = [sys.executable, "-c", SHEPHERD, str(folder_of(bench, order.run)), record, what]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    folder = RunFolder(folder_of(bench, order.run))
    wait_for(lambda: not folder.is_locked(), "the end of the shepherd", PATIENCE_SECONDS)
    return done.stderr


def test_many_shepherds_at_once_start_one_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order = bench.order(COUNTS)
    with monkeypatch.context() as patch:
        patch.setattr(executor_module.LocalExecutor, "_start_shepherd", lambda *_: None)
        bench.executor.launch(order)
    several = [subprocess.Popen([*BY_HAND, str(folder_of(bench, order.run))]) for _ in range(5)]
    assert [one.wait(PATIENCE_SECONDS) for one in several] == [0] * 5
    bench.said(order.run, "ready")
    assert starts(bench) == 1


def test_a_shepherd_that_finds_the_traces_of_another_starts_nothing(bench: Bench) -> None:
    run = bench.launched(COUNTS)
    bench.said(run, "ready")
    os.kill(shepherd_pid(bench, run), SIGKILL)
    folder = RunFolder(folder_of(bench, run))
    wait_for(lambda: not folder.is_locked(), "the end of the shepherd", PATIENCE_SECONDS)
    subprocess.run([*BY_HAND, str(folder.path)], check=True)
    bench.ended(run)
    assert starts(bench) == 1


def test_a_kill_that_was_cut_off_still_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order = bench.order(COUNTS)
    with monkeypatch.context() as patch:
        patch.setattr(executor_module.LocalExecutor, "_start_shepherd", lambda *_: None)
        bench.executor.launch(order)
    (folder_of(bench, order.run) / "kill").touch()
    bench.executor.launch(order)
    facts = bench.facts(order.run)
    assert (facts.state, facts.exits, facts.detail) == (RunState.ENDED, {}, "killed before it started")
    assert starts(bench) == 0


def test_a_shepherd_that_comes_after_the_kill_starts_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order = bench.order(COUNTS)
    with monkeypatch.context() as patch:
        patch.setattr(executor_module.LocalExecutor, "_start_shepherd", lambda *_: None)
        bench.executor.launch(order)
    bench.executor.kill(order.run)
    facts = bench.facts(order.run)
    assert (facts.state, facts.exits) == (RunState.ENDED, {})
    bench.executor.launch(order)
    subprocess.run([*BY_HAND, str(folder_of(bench, order.run))], check=True)
    assert bench.facts(order.run) == facts
    assert starts(bench) == 0


def test_what_a_killed_shepherd_leaves_is_ended(bench: Bench) -> None:
    # One in a session of its own, one that has lost the run's mark; and one node that ended before.
    command = "[ $SDRS_NODE_RANK = 1 ] && exit 0; setsid sleep 600 & echo $! > far; "
    command += "env -i sleep 600 & echo $! > near; wait"
    run = bench.launched(command, node_count=2)
    pids = [bench.pid("near"), bench.pid("far")]
    wait_for(lambda: bench.facts(run).exits, "the exit of the second node", PATIENCE_SECONDS)
    os.kill(shepherd_pid(bench, run), SIGKILL)
    facts = bench.ended(run)
    assert "its shepherd was killed" in facts.detail
    assert facts.exits == {"n2": Exit(code=0)}
    gone(*pids)
    bench.executor.launch(bench.order("true", run=run))
    assert bench.facts(run) == facts


def test_a_shepherd_that_does_not_answer_does_not_keep_a_run_alive(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stopped, and stopped again as often as it is woken.
    monkeypatch.setattr(executor_module, "SIGCONT", SIGSTOP)
    monkeypatch.setattr(executor_module, "_KILL_SECONDS", 0.5)
    run = bench.launched("echo $$ > pid; sleep 600; true")
    pid = bench.pid("pid")
    os.kill(shepherd_pid(bench, run), SIGSTOP)
    bench.executor.kill(run)
    assert bench.facts(run).state is RunState.ENDED
    gone(pid)


def test_a_machine_that_goes_down_ends_runs_politely(bench: Bench) -> None:
    run = bench.launched("trap 'echo bye; exit 8' TERM; echo ready; sleep 600 & wait")
    bench.said(run, "ready")
    os.kill(shepherd_pid(bench, run), SIGTERM)
    facts = bench.ended(run)
    assert facts.exits == {"n1": Exit(code=8)}
    assert "SIGTERM" in facts.detail
    assert facts.preempted, "it is not the run's fault, and costs it nothing"
    assert "bye" in bench.log(run)


def test_a_run_of_before_a_restart_of_the_machine_is_lost_and_its_pids_mean_nothing(bench: Bench) -> None:
    run = bench.launched("echo $$ > pid; sleep 600; true")
    pid = bench.pid("pid")
    path = folder_of(bench, run) / "begun.json"
    begun = path.read_text()
    os.kill(shepherd_pid(bench, run), SIGKILL)
    wait_for(lambda: not RunFolder(path.parent).is_locked(), "the end of the shepherd", PATIENCE_SECONDS)
    path.write_text(json.dumps({**json.loads(begun), "boot": "another"}))
    facts = bench.facts(run)
    assert (facts.state, facts.lost_nodes) == (RunState.ENDED, ("n1",))
    assert facts.detail == "the machine was restarted under it"
    assert is_alive(pid)
    path.write_text(begun)
    (path.parent / "ended.json").unlink()
    bench.ended(run)
    gone(pid)


@needs_root
def test_a_disk_that_is_full_is_an_error_and_nothing_starts(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 1) as small, local_bench(small) as bench:
        order = bench.order(COUNTS, workdir=str(tmp_path))
        fill = fill_up(small)
        with pytest.raises(UnavailableError, match=r"takes no files .*No space left"):
            bench.executor.launch(order)
        assert bench.facts(order.run).state is RunState.UNKNOWN
        fill.unlink()
        bench.executor.launch(order)
        bench.said(order.run, "ready")


@needs_root
def test_an_exit_code_waits_until_a_full_disk_has_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_file_system(tmp_path / "small", 1) as small, local_bench(small) as bench:
        run = bench.launched("until [ -e go ]; do sleep 0.1; done; exit 6", workdir=str(tmp_path))
        fill = fill_up(small)
        (tmp_path / "go").touch()
        shepherd = shepherd_pid(bench, run)
        wait_for(lambda: not children_of(shepherd), "the end of the command", PATIENCE_SECONDS)
        assert bench.facts(run).state is RunState.RUNNING
        monkeypatch.setattr(executor_module, "_KILL_SECONDS", 0.2)
        bench.executor.kill(run)
        fill.unlink()
        assert bench.ended(run).exits == {"n1": Exit(code=6)}


def fill_up(folder: Path) -> Path:
    path = folder / "fill"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)
    return path


def children_of(pid: int) -> str:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()
