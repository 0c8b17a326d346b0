"""Fragments made from other fragments: which of them fail, and when, makes no difference as long as enough are left."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, NotFoundError, UnavailableError
from sdrs_storaged.rpc.fragment_streams import fragment_stream
from sdrs_storaged.rpc.sources import OpenSource, Source
from sdrs_storaged.store.buffers import BufferPool
from tests.support.coded import StoredBlob, changed, flip_sent, pieces_of
from tests.support.stores import hash_of, payload, table_of

BUFFERS = BufferPool(16)
GONE = UnavailableError("the peer closed the data channel")
CODES = st.sampled_from(["1+1", "2+1", "3+2", "4+2", "2+3"])
SIZES = st.one_of(
    st.integers(1, 11 * BLOCK_BYTES), st.integers(1, 11).map(lambda n: n * BLOCK_BYTES), st.integers(1, 3000)
)
# Blobs of some MiB each: few, but of all kinds.
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.data_too_large])
DATA = payload(9 * BLOCK_BYTES + 11)


def made(
    blob: StoredBlob,
    sources: list[Source],
    index: int,
    code: str | None = None,
    opening: OpenSource | None = None,
) -> bytes:
    """The fragment, as it comes; the stream's own word about it is compared."""
    with fragment_stream(opening or blob.open, BUFFERS, blob.facts, sources, index, code) as stream:
        fragment = b"".join(bytes(block) for _, block in stream.blocks())
        assert stream.fragment_hash == hash_of(fragment)
        assert stream.source_table == table_of(blob.data)
        assert stream.size_bytes == len(fragment)
    assert blob.open_count == 0, "every source was closed"
    return fragment


@EXAMPLES
@given(st.data(), CODES, SIZES)
def test_any_fragment_is_rebuilt_while_enough_others_are_left_whoever_fails_whenever(
    given_data: st.DataObject, code: str, size_bytes: int
) -> None:
    blob = StoredBlob(payload(size_bytes, seed=size_bytes), code)
    parsed = blob.facts.erasure_code
    assert parsed
    index = given_data.draw(st.integers(0, parsed.total - 1), label="index")
    order = given_data.draw(st.permutations(range(parsed.total)), label="order")
    failing = given_data.draw(st.sets(st.sampled_from(order), max_size=parsed.parity), label="failing")
    for number in failing:
        after = given_data.draw(st.integers(0, len(blob.pieces[number]) + 1), label=f"{number} fails after")
        blob.failing[f"n{number}", number] = (after, GONE)
    assert made(blob, blob.sources(order), index) == blob.pieces[index]


@EXAMPLES
@given(st.data(), st.one_of(CODES, st.just("mirror")), st.one_of(CODES, st.just("mirror")), SIZES)
def test_a_fragment_of_another_form_is_cut_from_what_is_left(
    given_data: st.DataObject, code: str, other: str, size_bytes: int
) -> None:
    blob = StoredBlob(payload(size_bytes, seed=size_bytes), code)
    sources = blob.sources()
    if code == "mirror":
        sources += [blob.source(0, "second"), blob.source(0, "third")]
    spare = len(sources) - (blob.facts.erasure_code.data if blob.facts.erasure_code else 1)
    for source in given_data.draw(st.lists(st.sampled_from(sources), max_size=spare, unique=True), label="failing"):
        after = given_data.draw(st.integers(0, size_bytes), label=f"{source} fails after")
        blob.failing[source.node.id, source.fragment_index] = (after, GONE)
    wanted = pieces_of(blob.data, other)
    index = given_data.draw(st.integers(0, len(wanted) - 1), label="index")
    assert made(blob, sources, index, other) == wanted[index]


def test_a_source_that_has_the_fragment_is_read_alone_and_others_take_over_from_the_same_stripe() -> None:
    blob = StoredBlob(DATA, "4+2")
    assert made(blob, blob.sources(), 1) == blob.pieces[1]
    assert blob.opened == [("n1", 1, 0)]
    blob.opened.clear()
    blob.failing["n1", 1] = (BLOCK_BYTES, GONE)
    assert made(blob, blob.sources(), 1) == blob.pieces[1]
    assert blob.opened[0] == ("n1", 1, 0)
    assert sorted(blob.opened[1:]) == [(f"n{n}", n, BLOCK_BYTES) for n in (0, 2, 3, 4)]


def test_a_second_node_with_the_same_fragment_takes_over_before_anything_is_computed() -> None:
    blob = StoredBlob(DATA, "4+2")
    blob.failing["n1", 1] = (BLOCK_BYTES, GONE)
    assert made(blob, [blob.source(1), blob.source(1, "twin")], 1) == blob.pieces[1]
    assert blob.opened == [("n1", 1, 0), ("twin", 1, BLOCK_BYTES)]


