"""The local executor beyond the contract: logs, limits, folders that take nothing, whom a signal meets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_scheduler.executors.executor import Exit, NodeFacts, RunState
from sdrs_scheduler.executors.local.executor import LocalExecutor, LocalSettings
from sdrs_scheduler.executors.local.found_runs import processes_of
from sdrs_scheduler.executors.local.processes import living, process, send
from sdrs_scheduler.executors.local.run_folder import RunFolder
from tests.support.executors import PATIENCE_SECONDS, Bench, gone, local_bench
from tests.support.waiting import wait_for

MIB = 1 << 20


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with local_bench(tmp_path) as bench:
        yield bench


def test_a_log_is_set_aside_when_it_is_full_and_the_oldest_is_dropped(tmp_path: Path) -> None:
    settings = LocalSettings(log_max_bytes=100_000, log_max_files=3)
    bench = Bench(lambda: LocalExecutor(tmp_path, lambda: [NodeFacts("n1", 8)], settings), tmp_path)
    run = bench.launched((sys.executable, "-c", "for i in range(100_000): print('line', i)"))
    facts = bench.ended(run)
    log = Path(facts.log_files[0])
    assert sorted(path.name for path in log.parent.iterdir()) == ["n1.log", "n1.log.1", "n1.log.2"]
    assert all(path.stat().st_size <= 100_000 for path in log.parent.iterdir())
    # The tail goes on in what was set aside, without a gap.
    tail = bench.executor.log_tail(run, 150_000).splitlines()[1:]
    assert len(tail) > 10_000
    assert tail == [f"line {number}" for number in range(100_000 - len(tail), 100_000)]


def test_a_full_disk_costs_lines_of_the_log_and_not_the_run(bench: Bench, tmp_path: Path) -> None:
    order = bench.order("echo lost; echo done > result; exit 3")
    logs = tmp_path / "executor/logs" / order.run
    logs.mkdir(parents=True)
    (logs / "n1.log").symlink_to("/dev/full")
    bench.executor.launch(order)
    facts = bench.ended(order.run)
    assert facts.exits == {"n1": Exit(code=3)}
    assert facts.detail == "5 bytes of its logs are lost: their disk took no more"
    assert (bench.folder / "result").exists()


def test_a_run_that_takes_more_memory_than_it_may_is_out_of_memory(bench: Bench) -> None:
    eats = "import time; held = bytearray(300 << 20); print('full', flush=True); time.sleep(600)"
    run = bench.launched(f'{sys.executable} -c "{eats}"; exit $?', node_count=2, memory_bytes_per_node=100 * MIB)
    facts = bench.ended(run)
    first = next(iter(facts.exits.values()))
    assert first.out_of_memory
    assert "memory is looked at once a second" in facts.detail


def test_a_run_within_its_memory_is_left_alone(bench: Bench) -> None:
    run = bench.launched("sleep 1.5; exit 4", memory_bytes_per_node=100 * MIB)
    assert bench.ended(run).exits == {"n1": Exit(code=4)}


def test_workers_are_what_the_kernel_takes_first(bench: Bench) -> None:
    run = bench.launched("cat /proc/self/oom_score_adj")
    bench.ended(run)
    assert bench.log(run) == "500\n"


def test_a_run_inherits_nothing_that_is_ignored_or_open(bench: Bench) -> None:
    run = bench.launched(("bash", "-c", "grep -E 'SigIgn|SigBlk' /proc/self/status; ls /proc/self/fd | wc -l"))
    bench.ended(run)
    _, blocked, _, ignored, file_count = bench.log(run).split()
    # 32 and 33 are the C library's own: nobody can set them, and some parents hand them down ignored.
    assert (int(blocked, 16), int(ignored, 16) & ~(0b11 << 31)) == (0, 0)
    assert int(file_count) == 4  # three, and the folder that ls reads


def test_a_folder_that_takes_no_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    executor = LocalExecutor(tmp_path, tuple)
    order = Bench(lambda: LocalExecutor(tmp_path, lambda: [NodeFacts("n1", 8)]), tmp_path).order("true")
    with pytest.raises(UnavailableError, match="takes no files"):
        executor.launch(order)
    assert executor.poll([order.run])[order.run].state is RunState.UNKNOWN


def test_a_folder_that_cannot_be_read_says_nothing_about_runs(bench: Bench) -> None:
    run = bench.launched("exit 3")
    bench.ended(run)
    ended = bench.folder.parent / "executor/runs" / run / "ended.json"
    ended.rename(ended.with_suffix(".aside"))
    ended.mkdir()
    with pytest.raises(UnavailableError, match="cannot be read"):
        bench.executor.poll([run])
    ended.rmdir()
    ended.with_suffix(".aside").rename(ended)
    assert bench.facts(run).exits == {"n1": Exit(code=3)}


def test_bytes_that_are_no_text_do_not_make_a_tail_longer(bench: Bench) -> None:
    run = bench.launched("head -c 1000 /dev/zero | tr '\\0' '\\377'; echo end")
    bench.ended(run)
    tail = bench.executor.log_tail(run, 100)
    assert tail == "?" * 96 + "end\n"


@pytest.mark.parametrize("run", ["", "../x", "a/b", ".hidden", "a" * 201])
def test_a_name_that_would_leave_its_folder_is_refused(bench: Bench, run: str) -> None:
    order = bench.order("true")
    with pytest.raises(InvalidArgumentError, match="cannot name a run"):
        bench.executor.launch(type(order)(run, "true", order.slots, order.launch, "", {}, 1.0))


def test_after_a_warning_one_that_still_saves_may_finish(bench: Bench) -> None:
    saves = "trap 'sleep 3; echo saved $?; exit 0' TERM; echo ready; sleep 600 & wait"
    run = bench.launched(
        f"[ $SDRS_NODE_RANK = 0 ] && {{ trap 'exit 1' TERM; echo ready; sleep 600 & wait; }}; {saves}", 2
    )
    bench.said(run, "ready", 2)
    bench.executor.warn(run, "TERM")
    # Longer than the second that others have whose neighbour fails, and nothing of it is disturbed.
    assert bench.ended(run).exits == {"n1": Exit(code=1), "n2": Exit(code=0)}
    assert "saved 0" in bench.log(run)


def test_processes_that_cannot_tell_their_stacks_are_told_of(bench: Bench) -> None:
    run = bench.launched("echo $$ > pid; sleep 600; true")
    pid = bench.pid("pid")
    wait_for(lambda: len(processes_of(RunFolder(bench.folder.parent / "executor/runs" / run))) == 2, "its child")
    bench.executor.dump_stacks(run)
    assert f"sdrs: pid {pid} (bash -c echo $$ > pid; sleep 600; true) is in state S, in " in bench.log(run)
    assert "(sleep 600) is in state S" in bench.log(run)
    assert bench.facts(run).state is RunState.RUNNING


def test_torchrun_gives_its_processes_the_whole_grace(bench: Bench) -> None:
    run = bench.launched("echo $PET_SHUTDOWN_TIMEOUT", grace_seconds=119.5)
    bench.ended(run)
    assert bench.log(run) == "120\n"


def test_a_signal_never_meets_a_process_that_has_the_pid_by_now() -> None:
    with subprocess.Popen(["sleep", "600"]) as innocent:
        entry = process(innocent.pid)
        assert entry is not None
        former = type(entry)(entry.pid, entry.parent_pid, entry.session, "S", entry.started_ticks - 1, 0)
        assert not send(former, signal.SIGKILL)
        assert innocent.poll() is None
        assert send(entry, signal.SIGKILL)
        assert innocent.wait(PATIENCE_SECONDS) == -signal.SIGKILL
        assert not send(entry, signal.SIGKILL)


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    strange = tmp_path / "a) Z 1 (b"
    strange.symlink_to("/bin/sleep")
    with subprocess.Popen([str(strange), "600"]) as child:
        wait_for(lambda: (found := process(child.pid)) and found.session == os.getsid(0), "its name")
        assert child.pid in {entry.pid for entry in living()}
        child.kill()
    gone(child.pid)
