"""Why a job waits, in the words that `sdrs job why` prints."""

from __future__ import annotations

from typing import Any

import pytest

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Pending, PolicyNode, Queue, Running
from tests.support.policy import NOW, a_view, all_of, running, some_nodes, waiting, why

TWO = some_nodes(2)


def told(
    job: Pending, others: list[Pending] | None = None, busy: list[Running] | None = None, **facts: Any
) -> tuple[str, str]:
    nodes = facts.pop("nodes", TWO)
    settings = facts.pop("settings", PolicySettings(preemption=False))
    decisions = decide(a_view(nodes, [job, *(others or [])], busy or [], **facts), settings)
    return why(decisions, job.ask.name)


def test_other_jobs_that_it_waits_for_are_named_with_what_they_do() -> None:
    job = waiting("job", waits_for=("prep (running)", "tokens (queued)"))
    assert told(job) == ("dependency", "It waits for prep (running) and tokens (queued).")


def test_the_pause_after_a_failure_is_told() -> None:
    job = waiting("job", eligible_unix=NOW + 35)
    assert told(job) == ("backoff", "It starts again in 35 s: a pause after its last failure.")


def test_what_is_missing_and_when_it_comes_free() -> None:
    busy = [running("old", {"n1": (0, 1)}, left_seconds=1200.0)]
    assert told(waiting("job", 8, 2), [], busy) == (
        "capacity",
        "It needs 2 nodes with 8 GPUs each: 1 of the 2 such nodes has room now, 1 more must come free, in "
        "about 20 min.",
    )


def test_nobody_knows_when_if_those_who_run_do_not_tell_how_long() -> None:
    busy = [running("old", {"n1": all_of()}), running("old2", {"n2": all_of()})]
    assert told(waiting("job", 1), [], busy) == (
        "capacity",
        "It needs 1 node with 1 GPU: 0 of the 2 such nodes have room now, 1 more must come free; nobody knows when, "
        "for some of the jobs that run there do not tell how long they need.",
    )


def test_who_is_ahead_is_named() -> None:
    ahead = [waiting(name, 8, 2, since=1000) for name in ("a", "b", "c", "d")]
    busy = [running("old", {"n1": all_of(), "n2": all_of()}, left_seconds=600.0)]
    reason, sentence = told(waiting("job", 8, 2), ahead, busy)
    assert reason == "capacity"
    assert sentence.endswith(" Ahead of it are a, b, c and 1 more.")


def test_what_is_free_but_kept_for_others_is_told_with_the_remedy() -> None:
    busy = [running("old", {"n1": all_of()}, left_seconds=600.0)]
    gang = waiting("gang", 8, 2, since=1000, left_seconds=3000.0)
    assert told(waiting("job", 1), [gang], busy) == (
        "reserved",
        "It needs 1 node with 1 GPU; what is free is kept for gang, due in 10 min, and nobody knows how long this job "
        "needs (an estimate in its job file would tell). It starts in about 60 min.",
    )
    sentence = told(waiting("job", 1, left_seconds=700.0), [gang], busy)[1]
    assert "this job needs 12 min and would be in the way" in sentence


def test_beyond_the_depth_only_who_is_ahead_is_told() -> None:
    busy = [running("old", {"n1": all_of(), "n2": all_of()})]
    ahead = [waiting("ahead", 8, since=1000)]
    settings = PolicySettings(backfill_depth=0)
    assert told(waiting("job", 1), ahead, busy, settings=settings) == (
        "behind",
        "Its turn has not come. Ahead of it is ahead.",
    )


def test_closed_nodes_are_named_with_why() -> None:
    nodes = [*some_nodes(1), PolicyNode("n2", 8, is_open=False, closed_because="3 strikes"), *some_nodes(3, 4)[2:]]
    assert told(waiting("job", 8, 2), nodes=nodes) == (
        "capacity",
        "It needs 2 nodes with 8 GPUs each, and only 1 of 2 such nodes takes jobs now. Closed: n2 (3 strikes).",
    )


def test_an_executor_without_nodes_is_told() -> None:
    assert told(waiting("job", 1, executor="slurm")) == (
        "capacity",
        "It needs 1 node with 1 GPU, and executor slurm has no nodes yet.",
    )


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (
            waiting("job", 16),
            "It can never start: it needs 1 node with 16 GPUs, and there is no such node. What would help: ask for 8 "
            "GPUs per node at most or add nodes.",
        ),
        (
            waiting("job", 8, 3),
            "It can never start: it needs 3 nodes with 8 GPUs each, and there are 2 such nodes. What would help: ask "
            "for 2 nodes at most or add nodes.",
        ),
        (
            waiting("job", 8, gpu_type="H100"),
            "It can never start: it needs 1 node with 8 GPUs of type H100, and there is no such node. What would help: "
            "leave out gpu_type: H100 or add nodes.",
        ),
        (
            waiting("job", 8, node_group="east", exclusive=True),
            "It can never start: it needs 1 node with 8 GPUs, nobody else on it, in group east, and there is no such "
            "node. What would help: leave out node_group: east or add nodes.",
        ),
        (
            waiting("job", 8, 2, excluded_nodes=frozenset({"n1"})),
            "It can never start: it needs 2 nodes with 8 GPUs each, and there is 1 such node. What would help: allow "
            "the nodes that it excludes (n1), ask for 1 node at most or add nodes.",
        ),
        (
            waiting("job", 8, 2, queue="small"),
            "It can never start: it needs 16 GPUs, and queue small may have 12 at most. Ask for fewer, use another "
            "queue, or raise its max_gpus.",
        ),
    ],
)
def test_what_can_never_start_is_told_with_what_would_help(job: Pending, sentence: str) -> None:
    queue = Queue("small", max_gpus=12)
    # Whether nodes are busy, or closed, makes no difference to what can never be.
    busy = [running("old", {"n1": all_of(), "n2": all_of()})]
    assert told(job, [], busy, queues=[queue]) == ("impossible", sentence)


def test_a_job_that_is_preempted_for_tells_who_leaves() -> None:
    busy = [running(name, {node: all_of()}, priority=1) for name, node in (("a", "n1"), ("b", "n2"))]
    assert told(waiting("job", 8, 2), [], busy, settings=PolicySettings()) == (
        "preempting",
        "a and b save their state and make room for it, in about 60 s.",
    )
