"""The contract of an executor: runs and how they end. Every implementation runs it, the in-memory twin too."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest

from sdrs_scheduler.executors.executor import Exit, RunState
from sdrs_scheduler.jobs.spec import Launch
from tests.support.executors import Bench, died_of

FOREVER = "echo ready; sleep 600"


def test_nodes_tell_their_gpus(bench: Bench) -> None:
    nodes = {node.name: node for node in bench.executor.nodes()}
    assert len(bench.nodes) >= 2
    assert all(nodes[name].is_up and nodes[name].gpus >= 4 for name in bench.nodes)


def test_nobody_minds_runs_that_nobody_knows(bench: Bench) -> None:
    executor = bench.executor
    assert executor.poll(["never.1", "never.2"]).keys() == {"never.1", "never.2"}
    assert executor.poll(["never.1"])["never.1"].state is RunState.UNKNOWN
    executor.warn("never.1", "TERM")
    executor.dump_stacks("never.1")
    executor.kill("never.1")
    executor.forget("never.1")
    assert executor.log_tail("never.1", 100) == ""
    assert executor.poll(["never.1"])["never.1"].state is RunState.UNKNOWN
    assert executor.poll([]) == {}


@pytest.mark.parametrize("code", [0, 1, 75, 255])
def test_a_run_ends_with_the_exit_code_of_its_command(bench: Bench, code: int) -> None:
    run = bench.launched(f"echo hello; exit {code}")
    facts = bench.ended(run)
    assert facts.exits == {bench.nodes[0]: Exit(code=code)}
    assert 0 < facts.started_unix_ms <= facts.ended_unix_ms
    assert facts.lost_nodes == ()
    assert "hello" in bench.log(run)


@pytest.mark.parametrize("signal", [SIGKILL, 11])
def test_a_signal_that_killed_the_command_is_told(bench: Bench, signal: int) -> None:
    run = bench.launched(f"kill -{signal} $$; sleep 600")
    assert died_of(bench.ended(run).exits[bench.nodes[0]], signal)


def test_a_run_that_is_launched_twice_starts_once(bench: Bench) -> None:
    order = bench.order(FOREVER)
    bench.executor.launch(order)
    bench.executor.launch(order)
    bench.running(order.run)
    bench.again().launch(order)
    bench.said(order.run, "ready")
    bench.executor.kill(order.run)
    bench.ended(order.run)
    bench.executor.launch(order)
    assert bench.ended(order.run)
    assert bench.log(order.run).count("ready") == 1


def test_a_gang_ends_when_all_of_it_has_ended(bench: Bench) -> None:
    run = bench.launched("echo rank; exit 0", node_count=2)
    assert bench.ended(run).exits == {node: Exit(code=0) for node in bench.nodes[:2]}
    assert bench.log(run).count("rank") == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_node_that_fails_ends_the_whole_run_and_is_told_first(bench: Bench, rank: int) -> None:
    run = bench.launched(f"[ $SDRS_NODE_RANK = {rank} ] && exit 9; sleep 600", node_count=2)
    exits = bench.ended(run).exits
    assert list(exits) == [bench.nodes[rank], bench.nodes[1 - rank]]
    assert exits[bench.nodes[rank]] == Exit(code=9)
    assert exits[bench.nodes[1 - rank]].code != 0


def test_a_node_that_is_done_waits_for_the_others(bench: Bench) -> None:
    run = bench.launched("echo ready; [ $SDRS_NODE_RANK = 0 ] && exit 0; sleep 600", node_count=2)
    bench.said(run, "ready", 2)
    bench.running(run)
    bench.executor.kill(run)
    exits = bench.ended(run).exits
    # What failed is told first, also when something else ended earlier.
    assert list(exits) == [bench.nodes[1], bench.nodes[0]]
    assert exits[bench.nodes[0]] == Exit(code=0)


def test_a_command_that_is_launched_once_runs_on_the_first_node(bench: Bench) -> None:
    run = bench.launched("echo ready; exit 0", node_count=2, launch=Launch.ONCE)
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=0)}
    assert bench.log(run).count("ready") == 1


@pytest.mark.parametrize("signal", ["TERM", "USR1"])
def test_a_warning_reaches_who_listens_for_it(bench: Bench, signal: str) -> None:
    run = bench.launched(f"trap 'exit 5' {signal}; echo ready; sleep 600 & wait")
    bench.said(run, "ready")
    bench.executor.warn(run, signal)
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=5)}
    bench.executor.warn(run, signal)
    assert bench.facts(run).exits == {bench.nodes[0]: Exit(code=5)}


def test_a_warning_ends_a_run_that_does_not_listen(bench: Bench) -> None:
    run = bench.launched(FOREVER)
    bench.said(run, "ready")
    bench.executor.warn(run, "TERM")
    assert died_of(bench.ended(run).exits[bench.nodes[0]], SIGTERM)


def test_a_run_that_is_killed_has_ended_and_may_be_killed_again(bench: Bench) -> None:
    run = bench.launched(FOREVER, node_count=2)
    bench.said(run, "ready", 2)
    bench.executor.kill(run)
    bench.executor.kill(run)
    facts = bench.ended(run)
    assert facts.exits.keys() == set(bench.nodes[:2])
    bench.executor.kill(run)
    assert bench.facts(run) == facts


def test_the_end_of_a_log_is_told_up_to_a_limit(bench: Bench) -> None:
    run = bench.launched(f"echo {'x' * 1000}; echo the end; exit 0", node_count=2)
    bench.ended(run)
    tail = bench.executor.log_tail(run, 300)
    assert "the end" in tail
    assert len(tail.encode()) <= 300


def test_logs_stay_when_a_run_is_forgotten(bench: Bench) -> None:
    run = bench.launched("echo hello; exit 3")
    bench.ended(run)
    bench.executor.forget(run)
    bench.executor.forget(run)
    assert "hello" in bench.log(run)
    assert "hello" in bench.again().log_tail(run, 1000)
    assert bench.facts(run).state in (RunState.UNKNOWN, RunState.ENDED)


def test_nothing_is_left_of_a_run_that_is_erased(bench: Bench) -> None:
    run = bench.launched("echo hello")
    bench.ended(run)
    bench.executor.forget(run)
    for _ in range(2):
        bench.executor.erase(run)
    assert bench.executor.log_tail(run, 1000) == ""
    assert bench.facts(run).state is RunState.UNKNOWN
    assert not list(bench.folder.rglob(f"*{run}*"))


def test_a_new_executor_finds_runs_that_go_on_and_runs_that_ended(bench: Bench) -> None:
    over, going, ending = (bench.launched(command) for command in ("exit 4", FOREVER, "sleep 1; exit 6"))
    before = bench.ended(over)
    bench.said(going, "ready")
    bench.again()
    assert bench.facts(over) == before
    assert bench.facts(going).state is RunState.RUNNING
    if not bench.is_twin:
        assert bench.ended(ending).exits == {bench.nodes[0]: Exit(code=6)}
    bench.executor.kill(going)
    assert bench.ended(going).exits
