"""Runs on a real Slurm: what is Slurm's own, beyond the contract of executors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_scheduler.executors.executor import Exit, RunState
from sdrs_scheduler.executors.slurm.executor import SlurmExecutor
from sdrs_scheduler.jobs.spec import Launch
from tests.support.executors import Bench, slurm_bench
from tests.support.slurm import SlurmCluster, needs_slurm, running_slurm
from tests.support.waiting import wait_for

pytestmark = needs_slurm

FOREVER = "echo ready; sleep 600"

# As torchrun does: it knows nothing of USR1 and USR2, and would die of them under the trainer that it started. The
# trainer has written over its environment, as setproctitle does.
LAUNCHER = """
import os, signal, subprocess, sys, time
if sys.argv[1:]:
    signal.signal(signal.SIGUSR1, lambda *_: (print("saved", flush=True), os._exit(6)))
    print("ready", flush=True)
    while True:
        time.sleep(1)
sys.exit(subprocess.run([sys.executable, __file__, "trainer"], env={}).returncode)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with running_slurm() as slurm:
        yield slurm


@pytest.fixture
def bench(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Bench]:
    with slurm_bench(tmp_path, slurm) as bench:
        yield bench


def job_ids(slurm: SlurmCluster, bench: Bench, run: str) -> list[str]:
    lines = slurm.run("squeue", "--noheader", "--states=all", "--format=%i %o").stdout.splitlines()
    script = str(bench.folder / "runs" / run / "job.sh")
    return [number for number, _, path in (line.partition(" ") for line in lines) if path == script]


def test_a_job_of_the_same_name_is_another_schedulers(slurm: SlurmCluster, tmp_path: Path) -> None:
    benches = [Bench(lambda name=name: SlurmExecutor(tmp_path / name, slurm.settings), tmp_path) for name in "ab"]  # type: ignore[misc]
    runs = [bench.launched(f"exit {number}") for number, bench in enumerate(benches)]
    assert runs[0] == runs[1]
    assert [bench.ended(runs[0]).exits["n1"] for bench in benches] == [Exit(code=0), Exit(code=1)]


def test_exit_codes_that_mean_something_come_through(bench: Bench) -> None:
    runs = {bench.launched(f"exit {code}", gpus=1): code for code in (93, 200, 210)}
    for run, code in runs.items():
        assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=code)}


def test_runs_on_the_same_nodes_have_different_gpus(bench: Bench) -> None:
    tell = 'echo "$CUDA_VISIBLE_DEVICES" > "$NAME.$SDRS_NODE"; sleep 600'
    runs = [bench.launched(tell, node_count=2, environment={"NAME": name}) for name in "ab"]
    for node in bench.nodes[:2]:
        wait_for(lambda node=node: all((bench.folder / f"{name}.{node}").exists() for name in "ab"), "both run", 60)  # type: ignore[misc]
        seen = [(bench.folder / f"{name}.{node}").read_text().strip() for name in "ab"]
        assert sorted(seen) == ["0,1", "2,3"]
    assert bench.facts(runs[0]).nodes == bench.nodes[:2]


def test_a_run_waits_for_gpus_and_says_so_and_can_be_ended_before_it_began(bench: Bench) -> None:
    first = bench.launched(FOREVER, gpus=4)
    bench.running(first)
    second = bench.launched(FOREVER, gpus=1)
    wait_for(lambda: "Resources" in bench.facts(second).detail, "a reason", 60)
    facts = bench.facts(second)
    assert (facts.state, facts.started_unix_ms, facts.nodes) == (RunState.WAITING, 0, ())
    bench.executor.kill(second)
    facts = bench.ended(second)
    assert (facts.exits, facts.nodes) == ({}, ())
    assert "CANCELLED" in facts.detail


