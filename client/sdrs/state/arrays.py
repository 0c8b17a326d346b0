"""Arrays, whatever library they come from."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sdrs.state.blobs import CHUNK_BYTES, BytesSource, Source, alignment
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


class ArrayKind(NamedTuple):
    """What all arrays of one type have in common, worked out once: a state may have 100,000 arrays of a few types.

    ``stored``: the dtype and shape that the header of a blob has for them.
    """

    type: ArrayType
    size_bytes: int
    align_bytes: int
    stored: tuple[str, tuple[int, ...]]

    @classmethod
    def of(cls, array_type: ArrayType, item_bytes: int, native_dtype: str | None) -> ArrayKind:
        """``native_dtype``: safetensors' name of the dtype, if it has one that old readers know."""
        shape = array_type.shape
        stored = ("U8", (*shape, item_bytes)) if native_dtype is None else (native_dtype, shape)
        return cls(array_type, item_bytes * math.prod(shape), alignment(item_bytes), stored)


class LiveArray(NamedTuple):
    """An array of the user's state, and how it is written.

    Arrays of equal ``identity`` are one array under several names (tied weights): written once, restored as one object.
    """

    kind: ArrayKind
    identity: Hashable
    source: Source

    @classmethod
    def of_bytes(cls, data: bytes) -> LiveArray:
        kind = ArrayKind.of(ArrayType("bytes", "bytes", (len(data),)), 1, "U8")
        return cls(kind, ("bytes", id(data)), BytesSource(data))


class ArrayRecord(NamedTuple):
    """One line of the index: an array's type, and which tensor of which blob has its bytes."""

    blob: int
    tensor: str
    type: ArrayType


def records_to_json(blobs: Sequence[int], names: Sequence[str], kinds: Sequence[ArrayKind]) -> bytes:
    """The lines of the index. Written by hand, because most of each is the same for all arrays of one kind."""
    # By identity: arrays that are alike share their kind, and to compare kinds costs more than to write one twice.
    once = {id(kind): kind for kind in kinds}
    ends = {key: to_json(kind.type.to_json())[1:].decode() for key, kind in once.items()}
    lines = [
        f'{{"blob":{blob},"tensor":{name},{ends[id(kind)]}'
        for blob, name, kind in zip(blobs, map(to_json_text, names), kinds, strict=True)
    ]
    return f"[{','.join(lines)}]".encode()


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
