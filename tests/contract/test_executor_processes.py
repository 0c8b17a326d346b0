"""The contract of an executor: what it does with processes. Those that have real ones run it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.executors.executor import Exit, RunState
from sdrs_scheduler.jobs.spec import Launch
from tests.support.executors import Bench, gone, is_alive

# Dumps its stacks at SIGUSR2, and sleeps in a function whose name is in them.
DUMPS = """
import faulthandler, os, signal, time
faulthandler.register(signal.SIGUSR2, all_threads=True)
def waits_for_godot():
    with open("pid", "w") as file:
        print(os.getpid(), file=file)
    time.sleep(600)
waits_for_godot()
"""

# A trainer in miniature: a parent that starts a child in a session of its own; both write what they hear.
LISTENS = """
import os, signal, sys, time
role = sys.argv[1]
if role == "parent":
    os.posix_spawn(sys.executable, [sys.executable, __file__, "child"], os.environ, setsid=True)
def hear(number, frame):
    os.write(1, f"heard {role} {number}\\n".encode())  # one write: parent and child share the log
    time.sleep(0.5)
    os._exit(0)
signal.signal(signal.SIGTERM, hear)
signal.signal(signal.SIGUSR1, hear)
with open(role + ".pid", "w") as file:
    print(os.getpid(), file=file)
while True:
    time.sleep(1)
