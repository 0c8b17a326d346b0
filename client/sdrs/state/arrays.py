"""Arrays, whatever library they come from."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sdrs.state.blobs import CHUNK_BYTES, Source, StoredTensor, alignment
from sdrs.state.container import Json, is_count, to_json, to_json_text
from sdrs_core.errors import CorruptDataError

MAX_DIMENSIONS = 64  # numpy's limit, kept for torch too so that a hostile shape costs nothing
KINDS = frozenset({"numpy", "torch", "bytes"})


@dataclass(frozen=True, slots=True)
class ArrayType:
    """What an array is, apart from its bytes: enough to make it again.

    ``dtype`` is the library's own name (a list of fields for numpy's structured ones); ``device`` is kept as a note,
    arrays are restored to the CPU.
    """

    kind: str
    dtype: Json
    shape: tuple[int, ...]
    requires_grad: bool = False
    parameter: bool = False
    device: str = ""

    def to_json(self) -> dict[str, Json]:
        record = {"as": self.kind, "dtype": self.dtype, "shape": list(self.shape)}
        if self.requires_grad:
            record["requires_grad"] = True
        if self.parameter:
            record["parameter"] = True
        if self.device:
            record["device"] = self.device
        return record


class LiveArray(NamedTuple):
    """An array of the user's state, and how it is written. A tuple, because a state may have 100,000 of them.

    Arrays of equal ``identity`` are one array under several names (tied weights): written once, restored as one object.
    """

    type: ArrayType
    item_bytes: int
    native_dtype: str | None  # safetensors' name of the dtype, if it has one that old readers know
    identity: Hashable
    source: Source

    def stored(self, name: str) -> StoredTensor:
        align_bytes = alignment(self.item_bytes)
        if self.native_dtype is not None:
            return StoredTensor(name, self.native_dtype, self.type.shape, align_bytes, self.source)
        return StoredTensor(name, "U8", (*self.type.shape, self.item_bytes), align_bytes, self.source)


class ArrayRecord(NamedTuple):
    """One line of the index: an array's type, and which tensor of which blob has its bytes."""

    blob: int
    tensor: str
    type: ArrayType


def records_to_json(blobs: Sequence[int], names: Sequence[str], types: Sequence[ArrayType]) -> bytes:
    """The lines of the index. Written by hand, because most of each is the same for all arrays of one type."""
    ends = {id(array_type): to_json(array_type.to_json())[1:].decode() for array_type in types_once(types)}
    lines = [
        f'{{"blob":{blob},"tensor":{name},{ends[id(array_type)]}'
        for blob, name, array_type in zip(blobs, map(to_json_text, names), types, strict=True)
    ]
    return f"[{','.join(lines)}]".encode()


def types_once(types: Iterable[ArrayType]) -> Iterable[ArrayType]:
    """Each object once: those that describe many arrays share them, and to compare them by value costs more."""
    return {id(array_type): array_type for array_type in types}.values()


def records_from_json(records: Sequence[Json], blob_count: int) -> tuple[ArrayRecord, ...]:
    """The lines of an index that nobody vouches for. Arrays that are alike share one ArrayType."""
    types: dict[Hashable, ArrayType] = {}
    result = []
    for record in records:
        if not isinstance(record, dict):
            raise CorruptDataError("an array in the index is not an object: restore another step")
        blob, tensor, key = record.get("blob"), record.get("tensor"), _type_key(record)
        if not isinstance(tensor, str):
            raise CorruptDataError(f"array {str(tensor)[:80]!r} in the index is malformed: restore another step")
        array_type = types.get(key)
        if array_type is None:
            array_type = _type_from_json(record, tensor)
            if key is not None:
                types[key] = array_type
        if not is_count(blob) or blob >= blob_count:
            raise CorruptDataError(f"array {tensor[:80]!r} in the index has no valid place: restore another step")
        result.append(ArrayRecord(blob, tensor, array_type))
    return tuple(result)


def _type_key(record: dict[str, Json]) -> Hashable:
    """Equal for types that are; None for one that cannot be looked up. What is malformed and equal all the same, as 1.0
    is to 1, is read as the one that it equals.
    """
    get = record.get
    try:
        flags = get("requires_grad", False), get("parameter", False), get("device", "")
        key = (get("as"), get("dtype"), flags, *get("shape"))  # type: ignore[misc]
        hash(key)
    except TypeError:
        return None
    return key


def _type_from_json(record: dict[str, Json], tensor: str) -> ArrayType:
    shape, kind, device = record.get("shape"), record.get("as"), record.get("device", "")
    requires_grad, parameter = record.get("requires_grad", False), record.get("parameter", False)
    if not (isinstance(kind, str) and kind in KINDS and isinstance(device, str)):
        raise CorruptDataError(f"array {tensor[:80]!r} in the index is malformed: restore another step")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(is_count(size) for size in shape):
        raise CorruptDataError(f"array {tensor[:80]!r} in the index has no valid shape: restore another step")
    if type(requires_grad) is not bool or type(parameter) is not bool:
        raise CorruptDataError(f"array {tensor[:80]!r} in the index has malformed flags: restore another step")
    return ArrayType(kind, record.get("dtype"), tuple(shape), requires_grad, parameter, device)


def row_chunks(array: Any, item_bytes: int) -> Iterator[Any]:
    """Cut an array along its leading axes into views of at most CHUNK_BYTES, in the order of its elements.

    A copy of one view at a time is all the memory that a non-contiguous (or remote) array costs.
    """
    shape = array.shape
    if not shape or item_bytes * math.prod(shape) <= CHUNK_BYTES:
        yield array
        return
    row_bytes = item_bytes * math.prod(shape[1:])
    if row_bytes > CHUNK_BYTES and len(shape) > 1:
        for row in range(shape[0]):
            yield from row_chunks(array[row], item_bytes)
        return
    rows = max(1, CHUNK_BYTES // row_bytes)
    for start in range(0, shape[0], rows):
        yield array[start : start + rows]
