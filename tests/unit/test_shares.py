"""Which of the fragments that are found count, and who stores what of a blob that comes in (P10, P11)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Group, Pool
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, DiskId, GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.redundancy import Form, Standing, form_of, standing
from sdrs_core.shares import choose, held_places, least_standing
from sdrs_storaged.rpc.assignment import Assignment, assign

NODES = [NodeId(f"n{number}") for number in range(1, 7)]
DOMAINS = {node: f"host-{node}" for node in NODES}
CODED = Form("4+2", 4, 6, spread=True)
MIRRORED = Form(MIRROR, 1, 3, spread=True)
POOL = Pool(PoolName("prod"), Level.L3, data_fragments=4, parity_fragments=2)
BLOB = BlobId("ab" * 16)
LARGE, SMALL = 64 << 20, 1 << 20


def _holders(*places: tuple[int, str]) -> list[Holder]:
    return [Holder(NodeId(node), DiskId(f"disk-{node}"), index, f"hash-{index}") for index, node in places]


def test_a_share_that_two_have_is_taken_from_the_less_crowded_domain() -> None:
    chosen = choose(CODED, _holders((0, "n1"), (1, "n1"), (1, "n2"), (2, "n3")), DOMAINS)
    assert [(holder.fragment_index, holder.node_id) for holder in chosen] == [(0, "n1"), (1, "n2"), (2, "n3")]


def test_of_more_copies_than_there_should_be_the_best_spread_ones_are_taken() -> None:
    domains = {NodeId("n1"): "rack-1", NodeId("n2"): "rack-1", NodeId("n3"): "rack-2", NodeId("n4"): "rack-3"}
    chosen = choose(MIRRORED, _holders((0, "n1"), (0, "n2"), (0, "n3"), (0, "n4")), domains)
    assert len(chosen) == 3
    assert standing(MIRRORED, chosen, domains) is Standing.FULL


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(NODES)), max_size=24, unique=True),
    st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f"]), min_size=6, max_size=6),
)
def test_every_share_is_chosen_once_and_choosing_loses_no_safety(
    places: list[tuple[int, NodeId]], names: list[str]
) -> None:
    domains = dict(zip(NODES, names, strict=True))
    found = _holders(*places)
    chosen = choose(CODED, found, domains)
    assert Counter(holder.fragment_index for holder in chosen) == Counter({index for index, _ in places})
    assert set(chosen) <= set(found)
    if len({node for _, node in places}) == len(places):  # nobody has two: nothing to choose wrongly
        assert standing(CODED, chosen, domains) >= min(standing(CODED, found, domains), Standing.SAFE)


def test_what_one_domain_has_too_much_of_is_placed_again_elsewhere() -> None:
    found = _holders((0, "n1"), (1, "n1"), (2, "n1"), (3, "n2"))
    kept = held_places(CODED, found, DOMAINS, crowded=False)
    assert Counter(kept.values())[NodeId("n1")] == 2
    assert len(held_places(CODED, found, DOMAINS, crowded=True)) == 4


def test_what_is_acknowledged_is_safe_unless_the_pool_says_that_less_will_do() -> None:
    assert least_standing(POOL) is Standing.SAFE
    thrifty = Pool(PoolName("thrifty"), Level.L3, data_fragments=4, parity_fragments=2, allow_degraded=True)
    assert least_standing(thrifty) is Standing.READABLE
    assert least_standing(Pool(PoolName("fast"), Level.L2, mirrors=2)) is Standing.READABLE


def _assigned(
    *members: str, size_bytes: int = LARGE, failing: tuple[str, ...] = (), held: dict[int, NodeId] | None = None
) -> Assignment:
    ids = tuple(map(NodeId, members))
    group = Group(GroupId("prod:g"), PoolName("prod"), 1, ids, ids[0])
    return assign(group, POOL, DOMAINS, BLOB, size_bytes, held=held or {}, failing=tuple(map(NodeId, failing)))


def test_each_member_stores_one_fragment_and_the_primary_one_of_them() -> None:
    assigned = _assigned(*NODES)
    assert sorted(assigned.places) == list(range(6))
    assert sorted(assigned.places.values()) == NODES
    assert len(assigned.others) == 5


def test_a_small_blob_goes_to_the_primary_and_m_others() -> None:
    assigned = _assigned(*NODES, size_bytes=SMALL)
    assert assigned.code is None
    assert assigned.places[0] == "n1"
    assert len(set(assigned.places.values())) == 3


def test_who_gets_a_small_blob_differs_from_blob_to_blob() -> None:
    group = Group(GroupId("prod:g"), PoolName("prod"), 1, tuple(NODES), NODES[0])
    seen = Counter(
        node
        for number in range(60)
        for node in assign(group, POOL, DOMAINS, BlobId(f"{number:032x}"), SMALL, held={}, failing=()).others.values()
    )
    assert set(seen) == set(NODES[1:])


def test_a_member_that_fails_gets_nothing_and_another_stores_two() -> None:
    assigned = _assigned(*NODES, failing=("n3",))
    assert "n3" not in assigned.places.values()
    assert sorted(assigned.places) == list(range(6))
    assert assigned.suffices(assigned.places)


def test_six_fragments_go_to_four_nodes_two_two_one_one() -> None:
    assigned = _assigned("n1", "n2", "n3", "n4")
    assert sorted(Counter(assigned.places.values()).values()) == [1, 1, 2, 2]
    assert assigned.suffices(assigned.places)


def test_members_that_fail_are_tried_all_the_same_where_the_others_are_not_enough() -> None:
    assigned = _assigned(*NODES, failing=("n2", "n3", "n4", "n5"))
    assert set(assigned.places.values()) == set(NODES)


@pytest.mark.parametrize(("lost", "enough"), [([], True), ([3], True), ([3, 4], False)])
def test_a_blob_is_good_while_losing_any_domain_leaves_enough(lost: list[int], enough: bool) -> None:
    assigned = _assigned(*NODES)
    assert assigned.suffices(set(assigned.places) - set(lost)) is enough


def test_what_is_held_stays_where_it_is_and_is_not_written_again() -> None:
    held = {0: NodeId("n4"), 5: NodeId("n2")}
    assigned = _assigned("n1", "n2", "n3", "n4", "n5", held=held)
    assert assigned.places.items() >= held.items()
    assert set(assigned.new) == {1, 2, 3, 4}
    assert assigned.suffices(assigned.places)


def test_in_a_pool_of_copies_every_member_that_does_not_fail_gets_one() -> None:
    pool = Pool(PoolName("fast"), Level.L2, mirrors=3)
    group = Group(GroupId("fast:g"), PoolName("fast"), 1, tuple(NODES[:3]), NODES[1])
    assigned = assign(group, pool, DOMAINS, BLOB, LARGE, held={}, failing=[NODES[2]])
    assert assigned.places == {0: "n2", 1: "n1"}
    assert form_of(pool, LARGE) == assigned.form