def test_only_fragments_with_a_wanted_block_are_read() -> None:
    blob = StoredBlob(DATA, "2+1")
    assert made(blob, blob.sources(), 1, "4+2") == pieces_of(DATA, "4+2")[1]
    assert {index for _, index, _ in blob.opened} == {1}


def test_damage_in_mid_stream_is_an_erasure() -> None:
    blob = StoredBlob(DATA, "4+2")
    opening = flip_sent(blob, blob.source(2), BLOCK_BYTES + 5)
    assert made(blob, blob.sources([0, 2, 3, 4, 5]), 1, opening=opening) == blob.pieces[1]
    with pytest.raises(CorruptDataError, match=r"3 of 4.*node n2: block 1 "):
        made(blob, blob.sources([0, 2, 3, 4]), 1, opening=opening)


def test_what_is_left_too_few_of_is_lost_only_if_none_may_come_back() -> None:
    blob = StoredBlob(DATA, "4+2")
    missing = NotFoundError("this node has no fragment 0")
    blob.failing |= {("n0", 0): (0, missing), ("n2", 2): (0, CorruptDataError("its header is damaged"))}
    with pytest.raises(CorruptDataError, match=r"node n0: this node has no.*node n2: its header"):
        made(blob, blob.sources([0, 2, 3, 4, 5]), 1)
    blob.failing["n2", 2] = (0, GONE)
    with pytest.raises(UnavailableError, match=r"node n0: .*node n2: the peer closed"):
        made(blob, blob.sources([0, 2, 3, 4, 5]), 1)
    # Nobody failed, there are just too few: the others may be somewhere.
    with pytest.raises(UnavailableError, match="2 of 4"):
        made(blob, blob.sources([4, 5]), 1)


@pytest.mark.parametrize("seed_of_other", [None, 1], ids=["another hash on record", "another content"])
def test_a_source_that_is_not_what_is_on_record_is_not_taken(seed_of_other: int | None) -> None:
    blob = StoredBlob(DATA, "2+1")
    good = StoredBlob(DATA, "2+1")
    wrong = Source(blob.source(0).node, 0, "0" * 32)
    if seed_of_other is not None:
        wrong = blob.source(0)
        blob.other["n0", 0] = pieces_of(payload(len(DATA), seed=seed_of_other), "2+1")[0]
    assert made(blob, [wrong, *blob.sources([1, 2])], 0) == good.pieces[0]
    with pytest.raises(CorruptDataError, match="on record"):
        made(blob, [wrong], 0)


@pytest.mark.parametrize(("left", "wanted"), [("1 2 3 4 5", 0), ("2 3 4 5 6", 0), ("1 2 3 4 5", 6), ("0 3 4 5 6", 1)])
@pytest.mark.parametrize("wrong", [4, 5])
def test_wrong_parity_with_good_checksums_is_found_out_and_passed_over(left: str, wanted: int, wrong: int) -> None:
    """P9: a bit flipped before it was encoded. The block says by its own checksum that it is fine."""
    blob = StoredBlob(DATA, "4+3")
    blob.other[f"n{wrong}", wrong] = changed(blob.pieces[wrong], BLOCK_BYTES + 77)
    assert made(blob, blob.sources([int(index) for index in left.split()]), wanted) == blob.pieces[wanted]


def test_wrong_parity_without_an_alternative_is_an_error_and_never_an_answer() -> None:
    blob = StoredBlob(DATA, "4+2")
    blob.other["n4", 4] = changed(blob.pieces[4], 3 * BLOCK_BYTES - 1 - BLOCK_BYTES)
    for wanted in (0, 5):
        with pytest.raises(CorruptDataError, match="its parity is wrong"):
            made(blob, blob.sources([1, 2, 3, 4]), wanted)


def test_wrong_parity_is_asked_no_more_once_it_was_found_out() -> None:
    blob = StoredBlob(DATA, "4+2")
    blob.other["n4", 4] = changed(blob.pieces[4], 5)
    with fragment_stream(blob.open, BUFFERS, blob.facts, blob.sources([1, 2, 3, 4, 5]), 0) as stream:
        assert b"".join(bytes(block) for _, block in stream.blocks()) == blob.pieces[0]
        assert [source.fragment_index for source in stream.failures] == [4]
    assert [opened for opened in blob.opened if opened[1] == 4] == [("n4", 4, 0)]


def test_an_empty_blob_needs_a_source_that_has_it() -> None:
    blob = StoredBlob(b"", "mirror")
    blob.failing["n0", 0] = (0, NotFoundError("it has none"))
    assert made(blob, [blob.source(0), blob.source(0, "second")], 0) == b""
    with pytest.raises(CorruptDataError, match="no good copy"):
        made(blob, [blob.source(0)], 0)
