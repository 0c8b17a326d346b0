"""I5, I7: what looks at fragments amount to, for copies, codes, and blobs that are mirrored in another pool."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.soundness import Look, is_readable, judge

G, B, U = Look.GOOD, Look.BAD, Look.UNDECIDED


def blob_of(code: str, count: int, name: str = "blob") -> Blob:
    indexes = [0] * count if code == MIRROR else range(count)
    holders = (Holder(NodeId(f"{name}-{n}"), DiskId("d"), index, "h") for n, index in enumerate(indexes))
    return Blob(BlobId(name), 0, 10, "h", code, tuple(holders))


def looked(blob: Blob, looks: list[Look]) -> dict[tuple[BlobId, Holder], Look]:
    return {(blob.id, holder): look for holder, look in zip(blob.holders, looks, strict=True)}


@pytest.mark.parametrize(
    ("code", "looks", "dispensable", "is_lost"),
    [
        (MIRROR, [G, B], [1], False),
        (MIRROR, [U, B], [1], False),
        (MIRROR, [B, B], [], True),
        ("4+2", [G, G, G, G, B, B], [4, 5], False),
        ("4+2", [B, B, G, G, G, G], [0, 1], False),
        ("4+2", [B, B, U, U, U, U], [0, 1], False),
        ("4+2", [B, B, B, G, G, U], [], True),
        ("4+2", [B, B, B, U, U, U], [], True),
    ],
)
def test_what_is_bad_is_dispensable_while_enough_others_may_be_good(
    code: str, looks: list[Look], dispensable: list[int], is_lost: bool
) -> None:
    blob = blob_of(code, len(looks))
    judgement = judge([blob], looked(blob, looks))
    assert judgement.dispensable == {(blob.id, blob.holders[n]) for n in dispensable}
    assert judgement.is_lost is is_lost


def test_one_index_on_two_nodes_counts_once() -> None:
    blob = blob_of("4+2", 4)
    twice = replace(blob.holders[0], node_id=NodeId("another"))
    assert not is_readable(blob, [*blob.holders[:3], twice])
    assert is_readable(blob, [*blob.holders, twice])


@pytest.mark.parametrize(
    ("mirror_looks", "dispensable", "is_lost"), [([G, B], True, False), ([U, U], False, False), ([B, B], False, True)]
)
def test_a_mirror_brings_back_what_its_own_fragments_cannot(
    mirror_looks: list[Look], dispensable: bool, is_lost: bool
) -> None:
    """Only one that is certainly good makes the bad ones dispensable; one that may be good keeps it from being lost."""
    blob, mirror = blob_of("4+2", 6), blob_of(MIRROR, 2, "mirror")
    bad = looked(blob, [G, G, G, B, B, B])
    judgement = judge([blob, mirror], bad | looked(mirror, mirror_looks))
    assert ((blob.id, blob.holders[3]) in judgement.dispensable) is dispensable
    assert judgement.is_lost is is_lost


@given(st.integers(1, 6), st.integers(1, 3), st.lists(st.sampled_from([G, B, U]), min_size=9, max_size=9))
def test_what_is_dispensable_never_includes_what_is_needed(data: int, parity: int, looks: list[Look]) -> None:
    blob = blob_of(f"{data}+{parity}", data + parity)
    looks = looks[: data + parity]
    judgement = judge([blob], looked(blob, looks))
    left = [holder for holder in blob.holders if (blob.id, holder) not in judgement.dispensable]
    possible = [holder for holder, look in zip(blob.holders, looks, strict=True) if look is not B]
    assert judgement.is_lost is not is_readable(blob, possible)
    assert is_readable(blob, left)
    if judgement.is_lost:
        assert left == list(blob.holders)


def test_any_m_bad_of_a_code_are_dispensable_and_no_m_plus_one_are() -> None:
    blob = blob_of("4+2", 6)
    for count, is_lost in ((2, False), (3, True)):
        for bad in combinations(range(6), count):
            looks = [B if n in bad else G for n in range(6)]
            assert judge([blob], looked(blob, looks)).is_lost is is_lost
