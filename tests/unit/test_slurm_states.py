from __future__ import annotations

import pytest

from sdrs_scheduler.executors.executor import Exit, RunState
from sdrs_scheduler.executors.slurm.commands import SlurmJob, SlurmNode
from sdrs_scheduler.executors.slurm.states import (
    RunFiles,
    chosen,
    end_facts,
    exit_of,
    forgotten_facts,
    gpus_of,
    is_settled,
    live_facts,
    node_facts,
    state_of,
)

FILES = RunFiles(nodes=("n1", "n2"), claimed_by=7, log_files=("n1.log",))


def job(state: str, reason: str = "", **facts: object) -> SlurmJob:
    return SlurmJob(7, "sdrs-x.1", state, reason, 100, 200, "n[1-2]", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", RunState.WAITING),
        ("CONFIGURING", RunState.WAITING),
        ("RUNNING", RunState.RUNNING),
        ("COMPLETING", RunState.RUNNING),
        ("SUSPENDED", RunState.RUNNING),
        ("COMPLETED", RunState.ENDED),
        ("FAILED", RunState.ENDED),
        ("CANCELLED", RunState.ENDED),
        ("TIMEOUT", RunState.ENDED),
        ("OUT_OF_MEMORY", RunState.ENDED),
        ("NODE_FAIL", RunState.ENDED),
        ("PREEMPTED", RunState.ENDED),
        ("DEADLINE", RunState.ENDED),
    ],
)
def test_each_state_of_slurm_is_one_of_ours(word: str, state: RunState) -> None:
    assert state_of(job(word)) is state


def test_the_job_that_began_is_the_run_else_the_first_one() -> None:
    jobs = [SlurmJob(number, "sdrs-x.1", "PENDING") for number in (9, 8, 10)]
    assert chosen(jobs, claimed_by=10) == jobs[2]
    assert chosen(jobs, claimed_by=0) == jobs[1]
    assert chosen([], claimed_by=10) is None


def test_what_slurm_refused_was_never_a_job() -> None:
    assert chosen([SlurmJob(3, "sdrs-x.1", "FAILED", "BadConstraints")], claimed_by=0) is None


@pytest.mark.parametrize(
    ("code", "exit"),
    [
        (0, Exit(code=0)),
        (75, Exit(code=75)),
        (128, Exit(code=128)),
        (137, Exit(signal=9)),
        (192, Exit(signal=64)),
        (200, Exit(code=200)),
        (210, Exit(code=210)),
        (255, Exit(code=255)),
    ],
)
def test_codes_above_all_signals_are_codes(code: int, exit: Exit) -> None:
    assert exit_of(code) == exit


def test_nodes_that_wrote_nothing_were_killed_after_who_failed() -> None:
    files = RunFiles(nodes=("n1", "n2", "n3"), exits={"n3": (0, 10), "n2": (9, 50)})
    facts = end_facts(job("FAILED", "NonZeroExitCode", exit_code=9), files)
    assert list(facts.exits.items()) == [("n2", Exit(code=9)), ("n1", Exit(signal=9)), ("n3", Exit(code=0))]
    assert (facts.started_unix_ms, facts.ended_unix_ms) == (100_000, 200_000)
    assert facts.detail == "Slurm job 7: FAILED (NonZeroExitCode)"


def test_the_first_node_answers_for_a_script_that_failed_before_nodes_began() -> None:
    assert end_facts(job("FAILED", exit_code=1), FILES).exits == {"n1": Exit(code=1), "n2": Exit(signal=9)}


def test_a_command_that_is_launched_once_is_expected_on_one_node() -> None:
    files = RunFiles(nodes=("n1", "n2"), is_launched_once=True)
    assert end_facts(job("CANCELLED"), files).exits == {"n1": Exit(signal=9)}


@pytest.mark.parametrize(
    ("failed_node", "slurm_log", "down_nodes"),
    [("n2", "", ()), ("", "srun: error: Node failure on n2\n", ()), ("", "", ("n2", "n9"))],
)
def test_a_lost_node_is_named_by_slurm_by_srun_or_is_down(
    failed_node: str, slurm_log: str, down_nodes: tuple[str, ...]
) -> None:
    files = RunFiles(nodes=("n1", "n2"), slurm_log=slurm_log)
    facts = end_facts(job("NODE_FAIL", failed_node=failed_node), files, down_nodes)
    assert facts.lost_nodes == ("n2",)
    assert facts.exits == {"n1": Exit(signal=9)}


