"""Where gangs go: whole or not at all, on the right nodes, and where they leave the most room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.view import PolicyNode
from tests.support.policy import NOW, a_view, all_of, preempted, running, some_nodes, started, waiting, where


def test_a_gang_gets_all_of_its_nodes_and_distinct_gpus() -> None:
    decisions = decide(a_view(some_nodes(3), [waiting("llm", 8, 2)]))
    assert where(decisions, "llm") == {"n1": all_of(), "n2": all_of()}


def test_a_gang_that_fits_only_in_part_gets_nothing() -> None:
    view = a_view(some_nodes(3), [waiting("llm", 8, 3)], [running("old", {"n2": (0,)})])
    assert started(decide(view)) == []


def test_two_gangs_that_could_hold_half_of_each_others_nodes_run_one_after_the_other() -> None:
    pending = [waiting("first", 8, 3, since=20), waiting("second", 8, 3, since=10)]
    nodes = some_nodes(4)
    decisions = decide(a_view(nodes, pending))
    assert started(decisions) == ["first"]
    done = decide(a_view(nodes, [pending[1]]))
    assert started(done) == ["second"]


def test_gaps_are_filled_before_whole_nodes_are_broken() -> None:
    busy = [running("a", {"n1": (0, 1)}), running("b", {"n3": (0, 1, 2, 3, 4)})]
    decisions = decide(a_view(some_nodes(3), [waiting("small", 2)], busy))
    assert where(decisions, "small") == {"n3": (5, 6)}


def test_small_jobs_leave_room_for_a_large_one() -> None:
    pending = [*(waiting(f"small{number}", 2, since=100 - number) for number in range(4)), waiting("large", 8, since=1)]
    decisions = decide(a_view(some_nodes(2), pending))
    assert started(decisions) == ["small0", "small1", "small2", "small3", "large"]


def test_the_lowest_free_gpus_are_taken() -> None:
    decisions = decide(a_view(some_nodes(1), [waiting("job", 3)], [running("old", {"n1": (0, 2)})]))
    assert where(decisions, "job") == {"n1": (1, 3, 4)}


def test_who_wants_a_node_for_itself_gets_an_empty_one_and_lets_nobody_in() -> None:
    alone = waiting("alone", 2, exclusive=True, since=50)
    view = a_view(some_nodes(2), [alone, waiting("other", 4, 2, since=10)], [running("old", {"n1": (0,)})])
    decisions = decide(view)
    assert where(decisions, "alone") == {"n2": (0, 1)}
    assert started(decisions) == ["alone"]


def test_a_job_without_gpus_runs_on_a_full_node_but_not_beside_an_exclusive_one() -> None:
    full = running("full", {"n1": all_of()})
    assert started(decide(a_view(some_nodes(1), [waiting("prep", 0)], [full]))) == ["prep"]
    alone = replace(full, ask=replace(full.ask, exclusive=True, preemptible=False))
    assert started(decide(a_view(some_nodes(1), [waiting("prep", 0)], [alone]))) == []


def test_an_exclusive_job_does_not_join_one_without_gpus() -> None:
    view = a_view(some_nodes(1), [waiting("alone", 1, exclusive=True)], [running("prep", {"n1": ()})])
    assert started(decide(view)) == []


NODES = [
    PolicyNode("a", 8, "A100", frozenset({"east"})),
    PolicyNode("b", 8, "H100", frozenset({"west"})),
    PolicyNode("c", 8, "H100", frozenset({"east"}), executor="slurm"),
    PolicyNode("d", 8, "H100", frozenset({"east"}), is_open=False),
]


@pytest.mark.parametrize(
    ("facts", "node"),
    [
        ({}, "a"),
        ({"gpu_type": "H100"}, "b"),
        ({"node_group": "west"}, "b"),
        ({"executor": "slurm"}, "c"),
        ({"excluded_nodes": frozenset({"a"})}, "b"),
        ({"gpu_type": "H100", "node_group": "east"}, None),
    ],
)
def test_a_job_goes_only_where_its_wishes_are_met_and_the_node_is_open(
    facts: dict[str, object], node: str | None
) -> None:
    decisions = decide(a_view(NODES, [waiting("job", 8, **facts)]))
    assert [list(start.placement) for start in decisions.starts] == ([] if node is None else [[node]])


def test_jobs_that_wait_for_others_or_for_their_pause_do_not_start() -> None:
    pending = [waiting("next", 1, waits_for=("prep (running)",)), waiting("again", 1, eligible_unix=NOW + 5)]
    decisions = decide(a_view(some_nodes(1), pending))
    assert (started(decisions), preempted(decisions)) == ([], [])
