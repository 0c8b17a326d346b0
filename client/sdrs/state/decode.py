"""Blobs become a state again.

The bytes were verified against their checksums, but whoever wrote them may have been anybody: everything is checked
before it is used, and whatever does not fit is CorruptDataError.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sdrs.memory import uncollected
from sdrs.state import numpy_arrays, torch_arrays
from sdrs.state.arrays import ArrayRecord, ArrayType, records_from_json
from sdrs.state.blobs import alignment
from sdrs.state.container import TREE_TENSOR, Buffer, Json, Span, is_count, parse_header, read_index
from sdrs.state.flatten import MAX_DEPTH
from sdrs.state.values import DECODERS, KEY_TYPES
from sdrs_core.errors import CorruptDataError

# Smaller arrays are copied out of their blob: a view of a few bytes would keep a whole pack in memory.
MIN_VIEW_BYTES = 1 << 20

MALFORMED = (ValueError, TypeError, OverflowError, RuntimeError, MemoryError, struct.error, SyntaxError, KeyError)
_LEAVES: dict[str, Callable[[Json], object]] = {
    **DECODERS,
    "numpy": numpy_arrays.decode_scalar,
    "numpy.str_": numpy_arrays.decode_str,
    "numpy.bytes_": numpy_arrays.decode_bytes,
    "torch.Size": torch_arrays.decode_size,
    "torch.dtype": torch_arrays.decode_dtype,
    "torch.device": torch_arrays.decode_device,
}


@dataclass(frozen=True, slots=True)
class StateIndex:
    """What blob 0 says of a shard: how many blobs it has, its arrays and how they hang together."""

    blob_count: int
    arrays: tuple[ArrayRecord, ...]
    tree: list[Json]


@dataclass(frozen=True, slots=True)
class _Stack:
    """Values, and beside each its depth and whether it may be a key, so that neither is found by recursion."""

    values: list[Any] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)

    def push(self, value: Any, depth: int = 0, is_key: bool = False) -> None:
        self.values.append(value)
        self.depths.append(depth)
        self.keys.append(is_key)

    def take(self, count: int) -> tuple[list[Any], int, list[bool]]:
        """The last ``count`` values, how deep a container of them is, and which may be keys."""
        first = len(self.values) - count
        if first < 0:
            raise ValueError(f"{count} items are taken where {len(self.values)} are")
        values, keys = self.values[first:], self.keys[first:]
        depth = 1 + max(self.depths[first:], default=0)
        if depth > MAX_DEPTH:
            raise ValueError(f"containers are nested deeper than {MAX_DEPTH}")
        del self.values[first:], self.depths[first:], self.keys[first:]
        return values, depth, keys


class _Form(NamedTuple):
    """What arrays of one type have in common; ``make`` is None for bytes."""

    make: Callable[[memoryview | bytearray], Any] | None
    size_bytes: int
    align_bytes: int


def decode_index(blob0: Buffer) -> StateIndex:
    """Read the index of a shard from the whole of its first blob."""
    with uncollected():
        return state_index(read_index(blob0, TREE_TENSOR)[0])


def state_index(index: dict[str, Json]) -> StateIndex:
    """Check what is read under the name TREE_TENSOR."""
    blob_count, arrays, tree = index.get("blobs"), index.get("arrays"), index.get("tree")
    if not is_count(blob_count) or not blob_count or not isinstance(arrays, list) or not isinstance(tree, list):
        raise CorruptDataError("the index of this state is malformed: restore another step")
    return StateIndex(blob_count, records_from_json(arrays, blob_count), tree)


def rebuild(index: StateIndex, buffers: Sequence[Buffer]) -> Any:
    """The state, from all of its blobs in order.

    Arrays of a MiB and more are writable views over the buffers, which the caller gives away (read-only or misaligned
    ones are copied); smaller ones are copies of their own.
    """
    if len(buffers) != index.blob_count:
        raise CorruptDataError(f"this state has {index.blob_count} blobs, but {len(buffers)} were given")
    with uncollected():
        spans = [parse_header(buffer, f"blob {number}") for number, buffer in enumerate(buffers)]
        views = [memoryview(buffer) for buffer in buffers]
        forms: dict[int, _Form] = {}
        arrays = [_restore(record, forms, spans[record.blob], views[record.blob]) for record in index.arrays]
        return rebuild_tree(index, arrays)


def rebuild_tree(index: StateIndex, arrays: Sequence[Any]) -> Any:
    """The state with ``arrays`` in their places; anything may stand for one."""
    stack = _Stack()
    for position, item in enumerate(index.tree):
        try:
            _read(item, stack, arrays)
        except (*MALFORMED, RecursionError) as error:
            what = f"item {position} of the tree of this state is malformed ({error})"
            raise CorruptDataError(f"{what}: restore another step") from error
    if len(stack.values) != 1:
        raise CorruptDataError(f"the tree of this state has {len(stack.values)} roots: restore another step")
    return stack.values[0]


def array_of(record: ArrayRecord, data: memoryview) -> Any:
    """One array, of its own bytes alone."""
    return _restore(record, {}, {record.tensor: Span(0, len(data))}, data)


def _restore(record: ArrayRecord, forms: dict[int, _Form], spans: dict[str, Span], blob: memoryview) -> Any:
    """``forms``: those found already, by the identity of the record's type."""
    try:
        form = forms.get(id(record.type))
        if form is None:
            form = forms[id(record.type)] = _form(record.type)
        start, end = spans[record.tensor]
        return _view(form, blob[start:end])
    except (*MALFORMED, RecursionError) as error:
        what = f"array {record.tensor[:80]!r} of blob {record.blob} does not fit its description ({error})"
        raise CorruptDataError(f"{what}: restore another step") from error


