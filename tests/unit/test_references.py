"""Which blobs are referred to instead of being stored again (P23)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import Blob, ContentKind, Home, Reference, Save, SaveState, Shard
from sdrs_core.ids import BlobId, JobName, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.references import (
    LEAST_BYTES,
    NewBlob,
    check_references,
    decide_references,
    is_changing,
    is_worth_comparing,
    may_be_unchanged,
    offers_of,
)

HOME = SaveId("a" * 32)


def offer(ordinal: int, content: str, *, home: int | None = None, size_bytes: int = LEAST_BYTES) -> Reference:
    place = Home(HOME, 10, ordinal if home is None else home)
    return Reference(ordinal, size_bytes, f"xxh3 of {content}", f"blake3 of {content}", place)


def new(ordinal: int, content: str, size_bytes: int = LEAST_BYTES) -> NewBlob:
    return NewBlob(ordinal, size_bytes, f"blake3 of {content}")


def test_what_has_the_same_size_and_blake3_is_referred_to_where_it_is_stored() -> None:
    decided = decide_references([offer(1, "a"), offer(2, "b", home=7)], [new(1, "a"), new(2, "b"), new(3, "c")])
    assert decided == {1: offer(1, "a"), 2: offer(2, "b", home=7)}


def test_a_blob_is_recognised_at_another_place() -> None:
    assert decide_references([offer(4, "a")], [new(1, "a")]) == {1: replace(offer(4, "a"), ordinal=1)}


@pytest.mark.parametrize(
    "blob",
    [new(0, "a"), new(1, "a", LEAST_BYTES - 1), new(1, "a", LEAST_BYTES + 1), NewBlob(1, LEAST_BYTES, "")],
    ids=["the first", "a small one", "of another size", "not hashed"],
)
def test_some_are_always_stored(blob: NewBlob) -> None:
    assert (
        decide_references([offer(0, "a"), offer(1, "a"), offer(2, "a", size_bytes=blob.size_bytes - 7)], [blob]) == {}
    )


def test_what_is_stored_compressed_is_offered_and_checked_as_what_was_saved() -> None:
    blob = Blob(BlobId("b"), 1, 5, "stored", blake3="blake3 of a", packing=f"zstd:{LEAST_BYTES}:ab")
    first = Blob(BlobId("c"), 0, 9, "first")
    save = Save(
        HOME,
        JobName("j"),
        10,
        1,
        1,
        PoolName("p"),
        ContentKind.STATE,
        SaveState.COMMITTED,
        Level.L1,
        9 + LEAST_BYTES,
        1,
    )
    home = Shard(HOME, 0, ContentKind.STATE, 9 + LEAST_BYTES, "", (first, blob))
    _, found = offers = offers_of(save, home)
    assert (found.size_bytes, found.hash) == (LEAST_BYTES, "ab")
    decided = decide_references(offers, [new(1, "a")])
    shard = Shard(SaveId("d" * 32), 0, ContentKind.STATE, 0, "", (first,), references=tuple(decided.values()))
    assert check_references(shard, [home]) == ""
    other = replace(home, blobs=(first, replace(blob, packing=f"zstd:{LEAST_BYTES}:cd")))
    assert "does not store its blob 1" in check_references(shard, [other])


def test_what_was_never_hashed_is_not_recognised_by_its_checksum() -> None:
    assert decide_references([replace(offer(1, "a"), blake3="")], [NewBlob(1, LEAST_BYTES, "")]) == {}


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abcd"), max_size=8))
def test_a_stored_blob_stands_for_one_new_one_of_the_same_content(stored: list[str], wanted: list[str]) -> None:
    previous = [offer(ordinal, content) for ordinal, content in enumerate(stored)]
    decided = decide_references(previous, [new(ordinal, content) for ordinal, content in enumerate(wanted)])
    homes = [reference.home for reference in decided.values()]
    assert len(set(homes)) == len(homes)
    for ordinal, reference in decided.items():
        assert ordinal == reference.ordinal > 0
        assert stored[reference.home.ordinal] == wanted[ordinal]
    for content in "abc":
        later = sum(content == known for known in wanted[1:])
        assert sum(wanted[ordinal] == content for ordinal in decided) == min(later, stored.count(content))


def test_what_refers_offers_the_true_homes() -> None:
    save = Save(
        SaveId("b" * 32),
        JobName("job"),
        20,
        1,
        1,
        PoolName("p"),
        ContentKind.STATE,
        SaveState.COMMITTED,
        Level.L1,
        1,
        1,
    )
    own = Blob(BlobId("x"), 0, 5, "xxh3", blake3="blake3")
    shard = Shard(save.save_id, 0, ContentKind.STATE, 5, "", (own,), references=(offer(1, "a"),))
    assert offers_of(save, shard) == (Reference(0, 5, "xxh3", "blake3", Home(save.save_id, 20, 0)), offer(1, "a"))


def test_blake3_is_computed_for_what_may_be_the_same_and_not_for_what_changes_all_the_time() -> None:
    before = [offer(1, "a"), offer(2, "b")]
    assert is_worth_comparing(before, 1, LEAST_BYTES)
    assert is_worth_comparing(before, 9, LEAST_BYTES)  # it may have moved
    assert not is_worth_comparing(before, 1, LEAST_BYTES + 1)
    changed = [replace(one, blake3="") if one.ordinal == 1 else one for one in before]
    assert not is_worth_comparing(changed, 1, LEAST_BYTES)
    assert may_be_unchanged(before, LEAST_BYTES, "xxh3 of b")
    assert not may_be_unchanged(before, LEAST_BYTES + 1, "xxh3 of b")
    assert is_changing(before, 1, LEAST_BYTES, "xxh3 of c")
    assert not is_changing(before, 1, LEAST_BYTES, "xxh3 of b")  # it has only moved
    assert not is_changing(before, 3, LEAST_BYTES, "xxh3 of c")  # nothing was there


def test_a_shard_with_references_is_complete_has_its_own_first_blob_and_names_what_is_stored() -> None:
    stored = Blob(BlobId("s"), 1, LEAST_BYTES, "xxh3 of a", blake3="blake3 of a")
    home = Shard(HOME, 0, ContentKind.STATE, 0, "", (stored,))
    first = Blob(BlobId("x"), 0, 5, "hash")
    shard = Shard(SaveId("b" * 32), 0, ContentKind.STATE, 5, "", (first,), references=(offer(1, "a"),))
    assert check_references(shard, [home]) == ""
    assert "does not store" in check_references(shard, [None])
    other = replace(home, blobs=(replace(stored, blake3="blake3 of b"),))
    assert "does not store" in check_references(shard, [other])
    unhashed = replace(offer(1, "a"), blake3="")
    nameless = replace(home, blobs=(replace(stored, blake3=""),))
    assert "does not store" in check_references(replace(shard, references=(unhashed,)), [nameless])
    twice = replace(shard, references=(offer(1, "a"), replace(offer(1, "a"), ordinal=2)))
    assert "twice" in check_references(twice, [home, home])
    assert "places" in check_references(replace(shard, references=(replace(offer(1, "a"), ordinal=2),)), [home])
    rootless = replace(shard, blobs=(replace(first, ordinal=1),), references=(replace(offer(1, "a"), ordinal=0),))
    assert "its own" in check_references(rootless, [home])
