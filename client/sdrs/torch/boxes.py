"""Parts of stored tensors: which elements to read for one, and where each goes. No I/O.

A stored tensor has its elements in order, along the last axis first. A box is a part of it: ``offsets`` and
``lengths`` along each axis. Elements are counted from the tensor's first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sdrs.state.sinks import fill_elements

Assign = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Box:
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        for size, offset, length in zip(self.shape, self.offsets, self.lengths, strict=True):
            if offset < 0 or length < 0 or offset + length > size:
                raise ValueError(f"a part of {self.lengths} at {self.offsets} is not inside of {self.shape}")

    @property
    def element_count(self) -> int:
        return math.prod(self.lengths)

    @property
    def row_elements(self) -> int:
        return math.prod(self.shape[1:])

    @property
    def has_whole_rows(self) -> bool:
        return self.lengths[1:] == self.shape[1:]

    @property
    def inside_row(self) -> Box:
        """What it takes of each of its rows."""
        return Box(self.shape[1:], self.offsets[1:], self.lengths[1:])


def runs(box: Box, gap_elements: int, base: int = 0) -> Iterator[tuple[int, int]]:
    """The (first, end) of elements that have to be read for ``box``, in order.

    Gaps below ``gap_elements`` are read over: blocks are read as a whole anyway.
    """
    if not box.element_count:
        return
    if not box.shape:
        yield base, base + 1
        return
    row, first = box.row_elements, box.offsets[0]
    last = first + box.lengths[0] - 1
    if box.has_whole_rows:
        yield base + first * row, base + (last + 1) * row
    elif row - _extent(box.inside_row) <= gap_elements:
        inside = list(runs(box.inside_row, row))
        yield base + first * row + inside[0][0], base + last * row + inside[-1][1]
    else:
        for number in range(first, last + 1):
            yield from runs(box.inside_row, gap_elements, base + number * row)


def _extent(box: Box) -> int:
    """How many elements there are from its first to its last."""
    if not box.shape:
        return 1
    inside = _extent(box.inside_row)
    return (box.lengths[0] - 1) * box.row_elements + inside


def place(target: Any, box: Box, first: int, values: Any, assign: Assign) -> int:
    """Put those of ``values`` (the stored tensor's elements from ``first`` on) that are in ``box`` into ``target``,
    which has the box's shape. How many that were.
    """
    end = first + len(values)
    if not box.shape:
        fill_elements(target, 0, values, assign)
        return 1
    row, start = box.row_elements, box.offsets[0]
    # Only what is in the box's rows.
    low, high = max(first, start * row), min(end, (start + box.lengths[0]) * row)
    if low >= high:
        return 0
    values = values[low - first : high - first]
    if box.has_whole_rows:
        fill_elements(target, low - start * row, values, assign)
        return high - low
    return _place_rows(target, box, low, values, assign)


def _place_rows(target: Any, box: Box, first: int, values: Any, assign: Assign) -> int:
    row, start = box.row_elements, box.offsets[0]
    inside = box.inside_row
    placed = taken = 0
    index, offset = divmod(first, row)
    if offset:
        taken = min(row - offset, len(values))
        placed += place(target[index - start], inside, offset, values[:taken], assign)
        index += 1
    rows = (len(values) - taken) // row
    if rows:
        whole = values[taken : taken + rows * row].reshape(rows, *inside.shape)
        cut = tuple(slice(o, o + n) for o, n in zip(inside.offsets, inside.lengths, strict=True))
        assign(target[index - start : index - start + rows], whole[(slice(None), *cut)])
        placed += rows * inside.element_count
        taken += rows * row
    if taken < len(values):
        placed += place(target[index + rows - start], inside, 0, values[taken:], assign)
    return placed


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes as disjoint ranges in order."""
    result: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result
