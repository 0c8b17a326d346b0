"""How well a blob is stored, and where its fragments go (P10)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, DiskId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.redundancy import Form, Standing, form_of, place, present_form, standing, worth

PROD = Pool(PoolName("prod"), Level.L3, data_fragments=4, parity_fragments=2)
FAST = Pool(PoolName("fast"), Level.L2, mirrors=2)
CODED = form_of(PROD, 4 * BLOCK_BYTES)
NODES = [NodeId(f"n{number}") for number in range(1, 9)]
APART = {node: f"d-{node}" for node in NODES}


def held(*places: tuple[str, int]) -> list[Holder]:
    return [Holder(NodeId(node), DiskId("d"), index, "hash") for node, index in places]


def blob(code: str, holders: list[Holder], size_bytes: int = 4 * BLOCK_BYTES) -> Blob:
    return Blob(BlobId("b"), 0, size_bytes, "hash", code, tuple(holders))


def test_a_blob_of_a_stripe_is_coded_and_a_smaller_one_mirrored_as_often_as_may_be_lost() -> None:
    assert Form("4+2", 4, 6, spread=True) == CODED
    assert form_of(PROD, 4 * BLOCK_BYTES - 1) == Form(MIRROR, 1, 3, spread=True)
    assert form_of(FAST, 1 << 40) == Form(MIRROR, 1, 2)


def test_all_fragments_in_domains_of_their_own_are_full() -> None:
    assert standing(CODED, held(*((f"n{i + 1}", i) for i in range(6))), APART) is Standing.FULL


def test_a_missing_fragment_is_safe_and_two_are_not() -> None:
    five = held(*((f"n{i + 1}", i) for i in range(5)))
    assert standing(CODED, five, APART) is Standing.SAFE
    assert standing(CODED, five[:4], APART) is Standing.READABLE
    assert standing(CODED, five[:3], APART) is Standing.LOST


def test_six_fragments_over_four_nodes_are_safe_and_not_full() -> None:
    spread = held(("n1", 0), ("n1", 1), ("n2", 2), ("n2", 3), ("n3", 4), ("n4", 5))
    assert standing(CODED, spread, APART) is Standing.SAFE


def test_three_fragments_in_one_domain_are_not_safe() -> None:
    crowded = held(("n1", 0), ("n1", 1), ("n1", 2), ("n2", 3), ("n3", 4), ("n4", 5))
    assert standing(CODED, crowded, APART) is Standing.READABLE


def test_nodes_that_share_a_domain_fall_together() -> None:
    together = {**APART, NodeId("n2"): "d-n1", NodeId("n3"): "d-n1"}
    assert standing(CODED, held(*((f"n{i + 1}", i) for i in range(6))), together) is Standing.READABLE


def test_the_same_fragment_twice_counts_once() -> None:
    twice = held(("n1", 0), ("n2", 0), ("n3", 1), ("n4", 2), ("n5", 2))
    assert standing(CODED, twice, APART) is Standing.LOST


def test_a_fragment_that_two_domains_have_depends_on_neither() -> None:
    doubled = held(("n1", 0), ("n2", 0), ("n3", 1), ("n4", 2), ("n5", 3))
    assert standing(CODED, doubled, APART) is Standing.READABLE
    assert standing(CODED, [*doubled, *held(("n6", 4))], APART) is Standing.SAFE


def test_copies_on_one_node_are_one_copy() -> None:
    form = form_of(PROD, 1)
    assert standing(form, held(("n1", 0), ("n1", 0)), APART) is Standing.READABLE
    assert standing(form, held(("n1", 0), ("n2", 0)), APART) is Standing.SAFE
    assert standing(form, held(("n1", 0), ("n2", 0), ("n3", 0)), APART) is Standing.FULL


def test_the_worst_blob_is_what_a_shard_is_worth() -> None:
    full = blob("4+2", held(*((f"n{i + 1}", i) for i in range(6))))
    assert worth(PROD, [full], APART) == (Level.L3, False)
    missing = blob("4+2", held(*((f"n{i + 1}", i) for i in range(5))))
    assert worth(PROD, [full, missing], APART) == (Level.L3, True)
    unsafe = blob("4+2", held(*((f"n{i + 1}", i) for i in range(4))))
    assert worth(PROD, [full, missing, unsafe], APART) == (Level.L1, True)
    lost = blob("4+2", held(("n1", 0)))
    assert worth(PROD, [lost, full], APART) == (Level.NONE, True)


def test_a_copy_that_is_being_dropped_counts_for_nothing() -> None:
    holders = held(*((f"n{i + 1}", i) for i in range(6)))
    dropping = [Holder(h.node_id, h.disk_id, h.fragment_index, h.fragment_hash, h.fragment_index < 2) for h in holders]
    assert worth(PROD, [blob("4+2", dropping)], APART) == (Level.L1, True)


def test_what_is_stored_in_another_form_than_the_pool_wants_is_degraded() -> None:
    mirrored = blob(MIRROR, held(("n1", 0), ("n2", 0)))
    assert present_form(mirrored, PROD) == Form(MIRROR, 1, 2)
    assert worth(PROD, [mirrored], APART) == (Level.L2, True)
    other = blob("2+1", held(("n1", 0), ("n2", 1), ("n3", 2)))
    assert worth(PROD, [other], APART) == (Level.L3, True)


@pytest.mark.parametrize(("copies", "level"), [(1, Level.L1), (2, Level.L2)])
def test_mirrors_are_worth_their_number(copies: int, level: Level) -> None:
    mirrored = blob(MIRROR, held(*((f"n{i + 1}", 0) for i in range(copies))))
    assert worth(FAST, [mirrored], APART)[0] is level


def test_fragments_go_one_to_a_member() -> None:
    assert place(CODED, NODES[:6], APART) == dict(enumerate(NODES[:6]))


def test_with_four_members_six_fragments_lie_two_two_one_one() -> None:
    placed = place(CODED, NODES[:4], APART)
    assert sorted(Counter(placed.values()).values()) == [1, 1, 2, 2]


def test_no_domain_gets_more_than_can_be_lost() -> None:
    assert len(place(CODED, NODES[:2], APART)) == 4
    assert len(place(CODED, NODES[:2], APART, crowded=True)) == 6


def test_what_is_held_stays_where_it_is() -> None:
    kept = {5: NODES[0], 1: NODES[3]}
    placed = place(CODED, NODES[:6], APART, held=kept)
    assert placed.items() >= kept.items()
    assert len(set(placed.values())) == 6


def test_small_blobs_take_turns_beside_the_primary() -> None:
    form = form_of(PROD, 1)
    rounds = [place(form, NODES[:6], APART, turn=turn) for turn in range(5)]
    assert all(placed[0] == NODES[0] and len(set(placed.values())) == 3 for placed in rounds)
    assert {node for placed in rounds for node in placed.values()} == set(NODES[:6])


def test_copies_never_share_a_node() -> None:
    assert len(place(form_of(PROD, 1), NODES[:2], APART)) == 2


@given(
    st.integers(1, 10),
    st.integers(1, 5),
    st.lists(st.integers(0, 7), min_size=1, max_size=20),
    st.integers(0, 30),
)
def test_whatever_finds_its_place_is_safe(data: int, parity: int, racks: list[int], turn: int) -> None:
    form = Form(f"{data}+{parity}", data, data + parity, spread=True)
    members = [NodeId(f"m{number}") for number in range(len(racks))]
    domains = {node: f"rack-{rack}" for node, rack in zip(members, racks, strict=True)}
    placed = place(form, members, domains, turn=turn)
    per_domain = Counter(domains[node] for node in placed.values())
    assert max(per_domain.values()) <= parity
    if len(placed) == form.total:
        holders = held(*((node, index) for index, node in placed.items()))
        assert standing(form, holders, domains) >= Standing.SAFE
    else:
        # Only because there are too few domains for all.
        assert len(set(racks)) < form.least_domains
