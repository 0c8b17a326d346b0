"""A state as a list: what decode reads with a stack, so that no nesting, however hostile, can exhaust it.

The tree is written in postfix order. A leaf stands for itself; ``{"list": n}``, ``{"tuple": n}``, ``{"dict": n}`` take
the n items (for dicts n keys and values in turn) before them. ``{"array": i}`` is the i-th array.

States have hundreds of thousands of leaves, so the walk makes no object for one: tensors are only collected, and
described all at once when it is over.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sdrs.state import numpy_arrays, torch_arrays
from sdrs.state.arrays import ArrayKind, LiveArray
from sdrs.state.blobs import Source
from sdrs.state.container import Json
from sdrs.state.paths import Attribute, Path, TensorNames, refuse, refuse_as
from sdrs.state.values import KEY_TYPES, MAX_INLINE_BYTES, PLAIN_TYPES, encode_plain

MAX_DEPTH = 200
_KEY_ADVICE = "keys are str, int, float, bool, None or tuples of those"

# A step into a container, what is there, and whether it is (part of) a key. A key itself is where its dict is.
_Inside = tuple[object, Any, bool]
_KEY = object()
_CONTAINERS = frozenset({dict, OrderedDict, list, tuple})


@dataclass(frozen=True, slots=True)
class FlatState:
    """The tree, and its arrays in the order of their first occurrence with their names."""

    tree: list[Json]
    names: list[str]
    kinds: Sequence[ArrayKind]
    sources: Sequence[Source]


@dataclass(slots=True)
class _Container:
    """One that is being walked through; ``path`` is None for what is around the state itself."""

    path: Path | None
    inside: Iterator[_Inside]
    item: Json = None
    identity: int = 0
    _prefix: str | None = None

    def path_to(self, step: object) -> Path:
        if self.path is None:
            return Path()
        return self.path if step is _KEY else Path(self.path, step)

    def name_of(self, step: object) -> str:
        """What the tensor at ``step`` wishes to be called."""
        if type(step) is not str or self.path is None:
            return self.path_to(step).tensor_name()
        if self._prefix is None:
            self._prefix = self.path.name_prefix()
        return self._prefix + step or self.path_to(step).tensor_name()


@dataclass(slots=True)
class _Walk:
    tree: list[Json] = field(default_factory=list)
    around: list[_Container] = field(default_factory=list)
    open: set[int] = field(default_factory=set)  # the identities of the containers in ``around``
    # Each array, or tensor that is still to be described; where it is in the tree; and where in the state.
    found: list[tuple[Any, int, _Container, object]] = field(default_factory=list)


def flatten(state: object) -> FlatState:
    """Walk the state without recursion; UnsupportedObjectError names the path of what cannot be stored."""
    walk = _Walk(around=[_Container(None, iter([(None, state, False)]))])
    while walk.around:
        container = walk.around[-1]
        if not _walk_on(walk, container):
            walk.around.pop()
            if container.path is not None:
                walk.tree.append(container.item)
                walk.open.discard(container.identity)
    return _describe(walk)


def _walk_on(walk: _Walk, container: _Container) -> bool:
    """Through ``container`` until another is met in it; False once it is over."""
    tree, found, tensor_types = walk.tree, walk.found, torch_arrays.storable_types()
    for step, value, as_key in container.inside:
        kind = type(value)
        if kind is str and value.isascii():
            tree.append(value)
        elif kind in tensor_types and not as_key:
            found.append((value, len(tree), container, step))
            tree.append(None)  # its number is known when all arrays are described
        elif kind in _CONTAINERS and (not as_key or kind is tuple):
            _enter(walk, container.path_to(step), value, as_key)
            return True
        else:
            _add_leaf(walk, container, step, value, as_key)
    return False


def _add_leaf(walk: _Walk, container: _Container, step: object, value: Any, as_key: bool) -> None:
    kind = type(value)
    if as_key and kind not in KEY_TYPES:
        refuse(f"{container.path_to(step)}, a key", value, _KEY_ADVICE)
    if kind is bytes and len(value) > MAX_INLINE_BYTES:
        _add_array(walk, container, step, LiveArray.of_bytes(value))
    elif kind in PLAIN_TYPES:
        walk.tree.append(encode_plain(value))
    elif torch_arrays.is_tensor(value):
        torch_arrays.refuse_type(value, container.path_to(step))
    elif numpy_arrays.is_array(value):
        _add_array(walk, container, step, numpy_arrays.live_array(value, container.path_to(step)))
    elif numpy_arrays.is_numpy(value):
        walk.tree.append(numpy_arrays.encode_scalar(value, container.path_to(step)))
    elif (item := torch_arrays.encode_plain(value)) is not None:
        walk.tree.append(item)
    else:
        refuse(container.path_to(step), value)


def _add_array(walk: _Walk, container: _Container, step: object, array: LiveArray) -> None:
    walk.found.append((array, len(walk.tree), container, step))
    walk.tree.append(None)


def _enter(walk: _Walk, path: Path, value: Any, as_key: bool) -> None:
    if id(value) in walk.open:
        refuse_as(path, f"a {type(value).__name__} that contains itself", "a state is a tree: remove the cycle")
    if len(walk.open) >= MAX_DEPTH:
        refuse_as(path, f"a {type(value).__name__} inside {MAX_DEPTH} others", "flatten the state")
    walk.open.add(id(value))
    if isinstance(value, dict):
        entries = list(value.items())
        # torch keeps the versions of modules beside the entries of a state_dict; load_state_dict asks for them.
        metadata = getattr(value, "_metadata", None)
        tag = "odict" if type(value) is OrderedDict else "dict"
        item: Json = {tag if metadata is None else "odict+metadata": len(entries)}
        container = _Container(path, iter(()), item, id(value))
        container.inside = _inside_dict([] if _add_tensors(walk, container, entries) else entries, metadata)
        walk.around.append(container)
    else:
        inside = ((position, element, as_key) for position, element in enumerate(tuple(value)))
        walk.around.append(_Container(path, inside, {type(value).__name__: len(value)}, id(value)))


def _add_tensors(walk: _Walk, container: _Container, entries: list[tuple[Any, Any]]) -> bool:
    """All at once, if these are tensors by their names and nothing else, as in the state_dict of a module."""
    if not entries:
        return False
    names, tensors = zip(*entries, strict=True)
    if not ({*map(type, tensors)} <= {*torch_arrays.storable_types()} and {*map(type, names)} == {str}):
        return False
    if not all(map(str.isascii, names)):
        return False
    first = len(walk.tree)
    walk.tree += itertools.chain.from_iterable(zip(names, itertools.repeat(None)))
    walk.found += zip(tensors, range(first + 1, len(walk.tree), 2), itertools.repeat(container), names)
    return True


def _inside_dict(entries: list[tuple[Any, Any]], metadata: Any) -> Iterator[_Inside]:
    for key, element in entries:
        yield _KEY, key, True
        yield key, element, False
    if metadata is not None:
        yield Attribute("_metadata"), metadata, False


def _describe(walk: _Walk) -> FlatState:
    found = walk.found
    kinds, identities, sources = _columns(found)
    # Those of one identity are one array: it is where it occurs first.
    firsts: dict[Hashable, int] = {}
    for position, identity in enumerate(identities):
        firsts.setdefault(identity, position)
    numbers = dict(zip(firsts, range(len(firsts)), strict=True))
    for identity, (_, place, _, _) in zip(identities, found, strict=True):
        walk.tree[place] = {"array": numbers[identity]}
    if len(firsts) < len(found):
        found = [found[position] for position in firsts.values()]
        kinds = [kinds[position] for position in firsts.values()]
        sources = [sources[position] for position in firsts.values()]
    names = TensorNames().unique_all([container.name_of(step) for _, _, container, step in found])
    return FlatState(walk.tree, names, kinds, sources)


def _columns(
    found: list[tuple[Any, int, _Container, object]],
) -> tuple[Sequence[ArrayKind], Sequence[Hashable], Sequence[Source]]:
    arrays = [array for array, _, _, _ in found]
    tensors = [number for number, array in enumerate(arrays) if type(array) is not LiveArray]

    def path_of(position: int) -> Path:
        _, _, container, step = found[tensors[position]]
        return container.path_to(step)

    if tensors:
        described = torch_arrays.describe([arrays[number] for number in tensors], path_of)
        if len(tensors) == len(arrays):
            return described
        for number, kind, identity, source in zip(tensors, *described, strict=True):
            arrays[number] = LiveArray(kind, identity, source)
    kinds, identities, sources = zip(*arrays, strict=True) if arrays else ((), (), ())
    return kinds, identities, sources
