"""Blobs become a state again.

The bytes were verified against their checksums, but whoever wrote them may have been anybody: everything is checked
before it is used, and whatever does not fit is CorruptDataError.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sdrs.memory import uncollected
from sdrs.state import numpy_arrays, torch_arrays
from sdrs.state.arrays import ArrayRecord
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
class _Item:
    """A value on the stack; depth and hashability are kept beside it, so that neither is found by recursion."""

    value: Any
    depth: int = 0
    is_key: bool = False


def decode_index(blob0: Buffer) -> StateIndex:
    """Read the index of a shard from the whole of its first blob."""
    return state_index(read_index(blob0, TREE_TENSOR)[0])


def state_index(index: dict[str, Json]) -> StateIndex:
    """Check what is read under the name TREE_TENSOR."""
    blob_count, arrays, tree = index.get("blobs"), index.get("arrays"), index.get("tree")
    if not is_count(blob_count) or not blob_count or not isinstance(arrays, list) or not isinstance(tree, list):
        raise CorruptDataError("the index of this state is malformed: restore another step")
    return StateIndex(blob_count, tuple(ArrayRecord.from_json(record, blob_count) for record in arrays), tree)


def rebuild(index: StateIndex, buffers: Sequence[Buffer]) -> Any:
    """The state, from all of its blobs in order.

    Arrays of a MiB and more are writable views over the buffers, which the caller gives away (read-only or misaligned
    ones are copied); smaller ones are copies of their own.
    """
    if len(buffers) != index.blob_count:
        raise CorruptDataError(f"this state has {index.blob_count} blobs, but {len(buffers)} were given")
    with uncollected():
        spans = [parse_header(buffer, f"blob {number}") for number, buffer in enumerate(buffers)]
        arrays = [_restore(record, spans[record.blob], buffers[record.blob]) for record in index.arrays]
        return rebuild_tree(index, arrays)


def rebuild_tree(index: StateIndex, arrays: Sequence[Any]) -> Any:
    """The state with ``arrays`` in their places; anything may stand for one."""
    stack: list[_Item] = []
    for position, item in enumerate(index.tree):
        try:
            stack.append(_read(item, stack, arrays))
        except (*MALFORMED, RecursionError) as error:
            what = f"item {position} of the tree of this state is malformed ({error})"
            raise CorruptDataError(f"{what}: restore another step") from error
    if len(stack) != 1:
        raise CorruptDataError(f"the tree of this state has {len(stack)} roots: restore another step")
    return stack[0].value


def array_of(record: ArrayRecord, data: memoryview) -> Any:
    """One array, of its own bytes alone."""
    return _restore(record, {record.tensor: Span(0, len(data))}, data)


def _restore(record: ArrayRecord, spans: dict[str, Span], buffer: Buffer) -> Any:
    try:
        return _view(record, memoryview(buffer), spans[record.tensor])
    except (*MALFORMED, RecursionError) as error:
        what = f"array {record.tensor[:80]!r} of blob {record.blob} does not fit its description ({error})"
        raise CorruptDataError(f"{what}: restore another step") from error


def _view(record: ArrayRecord, blob: memoryview, span: Span) -> Any:
    data = blob[span.start : span.end]
    if record.type.kind == "bytes":
        return bytes(data)
    library = numpy_arrays if record.type.kind == "numpy" else torch_arrays
    item_bytes = library.item_bytes(record.type)
    expected_bytes = item_bytes * math.prod(record.type.shape)
    if len(data) != expected_bytes:
        raise ValueError(f"{len(data)} bytes instead of {expected_bytes}")
    if len(data) < MIN_VIEW_BYTES or data.readonly or _address(data) % alignment(item_bytes):
        data = memoryview(bytearray(data))
    return library.restore(record.type, data)


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


def _read(item: Json, stack: list[_Item], arrays: Sequence[Any]) -> _Item:
    if not isinstance(item, dict):
        if type(item) not in KEY_TYPES:
            raise ValueError("a leaf is a plain value")
        return _Item(item, is_key=True)
    if len(item) != 1:
        raise ValueError("an item has one tag")
    ((tag, payload),) = item.items()
    if tag in _LEAVES:
        value = _LEAVES[tag](payload)
        return _Item(value, is_key=type(value) in KEY_TYPES)
    if not is_count(payload):
        raise ValueError(f"{tag[:80]!r} needs a count")
    if tag == "array":
        if payload >= len(arrays):
            raise ValueError(f"there is no array {payload}")
        return _Item(arrays[payload])
    if tag in ("list", "tuple"):
        items = _take(stack, payload)
        values = [item.value for item in items]
        return _container(tuple(values) if tag == "tuple" else values, items, tag == "tuple")
    if tag in ("dict", "odict", "odict+metadata"):
        return _read_dict(tag, payload, stack)
    raise ValueError(f"tag {tag[:80]!r} is unknown: it may need a newer sdrs")


def _read_dict(tag: str, count: int, stack: list[_Item]) -> _Item:
    metadata = _take(stack, 1) if tag == "odict+metadata" else []
    items = _take(stack, 2 * count)
    if not all(key.is_key for key in items[::2]):
        raise ValueError("a key is of a type that keys never have")
    pairs = [(key.value, value.value) for key, value in zip(items[::2], items[1::2], strict=True)]
    result: dict[Any, Any] = dict(pairs) if tag == "dict" else OrderedDict(pairs)
    if len(result) != count:
        raise ValueError("a key occurs twice")
    for item in metadata:
        result._metadata = item.value  # type: ignore[attr-defined]
    return _container(result, items + metadata, is_key=False)


def _take(stack: list[_Item], count: int) -> list[_Item]:
    if count > len(stack):
        raise ValueError(f"{count} items are taken where {len(stack)} are")
    items = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return items


def _container(value: Any, items: list[_Item], is_key: bool) -> _Item:
    depth = 1 + max((item.depth for item in items), default=0)
    if depth > MAX_DEPTH:
        raise ValueError(f"containers are nested deeper than {MAX_DEPTH}")
    return _Item(value, depth, is_key and all(item.is_key for item in items))
