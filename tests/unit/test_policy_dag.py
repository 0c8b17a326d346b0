"""Jobs that wait for each other in a circle are found, with the way around it."""

from __future__ import annotations

from sdrs_scheduler.policy.dag import find_cycle


def test_a_graph_without_a_circle_is_fine() -> None:
    assert find_cycle({"train": ["prep", "tokens"], "prep": ["fetch"], "tokens": ["fetch"], "fetch": []}) is None
    assert find_cycle({"train": ["done-long-ago"]}) is None


def test_only_the_circle_is_told_and_not_the_way_to_it() -> None:
    depends_on = {"report": ["train"], "train": ["prep"], "prep": ["fetch"], "fetch": ["train"]}
    assert find_cycle(depends_on) == ("train", "prep", "fetch", "train")


def test_a_job_that_waits_for_itself_is_a_circle() -> None:
    assert find_cycle({"prep": [], "train": ["prep", "train"]}) == ("train", "train")


def test_a_circle_behind_a_branch_that_ends_is_found() -> None:
    assert find_cycle({"a": ["x", "b"], "x": [], "b": ["x", "c"], "c": ["b"]}) == ("b", "c", "b")


def test_a_chain_longer_than_the_stack_is_walked() -> None:
    chain = {str(number): [str(number + 1)] for number in range(20_000)}
    assert find_cycle(chain) is None
    chain["20000"] = ["0"]
    cycle = find_cycle(chain)
    assert cycle is not None
    assert len(cycle) == 20_002