def test_a_submission_that_was_not_written_down_is_found_by_its_name(bench: Bench, slurm: SlurmCluster) -> None:
    bench.running(bench.launched(FOREVER, gpus=4))
    order = bench.order(FOREVER, gpus=1)
    bench.executor.launch(order)
    (bench.folder / "runs" / order.run / "submitted").unlink()
    bench.again().launch(order)
    assert len(job_ids(slurm, bench, order.run)) == 1


def test_a_run_that_was_submitted_twice_begins_once(bench: Bench, slurm: SlurmCluster) -> None:
    run = bench.launched(FOREVER, gpus=1)
    slurm.run("sbatch", str(bench.folder / "runs" / run / "job.sh"))
    bench.said(run, "ready")
    slurm_log = bench.folder / "runs" / run / "slurm.log"
    wait_for(lambda: "nothing to do for job" in slurm_log.read_text(), "the second one to leave", 60)
    assert len(job_ids(slurm, bench, run)) == 2
    assert bench.facts(run).state is RunState.RUNNING
    assert bench.log(run).count("ready") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 9}, "Requested node configuration is not available"),
        ({"memory_bytes_per_node": 1 << 50}, "Memory specification can not be satisfied"),
        ({"excluded_nodes": ("n1",)}, "Invalid node name"),
        ({"environment": {"a b": "c"}}, "'a b' cannot name an environment variable"),
    ],
)
def test_what_can_never_start_is_refused_in_words_of_slurm(bench: Bench, change: dict[str, object], words: str) -> None:
    order = bench.order("true", **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=words):
        bench.executor.launch(order)
    assert bench.facts(order.run).state is RunState.UNKNOWN


def test_what_the_order_asks_for_is_what_slurm_holds(bench: Bench, slurm: SlurmCluster) -> None:
    run = bench.launched(
        FOREVER,
        cpus_per_node=3,
        memory_bytes_per_node=300 << 20,
        exclusive=True,
        time_limit_seconds=600.0,
        # The second is none of Slurm's: another executor's, or one that was taken away.
        excluded_nodes=("n3", "elsewhere"),
    )
    told = slurm.run("scontrol", "--oneliner", "show", "job", *job_ids(slurm, bench, run)).stdout.split()
    expected = {"CPUs/Task=3", "MinMemoryNode=300M", "OverSubscribe=NO", "TimeLimit=00:12:00", "ExcNodeList=n3"}
    assert expected | {"Requeue=0", "ReqNodeList=n1", "TresPerNode=gres:gpu:2"} <= set(told)


def test_a_warning_reaches_a_command_that_is_launched_once(bench: Bench) -> None:
    command = "trap 'echo heard; exit 5' USR1; echo ready; sleep 600 & wait"
    run = bench.launched(command, node_count=2, launch=Launch.ONCE)
    bench.said(run, "ready")
    bench.executor.warn(run, "USR1")
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=5)}
    assert bench.log(run).count("heard") == 1


def test_a_launcher_that_does_not_listen_outlives_a_warning_and_stacks(bench: Bench) -> None:
    (bench.folder / "launcher.py").write_text(LAUNCHER)
    run = bench.launched((sys.executable, str(bench.folder / "launcher.py")), node_count=2)
    bench.said(run, "ready", 2)
    bench.executor.dump_stacks(run)
    bench.said(run, "tells no stacks", 4)
    bench.executor.warn(run, "USR1")
    exits = bench.ended(run).exits
    assert next(iter(exits.values())) == Exit(code=6)
    assert "saved" in bench.log(run)


def test_a_deaf_command_that_is_launched_once_is_killed(bench: Bench) -> None:
    run = bench.launched("trap '' TERM; echo ready; while true; do sleep 1; done", launch=Launch.ONCE)
    bench.said(run, "ready")
    bench.executor.kill(run)
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(signal=9)}


