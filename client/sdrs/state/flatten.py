"""A state as a list: what decode reads with a stack, so that no nesting, however hostile, can exhaust it.

The tree is written in postfix order. A leaf stands for itself; ``{"list": n}``, ``{"tuple": n}``, ``{"dict": n}`` take
the n items (for dicts n keys and values in turn) before them. ``{"array": i}`` is the i-th array.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from sdrs.state import numpy_arrays, torch_arrays
from sdrs.state.arrays import ArrayType, LiveArray
from sdrs.state.blobs import BytesSource
from sdrs.state.container import Json
from sdrs.state.paths import Attribute, Path, TensorNames, refuse, refuse_as
from sdrs.state.values import KEY_TYPES, MAX_INLINE_BYTES, PLAIN_TYPES, encode_plain

MAX_DEPTH = 200
_KEY_ADVICE = "keys are str, int, float, bool, None or tuples of those"


@dataclass(frozen=True, slots=True)
class FlatState:
    """The tree, and its arrays in the order of their first occurrence with their names."""

    tree: list[Json]
    arrays: list[LiveArray]
    names: list[str]


@dataclass(frozen=True, slots=True)
class _Visit:
    path: Path
    value: object
    as_key: bool = False


@dataclass(frozen=True, slots=True)
class _Close:
    """All items of a container are written: now the container itself."""

    item: Json
    identity: int


@dataclass(slots=True)
class _Walk:
    tree: list[Json] = field(default_factory=list)
    arrays: list[LiveArray] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    pending: list[_Visit | _Close] = field(default_factory=list)
    open: set[int] = field(default_factory=set)  # the containers around the current value
    known: dict[Hashable, int] = field(default_factory=dict)
    unique: TensorNames = field(default_factory=TensorNames)


def flatten(state: object) -> FlatState:
    """Walk the state without recursion; UnsupportedObjectError names the path of what cannot be stored."""
    walk = _Walk(pending=[_Visit(Path(), state)])
    while walk.pending:
        task = walk.pending.pop()
        if isinstance(task, _Close):
            walk.tree.append(task.item)
            walk.open.discard(task.identity)
        else:
            _visit(walk, task)
    return FlatState(walk.tree, walk.arrays, walk.names)


def _visit(walk: _Walk, visit: _Visit) -> None:
    value, path = visit.value, visit.path
    kind = type(value)
    if visit.as_key and kind is not tuple and kind not in KEY_TYPES:
        refuse(f"{path}, a key", value, _KEY_ADVICE)
    if kind is bytes and len(value) > MAX_INLINE_BYTES:  # type: ignore[arg-type]
        _add_array(walk, path, _live_bytes(value))  # type: ignore[arg-type]
    elif kind in PLAIN_TYPES:
        walk.tree.append(encode_plain(value))
    elif kind in (dict, OrderedDict, list, tuple):
        _enter(walk, visit)
    elif torch_arrays.is_tensor(value):
        _add_array(walk, path, torch_arrays.live_array(value, path))
    elif numpy_arrays.is_numpy(value):
        _add_numpy(walk, path, value)
    elif (item := torch_arrays.encode_plain(value)) is not None:
        walk.tree.append(item)
    else:
        refuse(path, value)


def _enter(walk: _Walk, visit: _Visit) -> None:
    value, path = visit.value, visit.path
    if id(value) in walk.open:
        refuse_as(path, f"a {type(value).__name__} that contains itself", "a state is a tree: remove the cycle")
    if len(walk.open) >= MAX_DEPTH:
        refuse_as(path, f"a {type(value).__name__} inside {MAX_DEPTH} others", "flatten the state")
    walk.open.add(id(value))
    inside: list[_Visit] = []
    if isinstance(value, dict):
        for key, element in list(value.items()):
            inside += _Visit(path, key, as_key=True), _Visit(Path(path, key), element)
        item: Json = {"odict" if type(value) is OrderedDict else "dict": len(inside) // 2}
        # torch keeps the versions of modules beside the entries of a state_dict; load_state_dict asks for them.
        metadata = getattr(value, "_metadata", None)
        if metadata is not None:
            inside.append(_Visit(Path(path, Attribute("_metadata")), metadata))
            item = {"odict+metadata": item["odict"]}
    else:
        assert isinstance(value, list | tuple)
        inside += [_Visit(Path(path, position), element, visit.as_key) for position, element in enumerate(value)]
        item = {type(value).__name__: len(inside)}
    walk.pending.append(_Close(item, id(value)))
    walk.pending += reversed(inside)


def _add_numpy(walk: _Walk, path: Path, value: object) -> None:
    import numpy as np

    if isinstance(value, np.generic):
        walk.tree.append(numpy_arrays.encode_scalar(value, path))
    elif isinstance(value, np.ndarray):
        _add_array(walk, path, numpy_arrays.live_array(value, path))


def _live_bytes(value: bytes) -> LiveArray:
    return LiveArray(ArrayType("bytes", "bytes", (len(value),)), 1, "U8", ("bytes", id(value)), BytesSource(value))


def _add_array(walk: _Walk, path: Path, array: LiveArray) -> None:
    position = walk.known.setdefault(array.identity, len(walk.arrays))
    if position == len(walk.arrays):
        walk.arrays.append(array)
        walk.names.append(walk.unique.unique(path.tensor_name()))
    walk.tree.append({"array": position})
