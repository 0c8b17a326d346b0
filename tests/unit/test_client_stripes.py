"""Which parts a read consists of, which fragments it takes, and how long it is patient: decided from numbers alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs.restore.blocks import ParityTable
from sdrs.restore.pace import LEAST_SECONDS, TIMES_TYPICAL, Pace
from sdrs.restore.stripes import MAX_RANGES_PER_BLOB, RANGE_BYTES, Rank, choose, cut, stripes
from sdrs.transfer import Summary
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.codes import Code
from sdrs_core.errors import CorruptDataError
from sdrs_core.ids import BlobId, DiskId, NodeId
from tests.support.stores import hash_of, payload, table_of

COPY = Code(1, 0)
codes = st.one_of(st.just(COPY), st.builds(Code, st.integers(1, 12), st.integers(1, 4)))


def blob_of(size_bytes: int) -> Blob:
    return Blob(BlobId("b" * 32), 0, size_bytes, "hash")


@given(codes, st.integers(0, 1 << 40), st.data())
def test_ranges_cover_all_bytes_once_and_end_where_stripes_do(code: Code, size_bytes: int, data: st.DataObject) -> None:
    blocks = -(-size_bytes // BLOCK_BYTES)
    start = data.draw(st.integers(0, blocks)) * BLOCK_BYTES
    end = min(data.draw(st.integers(start // BLOCK_BYTES, blocks)) * BLOCK_BYTES, size_bytes)
    parts = [*cut(blob_of(size_bytes), code, start, end)]
    assert [byte for part in parts for byte in (part.start, part.end)] == sorted(
        byte for part in parts for byte in (part.start, part.end)
    )
    assert sum(part.end - part.start for part in parts) == max(0, end - start)
    assert all(part.end == end or part.end % code.stripe_bytes == 0 for part in parts)
    assert len(parts) <= MAX_RANGES_PER_BLOB + 1
    assert all(
        part.end - part.start <= max(2 * RANGE_BYTES, -(-size_bytes // 32)) + code.stripe_bytes for part in parts
    )


@given(codes, st.integers(1, 100 * BLOCK_BYTES), st.data())
def test_stripes_cover_a_range_once_and_know_their_blocks(code: Code, size_bytes: int, data: st.DataObject) -> None:
    blocks = -(-size_bytes // BLOCK_BYTES)
    first = data.draw(st.integers(0, blocks - 1))
    last = data.draw(st.integers(first + 1, blocks))
    found = []
    for stripe in stripes(code, size_bytes, first * BLOCK_BYTES, min(last * BLOCK_BYTES, size_bytes)):
        for index in stripe.wanted:
            assert code.place_of(stripe.start_of(index) // BLOCK_BYTES) == (stripe.number, index)
            assert stripe.bytes_of(index) == min(BLOCK_BYTES, size_bytes - stripe.start_of(index))
            found.append(stripe.start_of(index) // BLOCK_BYTES)
        assert stripe.end - stripe.start == sum(map(stripe.bytes_of, stripe.wanted))
    assert found == [*range(first, last)]


def ranks(**tiers: int) -> dict[int, Rank]:
    """By letter: a is fragment 0."""
    return {ord(name) - ord("a"): (tier, 0, ord(name)) for name, tier in tiers.items()}


ALL_WELL = ranks(a=0, b=0, c=0, d=0, e=0, f=0)


def test_plain_fragments_are_read_while_they_are_as_good_as_others() -> None:
    assert choose({0, 1, 2, 3}, 4, ALL_WELL) == [0, 1, 2, 3]
    assert choose({2}, 4, ALL_WELL) == [2]
    assert choose({0, 1, 2, 3}, 4, ranks(a=2, b=1, c=2, d=2, e=2, f=1)) == [0, 1, 2, 3]


def test_others_are_read_to_compute_from_when_a_plain_one_is_worse_or_gone() -> None:
    assert choose({0, 1, 2, 3}, 4, ALL_WELL | ranks(b=1)) == [0, 2, 3, 4]
    assert choose({0, 1, 2, 3}, 4, ALL_WELL | ranks(b=1, c=2)) == [0, 3, 4, 5]
    assert choose({1}, 4, ALL_WELL | ranks(b=1)) == [0, 2, 3, 4]
    without = {index: rank for index, rank in ALL_WELL.items() if index != 2}
    assert choose({2, 3}, 3, without) == [0, 1, 3]


def test_what_is_open_already_is_used_on() -> None:
    assert choose({0, 1}, 2, ranks(a=0, b=-1, c=-1)) == [1, 2]


def test_too_few_are_none() -> None:
    assert choose({0, 1, 2, 3}, 4, ranks(a=0, b=0, c=0)) == []
    assert choose({0}, 1, {}) == []
    # What is wanted is there, though nothing could be computed any more.
    assert choose({0, 1}, 4, ranks(a=0, b=0)) == [0, 1]


def test_patience_follows_what_is_typical_and_not_what_is_late() -> None:
    pace = Pace()
    assert pace.block_patience_seconds == pace.opening_patience_seconds == LEAST_SECONDS
    for _ in range(100):
        pace.note_block(1.0)
    assert pace.block_patience_seconds == pytest.approx(TIMES_TYPICAL, rel=0.01)
    assert pace.opening_patience_seconds == LEAST_SECONDS
    before = pace.block_patience_seconds
    pace.note_block(3600.0)  # a node that stood still
    assert pace.block_patience_seconds < 1.4 * before
    for _ in range(100):
        pace.note_block(0.001)
        pace.note_opening(0.5)
    assert pace.block_patience_seconds == LEAST_SECONDS
    assert pace.opening_patience_seconds == pytest.approx(TIMES_TYPICAL * 0.5, rel=0.01)


def test_a_parity_fragment_that_is_not_the_one_on_record_is_refused() -> None:
    data, parity = payload(3 * BLOCK_BYTES), payload(2 * BLOCK_BYTES, seed=1)
    blob, code = blob_of(len(data)), Code(2, 1)
    holder = Holder(NodeId("n"), DiskId("d"), 2, hash_of(parity))
    good = Summary(len(parity), hash_of(parity), table_of(parity), len(data), hash_of(data), table_of(data))
    table = ParityTable(blob, code, holder, good)
    table.check(1, memoryview(parity)[BLOCK_BYTES:])
    with pytest.raises(CorruptDataError, match="parity block 0"):
        table.check(0, memoryview(parity)[BLOCK_BYTES:])
    other = payload(2 * BLOCK_BYTES, seed=2)
    for bad in (other, parity[:-1]):
        summary = Summary(len(bad), hash_of(bad), table_of(bad), len(data), hash_of(data), table_of(data))
        with pytest.raises(CorruptDataError):
            ParityTable(blob, code, holder, summary)
