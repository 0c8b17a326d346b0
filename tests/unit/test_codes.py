"""How a blob is cut into fragments: sizes and places only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checksums import BLOCK_BYTES, block_count
from sdrs_core.codes import MIRROR, Code, check_code, parse_code
from sdrs_core.errors import InvalidArgumentError

codes = st.builds(Code, st.integers(1, 20), st.integers(1, 6))
sizes = st.integers(0, 80 * BLOCK_BYTES)


@given(codes, sizes)
def test_data_fragments_hold_every_byte_once(code: Code, size_bytes: int) -> None:
    assert sum(code.fragment_bytes(size_bytes, index) for index in range(code.data)) == size_bytes


@given(codes, sizes)
def test_parity_is_as_long_as_the_longest_data_fragment(code: Code, size_bytes: int) -> None:
    longest = max(code.fragment_bytes(size_bytes, index) for index in range(code.data))
    assert {code.fragment_bytes(size_bytes, index) for index in range(code.data, code.total)} == {longest}


@given(codes, sizes)
def test_a_fragment_is_the_sum_of_its_blocks(code: Code, size_bytes: int) -> None:
    for index in range(code.total):
        blocks = [code.block_bytes(size_bytes, stripe, index) for stripe in range(code.stripe_count(size_bytes))]
        assert sum(blocks) == code.fragment_bytes(size_bytes, index)
        # Only the last may be short: byte ranges of a fragment are found by counting blocks.
        assert all(block == BLOCK_BYTES for block in blocks[:-1])


@given(codes, sizes)
def test_plain_blocks_are_where_they_are_said_to_be(code: Code, size_bytes: int) -> None:
    for block in range(block_count(size_bytes)):
        stripe, index = code.place_of(block)
        length = min(BLOCK_BYTES, size_bytes - block * BLOCK_BYTES)
        assert code.block_bytes(size_bytes, stripe, index) == length


def test_a_code_is_read_as_it_is_written() -> None:
    assert parse_code("4+2") == Code(4, 2)
    assert str(Code(10, 4)) == "10+4"
    assert parse_code(MIRROR) is None


@pytest.mark.parametrize("text", ["", "4", "4+", "+2", "0+2", "4+0", "200+56", "4+2 ", "4-2", "rs", "999+1"])
def test_what_is_no_code_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="4\\+2"):
        parse_code(text)


def test_the_widest_code_has_255_fragments() -> None:
    assert check_code(200, 55).total == 255
