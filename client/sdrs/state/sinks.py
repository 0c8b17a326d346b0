"""Arrays of the user's that are filled in place, with bytes that come in any order.

``numpy_arrays`` and ``torch_arrays`` open one for an array, or refuse it, before the first byte is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Elements = Any  # an array or tensor of one dimension, of the target's own library and dtype


class Sink(Protocol):
    def fill(self, offset: int, data: memoryview) -> None:
        """Take the array's bytes from ``offset`` on. Called from several threads, for different bytes."""


@dataclass(frozen=True, slots=True)
class FlatSink:
    """Memory that has the array's elements in order."""

    memory: memoryview

    def fill(self, offset: int, data: memoryview) -> None:
        self.memory[offset : offset + len(data)] = data


@dataclass(frozen=True, slots=True)
class ElementSink:
    """An array that is not contiguous, or not in this host's memory: its elements are put where they belong.

    ``elements`` makes them of bytes, ``assign`` puts them. Whole elements arrive: blocks end where elements do.
    """

    array: Any
    item_bytes: int
    elements: Callable[[memoryview], Elements]
    assign: Callable[[Any, Elements], None]

    def fill(self, offset: int, data: memoryview) -> None:
        fill_elements(self.array, offset // self.item_bytes, self.elements(data), self.assign)


def fill_elements(array: Any, first: int, values: Elements, assign: Callable[[Any, Elements], None]) -> None:
    """Put ``values`` into ``array`` from its element number ``first`` on, counted along its last axis first."""
    if array.ndim <= 1:
        assign(array[first : first + len(values)] if array.ndim else array, values if array.ndim else values[0])
        return
    row_count = math.prod(array.shape[1:])
    index, inside = divmod(first, row_count)
    taken = 0
    if inside:
        taken = min(row_count - inside, len(values))
        fill_elements(array[index], inside, values[:taken], assign)
        index += 1
    rows = (len(values) - taken) // row_count
    if rows:
        whole = values[taken : taken + rows * row_count].reshape(rows, *array.shape[1:])
        assign(array[index : index + rows], whole)
        taken += rows * row_count
    if taken < len(values):
        fill_elements(array[index + rows], 0, values[taken:], assign)