def test_a_drained_node_is_down_with_the_words_of_who_drained_it(bench: Bench, slurm: SlurmCluster) -> None:
    slurm.run("scontrol", "update", "nodename=n3", "state=drain", "reason=fan is loud | rack 3")
    try:
        nodes = {node.name: node for node in bench.executor.nodes()}
    finally:
        slurm.run("scontrol", "update", "nodename=n3", "state=resume")
    assert (nodes["n3"].is_up, nodes["n3"].problem) == (False, "drained: fan is loud | rack 3")
    assert (nodes["n1"].is_up, nodes["n1"].problem) == (True, "")
    assert nodes["n1"].groups == {"train", "rack1"}
    assert nodes["n1"].gpus == 4


def test_while_slurm_does_not_answer_nothing_is_concluded_and_runs_go_on(bench: Bench, slurm: SlurmCluster) -> None:
    run = bench.launched("echo ready; until [ -e go ]; do sleep 0.1; done; exit 7")
    over = bench.launched("exit 3")
    end = bench.ended(over)
    bench.said(run, "ready")
    order = bench.order("exit 0")
    slurm.end_controller()
    try:
        hasty = SlurmExecutor(bench.folder / "runs", replace(slurm.settings, deadline_seconds=1.0))
        with pytest.raises(UnavailableError, match=r"slurmctld|contact"):
            hasty.poll([run, over])
        with pytest.raises(UnavailableError):
            hasty.launch(order)
        assert hasty.poll([over]) == {over: end}
    finally:
        slurm.start_controller()
    bench.again().launch(order)
    assert bench.facts(run).state is RunState.RUNNING
    assert bench.ended(order.run).exits == {bench.nodes[0]: Exit(code=0)}
    (bench.folder / "go").touch()
    assert bench.ended(run).exits == {bench.nodes[0]: Exit(code=7)}


def test_a_shared_folder_that_is_away_says_nothing_about_runs(bench: Bench) -> None:
    run = bench.launched("exit 4")
    facts = bench.ended(run)
    folder = bench.folder / "runs"
    folder.rename(bench.folder / "unmounted")
    try:
        for ask in (lambda: bench.facts(run), lambda: bench.log(run), lambda: bench.executor.kill(run)):
            with pytest.raises(UnavailableError, match="is it mounted"):
                ask()
    finally:
        (bench.folder / "unmounted").rename(folder)
    assert bench.facts(run) == facts


def test_a_node_that_dies_is_lost_and_ends_the_run(bench: Bench, slurm: SlurmCluster) -> None:
    run = bench.launched(FOREVER, node_count=2)
    bench.said(run, "ready", 2)
    slurm.kill_node("n2")
    try:
        facts = bench.ended(run)
        nodes = {node.name: node for node in bench.executor.nodes()}
    finally:
        slurm.start_node("n2")
        slurm.wait_until_up()
    assert facts.lost_nodes == ("n2",)
    assert facts.exits.keys() == {"n1"}
    assert "NODE_FAIL" in facts.detail
    assert not nodes["n2"].is_up
    assert "Not responding" in nodes["n2"].problem
    # It is told the same when the node is back.
    assert bench.facts(run) == facts


def test_an_end_that_slurm_has_forgotten_is_told_from_what_nodes_wrote(bench: Bench, slurm: SlurmCluster) -> None:
    run = bench.launched("exit 75", node_count=2)
    folder = bench.folder / "runs" / run
    wait_for((folder / "over").exists, "the end of the script", 60)
    killed = bench.launched(FOREVER)
    bench.said(killed, "ready")
    bench.executor.kill(killed)
    wait_for(lambda: not slurm.run("squeue", "--noheader").stdout, "Slurm to be idle", 60)
    slurm.end_controller()
    slurm.start_controller(is_blank=True)
    facts = bench.ended(run)
    assert facts.exits == {"n1": Exit(code=75), "n2": Exit(code=75)}
    assert "no longer knows" in facts.detail
    assert 0 < facts.started_unix_ms < facts.ended_unix_ms
    assert bench.ended(killed).exits == {"n1": Exit(signal=9)}
    slurm.wait_until_up()
