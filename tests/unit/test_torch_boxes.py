"""Parts of stored tensors: what is read for one, and where it is put, against torch's own narrowing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdrs.state.torch_arrays import assign
from sdrs.torch.boxes import Box, merged, place, runs


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    lengths = tuple(draw(st.integers(0, size - offset)) for size, offset in zip(shape, offsets, strict=True))
    return Box(shape, offsets, lengths)


def expected_of(box: Box, stored: torch.Tensor) -> torch.Tensor:
    return stored[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.lengths, strict=True))]


@given(boxes(), st.integers(0, 40), st.data())
def test_what_is_read_is_put_where_it_belongs(box: Box, gap_elements: int, data: st.DataObject) -> None:
    count = torch.Size(box.shape).numel()
    stored = torch.arange(1.0, count + 1).reshape(box.shape)
    target = torch.zeros(box.lengths)
    if data.draw(st.booleans()) and target.ndim:
        target = torch.zeros(box.lengths[::-1]).permute(*range(target.ndim - 1, -1, -1))
    placed = 0
    for first, end in runs(box, gap_elements):
        while first < end:
            border = data.draw(st.integers(first + 1, end))
            placed += place(target, box, first, stored.flatten()[first:border], assign)
            first = border
    assert torch.equal(target, expected_of(box, stored))
    assert placed == box.element_count


@given(boxes(), st.integers(0, 40))
def test_no_more_is_read_than_gaps_that_are_small(box: Box, gap_elements: int) -> None:
    found = list(runs(box, gap_elements))
    wanted = set(expected_of(box, torch.arange(torch.Size(box.shape).numel()).reshape(box.shape)).flatten().tolist())
    read = [element for first, end in found for element in range(first, end)]
    assert len(read) == len(set(read))
    assert wanted <= set(read)
    assert found == sorted(found)
    if not gap_elements:
        assert set(read) == wanted
    if wanted:
        assert (min(read), max(read)) == (min(wanted), max(wanted))


def test_columns_of_long_rows_are_read_row_by_row() -> None:
    assert list(runs(Box((3, 100), (1, 10), (2, 5)), gap_elements=50)) == [(110, 115), (210, 215)]
    assert list(runs(Box((3, 100), (1, 10), (2, 5)), gap_elements=95)) == [(110, 215)]


@pytest.mark.parametrize("box", [((3,), (2,), (2,)), ((3,), (-1,), (1,)), ((3, 3), (0,), (1,))])
def test_a_part_outside_of_its_tensor_is_refused(box: Any) -> None:
    with pytest.raises(ValueError):
        Box(*box)


def test_ranges_are_merged_where_they_touch() -> None:
    assert merged([(5, 9), (0, 3), (3, 4), (8, 12), (20, 21)]) == [(0, 4), (5, 12), (20, 21)]