def _view(form: _Form, data: memoryview) -> Any:
    size_bytes = len(data)
    if form.make is None:
        return bytes(data)
    if size_bytes != form.size_bytes:
        raise ValueError(f"{size_bytes} bytes instead of {form.size_bytes}")
    if size_bytes < MIN_VIEW_BYTES or data.readonly or _address(data) % form.align_bytes:
        return form.make(bytearray(data))
    return form.make(data)


def _form(array_type: ArrayType) -> _Form:
    if array_type.kind == "bytes":
        return _Form(None, 0, 1)
    library = numpy_arrays if array_type.kind == "numpy" else torch_arrays
    item_bytes = library.item_bytes(array_type)
    return _Form(library.maker(array_type), item_bytes * math.prod(array_type.shape), alignment(item_bytes))


def array_bytes(record: ArrayRecord) -> int:
    """How large it is by its description; CorruptDataError if that makes no sense."""
    try:
        library = numpy_arrays if record.type.kind == "numpy" else torch_arrays
        item_bytes = 1 if record.type.kind == "bytes" else library.item_bytes(record.type)
        return int(item_bytes * math.prod(record.type.shape))
    except MALFORMED as error:
        what = f"array {record.tensor[:80]!r} of blob {record.blob} is malformed in the index ({error})"
        raise CorruptDataError(f"{what}: restore another step") from error


def _address(data: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(data, np.uint8).__array_interface__["data"][0])


def _read(item: Json, stack: _Stack, arrays: Sequence[Any]) -> None:
    if not isinstance(item, dict):
        if type(item) not in KEY_TYPES:
            raise ValueError("a leaf is a plain value")
        stack.push(item, is_key=True)
        return
    if len(item) != 1:
        raise ValueError("an item has one tag")
    ((tag, payload),) = item.items()
    if tag in _LEAVES:
        value = _LEAVES[tag](payload)
        stack.push(value, is_key=type(value) in KEY_TYPES)
        return
    if not is_count(payload):
        raise ValueError(f"{tag[:80]!r} needs a count")
    if tag == "array":
        if payload >= len(arrays):
            raise ValueError(f"there is no array {payload}")
        stack.push(arrays[payload])
    elif tag in ("list", "tuple"):
        values, depth, keys = stack.take(payload)
        stack.push(tuple(values) if tag == "tuple" else values, depth, tag == "tuple" and all(keys))
    elif tag in ("dict", "odict", "odict+metadata"):
        _read_dict(tag, payload, stack)
    else:
        raise ValueError(f"tag {tag[:80]!r} is unknown: it may need a newer sdrs")


def _read_dict(tag: str, count: int, stack: _Stack) -> None:
    has_metadata = tag == "odict+metadata"
    values, depth, keys = stack.take(2 * count + has_metadata)
    if not all(keys[: 2 * count : 2]):
        raise ValueError("a key is of a type that keys never have")
    pairs = zip(values[: 2 * count : 2], values[1 : 2 * count : 2], strict=True)
    result: dict[Any, Any] = dict(pairs) if tag == "dict" else OrderedDict(pairs)
    if len(result) != count:
        raise ValueError("a key occurs twice")
    if has_metadata:
        result._metadata = values[-1]  # type: ignore[attr-defined]
    stack.push(result, depth)