"""


def environment_of(bench: Bench, node: str) -> dict[str, str]:
    lines = (bench.folder / f"env.{node}").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def script(bench: Bench, text: str) -> str:
    path = bench.folder / "script.py"
    path.write_text(text)
    return f"{sys.executable} {path}"


def test_each_node_of_a_gang_knows_its_place(real_bench: Bench) -> None:
    bench = real_bench
    own = {"SDRS_JOB_ID": "gang-1", "GREETING": "a = 'b'; $c"}
    run = bench.launched(
        'cp "$SDRS_HOSTFILE" "hosts.$SDRS_NODE" && env > "env.$SDRS_NODE"', node_count=2, gpus=3, environment=own
    )
    assert bench.ended(run).exits == {node: Exit(code=0) for node in bench.nodes[:2]}
    found = [environment_of(bench, node) for node in bench.nodes[:2]]
    for rank, (node, values) in enumerate(zip(bench.nodes, found, strict=False)):
        assert values.items() >= own.items()
        assert values["SDRS_NODE"] == node
        assert values["SDRS_NODE_RANK"] == values["PET_NODE_RANK"] == str(rank)
        assert values["SDRS_NODE_COUNT"] == values["PET_NNODES"] == "2"
        assert values["CUDA_VISIBLE_DEVICES"] == "0,1,2"
        assert values["PET_MASTER_ADDR"] == values["MASTER_ADDR"] == found[0]["MASTER_ADDR"] != ""
        assert values["PET_MASTER_PORT"] == values["MASTER_PORT"] == found[0]["MASTER_PORT"]
        assert 1024 <= int(values["MASTER_PORT"]) < 65536
        assert values["PET_MAX_RESTARTS"] == "0"
        hosts = (bench.folder / f"hosts.{node}").read_text().splitlines()
        assert [line.split()[1] for line in hosts] == ["slots=3", "slots=3"]


def test_a_command_that_is_launched_once_knows_all_nodes(real_bench: Bench) -> None:
    bench = real_bench
    run = bench.launched('wc -l < "$SDRS_HOSTFILE"; env > "env.$SDRS_NODE"', node_count=2, launch=Launch.ONCE)
    bench.ended(run)
    values = environment_of(bench, bench.nodes[0])
    assert (values["SDRS_NODE_RANK"], values["SDRS_NODE_COUNT"]) == ("0", "2")
    assert bench.log(run).strip().splitlines()[-1].strip() == "2"
    assert not (bench.folder / f"env.{bench.nodes[1]}").exists()


def test_a_command_of_words_is_no_shell(real_bench: Bench) -> None:
    run = real_bench.launched((sys.executable, "-c", "import sys; print(sys.argv)", "$HOME", "a b", "", "'"))
    assert real_bench.ended(run).exits[real_bench.nodes[0]] == Exit(code=0)
    assert """['-c', '$HOME', 'a b', '', "'"]""" in real_bench.log(run)


def test_a_command_of_several_lines_is_a_script(real_bench: Bench) -> None:
    run = real_bench.launched("for i in 1 2; do\n  echo line $i\ndone\nexit 7\n")
    assert real_bench.ended(run).exits[real_bench.nodes[0]] == Exit(code=7)
    assert "line 1" in real_bench.log(run)
    assert "line 2" in real_bench.log(run)


@pytest.mark.parametrize("command", ["no-such-command-here --now", ("no-such-command-here", "--now")])
def test_a_command_that_is_not_there_ends_with_127_and_says_so(
    real_bench: Bench, command: str | tuple[str, ...]
) -> None:
    run = real_bench.launched(command)
    assert real_bench.ended(run).exits[real_bench.nodes[0]] == Exit(code=127)
    assert "no-such-command-here" in real_bench.log(run)


def test_a_run_works_in_its_folder(real_bench: Bench) -> None:
    (real_bench.folder / "here").mkdir()
    run = real_bench.launched("pwd", workdir=str(real_bench.folder / "here"))
    real_bench.ended(run)
    assert str(real_bench.folder / "here") in real_bench.log(run)


def test_a_folder_that_is_missing_is_an_error(real_bench: Bench) -> None:
    order = real_bench.order("pwd", workdir=str(real_bench.folder / "missing"))
    with pytest.raises(InvalidArgumentError, match="missing"):
        real_bench.executor.launch(order)
    assert real_bench.facts(order.run).state is RunState.UNKNOWN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_warning_reaches_grandchildren_past_a_shell_that_waits(real_bench: Bench, number: signal.Signals) -> None:
    bench = real_bench
    run = bench.launched(f"{script(bench, LISTENS)} parent; echo over $?")
    pids = [bench.pid("parent.pid"), bench.pid("child.pid")]
    bench.executor.warn(run, number.name.removeprefix("SIG"))
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=0)}
    gone(*pids)
    log = bench.log(run)
    # The shell in between waited, rather than to die of the signal and to end the run under a trainer that saves.
    assert "over 0" in log
    assert f"heard parent {number.value}" in log
    assert f"heard child {number.value}" in log


def test_a_kill_ends_children_in_sessions_of_their_own(real_bench: Bench) -> None:
    bench = real_bench
    run = bench.launched(f"{script(bench, LISTENS)} parent")
    pids = [bench.pid("parent.pid"), bench.pid("child.pid")]
    assert all(map(is_alive, pids))
    bench.executor.kill(run)
    bench.ended(run)
    gone(*pids)


def test_nothing_is_left_of_a_run_that_ended(real_bench: Bench) -> None:
    bench = real_bench
    run = bench.launched("setsid sleep 600 & echo $! > pid; exit 3")
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=3)}
    gone(bench.pid("pid"))


def test_a_kill_ends_stopped_processes(real_bench: Bench) -> None:
    bench = real_bench
    run = bench.launched("echo $$ > pid; sleep 600; true")
    pid = bench.pid("pid")
    os.kill(pid, signal.SIGSTOP)
    bench.executor.kill(run)
    bench.ended(run)
    gone(pid)


def test_a_node_that_fails_ends_deaf_processes_of_others(real_bench: Bench) -> None:
    bench = real_bench
    deaf = "trap '' TERM; echo $$ > pid; while true; do sleep 1; done"
    run = bench.launched(
        f"[ $SDRS_NODE_RANK = 1 ] && {{ until [ -s pid ]; do sleep 0.1; done; exit 3; }}; {deaf}", node_count=2
    )
    assert next(iter(bench.ended(run).exits.items())) == (bench.nodes[1], Exit(code=3))
    gone(bench.pid("pid"))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_stacks_come_into_the_log(real_bench: Bench, is_stopped: bool) -> None:
    bench = real_bench
    # The shell in between does not know the signal, and must not die of it.
    run = bench.launched(f"{script(bench, DUMPS)}; echo the shell lives")
    pid = bench.pid("pid")
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    bench.executor.dump_stacks(run)
    bench.said(run, "waits_for_godot")
    assert bench.facts(run).state is RunState.RUNNING
    os.kill(pid, signal.SIGKILL)
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=0)}
    assert "the shell lives" in bench.log(run)


def test_logs_are_files(real_bench: Bench) -> None:
    run = real_bench.launched("echo to stdout; echo to stderr >&2", node_count=2)
    facts = real_bench.ended(run)
    text = "".join(Path(name).read_text() for name in facts.log_files)
    assert text.count("to stdout") == text.count("to stderr") == 2