def test_a_lost_node_that_nobody_names_is_one_that_wrote_nothing() -> None:
    files = RunFiles(nodes=("n1", "n2"), exits={"n1": (143, 5)})
    facts = end_facts(job("NODE_FAIL"), files)
    assert (facts.lost_nodes, facts.exits) == (("n2",), {"n1": Exit(signal=15)})


def test_a_node_that_is_down_has_no_part_in_a_failure_of_the_command() -> None:
    assert end_facts(job("FAILED", exit_code=1), FILES, ("n2",)).lost_nodes == ()


def test_out_of_memory_is_told_of_the_node_that_srun_names() -> None:
    files = RunFiles(nodes=("n1", "n2"), slurm_log="srun: error: n2: task 1: Out Of Memory\n")
    exits = end_facts(job("OUT_OF_MEMORY"), files).exits
    assert exits == {"n1": Exit(signal=9), "n2": Exit(signal=9, out_of_memory=True)}


def test_out_of_memory_without_a_name_is_told_of_what_failed() -> None:
    files = RunFiles(nodes=("n1", "n2"), exits={"n1": (0, 5), "n2": (137, 6)})
    exits = end_facts(job("OUT_OF_MEMORY"), files).exits
    assert exits == {"n1": Exit(code=0), "n2": Exit(signal=9, out_of_memory=True)}


def test_a_preemption_of_slurms_own_is_told() -> None:
    assert end_facts(job("PREEMPTED"), FILES).preempted


def test_a_job_that_never_began_has_no_exits() -> None:
    facts = end_facts(SlurmJob(7, "sdrs-x.1", "CANCELLED"), FILES)
    assert (facts.exits, facts.nodes, facts.started_unix_ms) == ({}, (), 0)


def test_the_files_of_an_end_are_awaited_for_a_while() -> None:
    over = RunFiles(nodes=("n1",), over_unix_ms=1)
    failed = job("FAILED", exit_code=3)
    assert not is_settled(failed, FILES, now_unix=205, settle_seconds=10)
    assert live_facts(failed, FILES).state is RunState.RUNNING
    assert is_settled(failed, over, now_unix=205, settle_seconds=10)
    assert is_settled(failed, FILES, now_unix=210, settle_seconds=10)
    assert is_settled(job("CANCELLED"), FILES, now_unix=201, settle_seconds=10)


def test_a_job_that_slurm_forgot_is_unknown_unless_its_script_came_to_its_end() -> None:
    files = RunFiles(nodes=("n1",), exits={"n1": (75, 5)})
    facts = forgotten_facts(7, files)
    assert (facts.state, facts.exits) == (RunState.UNKNOWN, {})
    assert "no longer knows job 7" in facts.detail


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:4", (4, "")),
        ("gpu:a100:8(S:0-1)", (8, "a100")),
        ("gpu:h100_80gb:8(S:0-1),nvme:1", (8, "h100_80gb")),
        ("nic:2,gpu:2", (2, "")),
        ("gpu:a100:4(S:0),gpu:v100:2(S:1)", (6, "")),
        ("(null)", (0, "")),
        ("notgpu:4", (0, "")),
    ],
)
def test_gpus_are_read_from_gres(gres: str, gpus: tuple[int, str]) -> None:
    assert gpus_of(gres) == gpus


@pytest.mark.parametrize(
    ("state", "reason", "is_up", "problem"),
    [
        ("idle", "none", True, ""),
        ("mixed", "none", True, ""),
        ("allocated", "none", True, ""),
        ("idle~", "none", True, ""),
        ("mixed*", "none", False, "slurmd does not answer"),
        ("down*", "Not responding", False, "down: Not responding"),
        ("drained", "bad | fan", False, "drained: bad | fan"),
        ("draining", "xid 79", False, "draining: xid 79"),
        ("maint", "none", False, "maint"),
        ("reserved", "none", False, "reserved"),
    ],
)
def test_a_node_that_takes_nothing_says_why(state: str, reason: str, is_up: bool, problem: str) -> None:
    (facts,) = node_facts([SlurmNode("n1", state, "gpu:2", "train", "(null)", reason)])
    assert (facts.is_up, facts.problem) == (is_up, problem)


def test_partitions_and_features_are_groups_of_a_node() -> None:
    lines = [SlurmNode("n1", "idle", "gpu:2", partition, "rack1,ib", "none") for partition in ("train", "debug")]
    (facts,) = node_facts(lines)
    assert facts.groups == {"train", "debug", "rack1", "ib"}
