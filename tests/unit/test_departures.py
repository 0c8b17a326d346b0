"""Whether a cluster can do without a node: for a while, or for good. What cannot be told is refused."""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.cluster import Group, Pool
from sdrs_core.departures import (
    Without,
    is_ok_to_stop,
    is_removable,
    is_safe_to_destroy,
    shortage_without,
)
from sdrs_core.failover import Liveness, NodeFacts, View
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.levels import Level

NODES = tuple(NodeId(f"n{number}") for number in range(7))
N0, N1 = NODES[:2]
FAST = Pool(PoolName("fast"), Level.L2, mirrors=2)
PROD = Pool(PoolName("prod"), Level.L3, data_fragments=4, parity_fragments=2)
SINGLE = Pool(PoolName("single"), Level.L1)
NOTHING = Without()


def view(*pools: Pool, count: int = 7) -> View:
    """Each node leads a group of every pool, with the next ones as members."""
    names = NODES[:count]
    groups = []
    for pool in pools:
        for place, name in enumerate(names):
            members = tuple(dict.fromkeys(names[(place + i) % count] for i in range(pool.member_count)))
            groups.append(Group(GroupId(f"{pool.name}:{name}"), pool.name, 1, members, name, members))
    nodes = {name: NodeFacts(name, name, Liveness.UP) for name in names}
    return View(nodes=nodes, pools={pool.name: pool for pool in pools}, groups=tuple(groups))


def with_node(known: View, node_id: NodeId, **changes: object) -> View:
    return replace(known, nodes={**known.nodes, node_id: replace(known.nodes[node_id], **changes)})  # type: ignore[arg-type]


def test_a_pool_that_would_be_left_with_too_few_domains_is_named() -> None:
    assert shortage_without(view(FAST, PROD), {N0}) == ""
    told = shortage_without(view(FAST, PROD, count=6), {N0})
    assert told.startswith('pool "prod" needs 6 failure domains for 4+2, without n0 it has 5: add 1 node')
    assert shortage_without(view(FAST, PROD, count=6), {N0}, {FAST.name}) == ""
    assert 'pool "single" needs 1 failure domain' in shortage_without(view(SINGLE, count=1), {N0})


def test_a_node_that_takes_no_part_anyway_is_not_missed() -> None:
    six = view(PROD, count=6)
    assert shortage_without(with_node(six, N0, liveness=Liveness.DOWN), {N0}) == ""
    assert shortage_without(with_node(six, N0, cordoned=True), {N0}) == ""
    others_only = replace(PROD, node_ids=NODES[1:])
    assert shortage_without(replace(six, pools={PROD.name: others_only}), {N0}) == ""


def test_who_is_down_does_not_count_as_staying_and_who_is_unheard_makes_it_undecidable() -> None:
    assert shortage_without(with_node(view(PROD), N1, liveness=Liveness.DOWN), {N0})
    told = shortage_without(with_node(view(PROD), N1, liveness=Liveness.UNKNOWN), {N0})
    assert "n1 is not heard yet" in told


def test_a_node_may_be_stopped_while_others_can_go_on_without_it() -> None:
    answer = is_ok_to_stop(N0, view(FAST, PROD), NOTHING)
    assert answer.is_safe
    assert answer.why == "node n0 may be stopped: every checkpoint stays readable, and every pool takes saves"
    # An erasure-coded pool goes on, degraded, with one node less than it has fragments (P10).
    assert is_ok_to_stop(N0, view(PROD, count=6), NOTHING).is_safe


def test_a_node_must_not_be_stopped_if_a_checkpoint_or_a_pool_depends_on_it() -> None:
    unreadable = Without(unreadable=("llm step 7",), unreadable_count=1)
    answer = is_ok_to_stop(N0, view(FAST), unreadable)
    assert not answer.is_safe
    assert "llm step 7" in answer.why
    answer = is_ok_to_stop(N0, view(FAST, count=2), NOTHING)
    assert not answer.is_safe
    assert 'pool "fast" takes no saves' in answer.why
    assert not is_ok_to_stop(N0, view(SINGLE, count=1), NOTHING).is_safe
    # Nobody takes over while failover is paused.
    assert not is_ok_to_stop(N0, replace(view(FAST, count=2), paused=True), NOTHING).is_safe


def test_a_node_may_be_destroyed_once_all_that_it_holds_is_whole_without_it() -> None:
    assert is_safe_to_destroy(N0, view(FAST), Without(held_blobs=3)).is_safe
    short = is_safe_to_destroy(N0, view(FAST), Without(short=("llm step 7",), short_count=9))
    assert not short.is_safe
    assert "llm step 7 and 4 more" in short.why
    assert "sdrs node drain n0" in short.why
    pending = is_safe_to_destroy(N0, view(FAST), Without(pending=("llm step 8",), pending_count=1))
    assert not pending.is_safe


def test_while_a_node_is_not_heard_no_question_is_answered_with_yes() -> None:
    unheard = with_node(view(FAST), N1, liveness=Liveness.UNKNOWN)
    for answer in (
        is_ok_to_stop(N0, unheard, NOTHING),
        is_safe_to_destroy(N0, unheard, NOTHING),
        is_removable(N0, unheard, NOTHING, accept_data_loss=True),
        is_removable(N1, unheard, NOTHING, accept_data_loss=True),
    ):
        assert not answer.is_safe
        assert "not heard yet" in answer.why


def test_a_node_that_is_up_goes_only_with_nothing_on_it_whatever_is_accepted() -> None:
    assert is_removable(N0, view(FAST), NOTHING, accept_data_loss=False).is_safe
    for accept in (True, False):
        answer = is_removable(N0, view(FAST), Without(held_blobs=2), accept_data_loss=accept)
        assert not answer.is_safe
        assert "sdrs node drain n0" in answer.why
        pending = Without(pending=("llm step 8",), pending_count=1)
        assert not is_removable(N0, view(FAST), pending, accept_data_loss=accept).is_safe


def test_a_node_that_is_down_goes_once_others_have_all_of_it_or_the_loss_is_accepted() -> None:
    down = with_node(view(FAST), N0, liveness=Liveness.DOWN)
    assert is_removable(N0, down, Without(held_blobs=2), accept_data_loss=False).is_safe
    short = Without(held_blobs=2, short=("llm step 7",), short_count=1)
    assert "sdrs repair status" in is_removable(N0, down, short, accept_data_loss=False).why
    lost = replace(short, only_here=("llm step 7",), only_here_count=1)
    answer = is_removable(N0, down, lost, accept_data_loss=False)
    assert not answer.is_safe
    assert "llm step 7" in answer.why
    assert "--accept-data-loss" in answer.why
    assert is_removable(N0, down, lost, accept_data_loss=True).is_safe
