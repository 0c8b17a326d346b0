"""A saved state laid over one that is there: which of its arrays takes which bytes.

Everything is compared before anything is written. Arrays that the given state lacks are made; plain values are the
checkpoint's; an array for which the checkpoint has nothing is refused, because it would silently keep what it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sdrs.memory import allocate
from sdrs.state import numpy_arrays, torch_arrays
from sdrs.state.arrays import ArrayRecord
from sdrs.state.decode import MIN_VIEW_BYTES, StateIndex, array_bytes, rebuild_tree
from sdrs.state.paths import Path, refuse_target
from sdrs.state.sinks import FlatSink, Sink
from sdrs_core.errors import CorruptDataError, InvalidArgumentError

_MAX_TOLD = 5


class _Absent:
    """Stands for a place that the given state does not have."""


_ABSENT = _Absent()


@dataclass(slots=True)
class Slot:
    """One saved array and what takes its bytes: one array, or several that were one when they were saved."""

    record: ArrayRecord
    size_bytes: int
    sinks: list[Sink] = field(default_factory=list)
    array: Any = None  # the first that was given, or the one that was made

    def fill(self, offset: int, data: memoryview) -> None:
        for sink in self.sinks:
            sink.fill(offset, data)

    def make(self) -> None:
        """Memory of its own: the given state has no place for it."""
        size_bytes, kind = self.size_bytes, self.record.type.kind
        is_large = size_bytes >= MIN_VIEW_BYTES
        memory = allocate(size_bytes)[:size_bytes] if is_large else memoryview(bytearray(size_bytes))
        self.sinks.append(FlatSink(memory))
        self.array = memory if kind == "bytes" else _library(kind).maker(self.record.type)(memory)


@dataclass(slots=True)
class Overlay:
    """``slots`` are in the order of the index's arrays; ``state`` gives the result once they are filled."""

    slots: list[Slot]
    _tree: Any
    _given: Any

    def state(self) -> Any:
        return _build(self._tree, self._given)


def overlay(index: StateIndex, blob_bytes: Sequence[int], given: Any) -> Overlay:
    """``blob_bytes``: the size of each blob. InvalidArgumentError names the paths that do not fit, and nothing is
    changed.
    """
    slots = [Slot(record, _size_bytes(record, blob_bytes)) for record in index.arrays]
    tree = rebuild_tree(index, slots)
    matching = _Matching()
    matching.match(tree, given, Path())
    if matching.refusals:
        left = len(matching.refusals) - _MAX_TOLD
        more = f"; and {left} more" if left > 0 else ""
        raise InvalidArgumentError("; ".join(map(str, matching.refusals[:_MAX_TOLD])) + more)
    for slot in slots:
        if not slot.sinks:
            slot.make()
    return Overlay(slots, tree, given)


class _Matching:
    def __init__(self) -> None:
        self.refusals: list[InvalidArgumentError] = []
        # Where each given array's memory starts: no two saved arrays may go to the same.
        self._takers: dict[tuple[int, int], tuple[Slot, Path]] = {}

    def match(self, saved: Any, given: Any, path: Path) -> None:
        try:
            if isinstance(saved, Slot):
                self._place(saved, given, path)
            elif isinstance(saved, dict):
                self._match_dict(saved, given, path)
            elif type(saved) in (list, tuple):
                self._match_list(saved, given, path)
            else:
                self._refuse_arrays(given, path, "it is no array in the checkpoint")
        except InvalidArgumentError as error:
            self.refusals.append(error)

    def _place(self, slot: Slot, given: Any, path: Path) -> None:
        kind = slot.record.type.kind
        if not _is_array(given):
            if given is not None and given is not _ABSENT and kind != "bytes":
                refuse_target(path, f"a {type(given).__name__}", f"an array of {slot.record.type.dtype}")
            return
        if kind != ("torch" if torch_arrays.is_tensor(given) else "numpy"):
            refuse_target(path, f"an array of {type(given).__module__.partition('.')[0]}", f"one of {kind}")
        sink = _library(kind).open_sink(given, slot.record.type, path)
        if slot.size_bytes:
            place = (_address(given), id(type(given)))
            taker, taken_at = self._takers.setdefault(place, (slot, path))
            if taker is not slot:
                refuse_target(path, f"the same array as for {taken_at}", "two, because they were saved apart")
            if taken_at is not path:
                return  # tied in both: one sink is enough
        slot.sinks.append(sink)
        slot.array = given if slot.array is None else slot.array

    def _match_dict(self, saved: dict[Any, Any], given: Any, path: Path) -> None:
        if given is not None and given is not _ABSENT and not isinstance(given, dict):
            refuse_target(path, f"a {type(given).__name__}", "a dict")
        inside = given if isinstance(given, dict) else {}
        for key, value in saved.items():
            self.match(value, inside.get(key, _ABSENT), Path(path, key))
        for key in inside.keys() - saved.keys():
            self._refuse_arrays(inside[key], Path(path, key), "the checkpoint does not have it")

    def _match_list(self, saved: list[Any] | tuple[Any, ...], given: Any, path: Path) -> None:
        if given is None or given is _ABSENT:
            given = [_ABSENT] * len(saved)
        if not isinstance(given, list | tuple) or len(given) != len(saved):
            length = f" of {len(given)}" if isinstance(given, list | tuple) else ""
            refuse_target(path, f"a {type(given).__name__}{length}", f"a {type(saved).__name__} of {len(saved)}")
        for position, value in enumerate(saved):
            self.match(value, given[position], Path(path, position))

    def _refuse_arrays(self, given: Any, path: Path, why: str) -> None:
        if _is_array(given):
            self.refusals.append(InvalidArgumentError(f"{path}: an array was given to restore into, but {why}"))
        elif isinstance(given, dict):
            for key, value in given.items():
                self._refuse_arrays(value, Path(path, key), why)
        elif isinstance(given, list | tuple):
            for position, value in enumerate(given):
                self._refuse_arrays(value, Path(path, position), why)


def _build(saved: Any, given: Any) -> Any:
    if isinstance(saved, Slot):
        if _is_array(given):
            return given
        return bytes(saved.array) if saved.record.type.kind == "bytes" else saved.array
    if isinstance(saved, dict):
        inside = given if isinstance(given, dict) else {}
        built = type(saved)((key, _build(value, inside.get(key, _ABSENT))) for key, value in saved.items())
        if isinstance(saved, OrderedDict) and hasattr(saved, "_metadata"):
            built._metadata = _build(saved._metadata, _ABSENT)  # type: ignore[attr-defined]
        return built
    if type(saved) in (list, tuple):  # torch.Size is a tuple too, and a plain value
        values = given if isinstance(given, list | tuple) else [_ABSENT] * len(saved)
        return type(saved)(_build(value, values[position]) for position, value in enumerate(saved))
    return saved


def _library(kind: str) -> Any:
    return torch_arrays if kind == "torch" else numpy_arrays


def _is_array(value: Any) -> bool:
    return torch_arrays.is_tensor(value) or numpy_arrays.is_array(value)


def _address(array: Any) -> int:
    return int(array.data_ptr() if torch_arrays.is_tensor(array) else array.__array_interface__["data"][0])


def _size_bytes(record: ArrayRecord, blob_bytes: Sequence[int]) -> int:
    size_bytes = array_bytes(record)
    if size_bytes > blob_bytes[record.blob]:
        raise CorruptDataError(
            f"array {record.tensor[:80]!r} does not fit into its blob of {blob_bytes[record.blob]} bytes: restore "
            "another step"
        )
    return size_bytes
