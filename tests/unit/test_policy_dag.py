"""Jobs that wait for each other in a circle are refused, with the way around it."""

from __future__ import annotations

import pytest

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.policy.dag import check_acyclic, find_cycle


def test_a_graph_without_a_circle_is_fine() -> None:
    check_acyclic({"train": ["prep", "tokens"], "prep": ["fetch"], "tokens": ["fetch"], "fetch": []})
    check_acyclic({"train": ["done-long-ago"]})


def test_the_error_names_the_path_and_only_the_circle() -> None:
    depends_on = {"report": ["train"], "train": ["prep"], "prep": ["fetch"], "fetch": ["train"]}
    with pytest.raises(InvalidArgumentError, match="train → prep → fetch → train; remove one of these depends_on"):
        check_acyclic(depends_on)


def test_a_job_that_waits_for_itself_is_told_so() -> None:
    with pytest.raises(InvalidArgumentError, match="job train depends on itself"):
        check_acyclic({"prep": [], "train": ["prep", "train"]})


def test_a_circle_behind_a_branch_that_ends_is_found() -> None:
    assert find_cycle({"a": ["x", "b"], "x": [], "b": ["x", "c"], "c": ["b"]}) == ("b", "c", "b")


def test_a_chain_longer_than_the_stack_is_walked() -> None:
    chain = {str(number): [str(number + 1)] for number in range(20_000)}
    assert find_cycle(chain) is None
    chain["20000"] = ["0"]
    cycle = find_cycle(chain)
    assert cycle is not None
    assert len(cycle) == 20_002
