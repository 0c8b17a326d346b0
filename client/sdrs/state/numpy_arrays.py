"""numpy's arrays and scalars, in and out. numpy is imported when the first one is met."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sdrs.state.arrays import ArrayKind, ArrayType, LiveArray, row_chunks
from sdrs.state.blobs import alignment
from sdrs.state.container import Json
from sdrs.state.paths import Path, refuse, refuse_as, refuse_target
from sdrs.state.sinks import ElementSink, FlatSink, Sink
from sdrs.state.values import from_base64, to_base64
from sdrs_core.errors import RefusedError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

# Only what numpy itself writes, and no objects: np.dtype() also parses a small language of comma-separated fields.
_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d+(\[\d*[A-Za-z]+\])?\Z")
_ML_DTYPE = re.compile(r"ml_dtypes\.(\w+)\Z")
_NATIVE = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32", "<u8": "U64",
    "<i8": "I64", "<f2": "F16", "<f4": "F32", "<f8": "F64",
    "ml_dtypes.bfloat16": "BF16", "ml_dtypes.float8_e4m3fn": "F8_E4M3", "ml_dtypes.float8_e5m2": "F8_E5M2",
}  # fmt: skip


def is_numpy(value: object) -> bool:
    """Whether this is an array or scalar of numpy; asking does not import it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)


def is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


@dataclass(frozen=True, slots=True)
class NumpySource:
    array: Array

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def segments(self) -> Iterator[memoryview]:
        import numpy as np

        if self.array.nbytes == 0:
            return
        if self.array.flags.c_contiguous:
            yield _flat_bytes(self.array)
            return
        for chunk in row_chunks(self.array, self.array.itemsize):
            yield _flat_bytes(np.ascontiguousarray(chunk))


def _flat_bytes(array: Array) -> memoryview:
    import numpy as np

    return array.reshape(-1).view(np.uint8).data


def live_array(array: Array, path: Path) -> LiveArray:
    import numpy as np

    if type(array) not in (np.ndarray, np.memmap):
        refuse_as(path, f"an array of type {type(array).__qualname__}", "store numpy.asarray(...) of its parts")
    array = array.view(np.ndarray)
    tag = _dtype_tag(array.dtype, path)
    address = array.__array_interface__["data"][0]
    kind = _kind(tag, array.shape) if isinstance(tag, str) else _kind_of(tag, array.shape, array.itemsize)
    return LiveArray(kind, ("numpy", address, array.shape, array.strides, str(tag)), NumpySource(array))


@lru_cache(maxsize=1024)
def _kind(tag: str, shape: tuple[int, ...]) -> ArrayKind:
    return _kind_of(tag, shape, _named_dtype(tag).itemsize, _NATIVE.get(tag))


def _kind_of(tag: Json, shape: tuple[int, ...], item_bytes: int, native_dtype: str | None = None) -> ArrayKind:
    return ArrayKind.of(ArrayType("numpy", tag, shape), item_bytes, native_dtype)


def encode_scalar(value: np.generic, path: Path) -> Json:
    import numpy as np

    # As array elements these two would lose their trailing zeros; so does numpy's own str() of a text.
    if type(value) is np.str_:
        return {"numpy.str_": to_base64(str.__str__(value).encode("utf-8", "surrogatepass"))}
    if type(value) is np.bytes_:
        return {"numpy.bytes_": to_base64(bytes(value))}
    return {"numpy": [_dtype_tag(value.dtype, path), to_base64(value.tobytes())]}


def decode_scalar(payload: Json) -> object:
    tag, data = payload
    return maker(ArrayType("numpy", tag, ()))(bytearray(from_base64(data)))[()]


def decode_str(payload: Json) -> object:
    import numpy as np

    return np.str_(from_base64(payload).decode("utf-8", "surrogatepass"))


def decode_bytes(payload: Json) -> object:
    import numpy as np

    return np.bytes_(from_base64(payload))


def maker(array_type: ArrayType) -> Callable[[memoryview | bytearray], Array]:
    """Makes arrays over data; ValueError or TypeError if it does not fit."""
    import numpy as np

    dtype, shape = _dtype(array_type.dtype), array_type.shape
    if not shape and not dtype.itemsize:
        return lambda data: np.zeros((), dtype)  # an empty buffer is no buffer for numpy, but there is nothing to view
    return lambda data: np.ndarray(shape, dtype, data)


def open_sink(array: Array, array_type: ArrayType, path: Path) -> Sink:
    """How ``array`` takes the bytes of an array of this type; InvalidArgumentError if it is of another."""
    import numpy as np

    if (_dtype_tag(array.dtype, path), array.shape) != (array_type.dtype, array_type.shape):
        expected = f"{_dtype(array_type.dtype)} {array_type.shape}"
        refuse_target(path, f"an array of {array.dtype} {array.shape}", expected)
    if not array.flags.writeable:
        refuse_target(path, "a read-only array", "one that can be written")
    plain = array.view(np.ndarray)
    if plain.flags.c_contiguous:
        return FlatSink(_flat_bytes(plain) if plain.nbytes else memoryview(bytearray()))
    if alignment(plain.itemsize) != plain.itemsize:
        # Its elements may lie across two blocks, which come apart.
        refuse_target(path, f"a strided array of items of {plain.itemsize} bytes", "a contiguous one")
    return ElementSink(plain, plain.itemsize, lambda data: np.frombuffer(data, plain.dtype), np.copyto)


def item_bytes(array_type: ArrayType) -> int:
    return int(_dtype(array_type.dtype).itemsize)


def _dtype_tag(dtype: np.dtype[Any], path: Path) -> Json:
    if dtype.hasobject:
        refuse_as(path, f"an array of dtype {dtype}", "its elements are Python objects: use a numeric dtype or a list")
    if dtype.type.__module__ == "ml_dtypes":
        return f"ml_dtypes.{dtype.name}"
    try:
        tag = dtype.str if dtype.names is None else _plain(dtype.descr)
        restored = _dtype(tag)
    except (ValueError, TypeError) as error:
        refuse(path, dtype, f"its layout cannot be written down ({error}): use a packed dtype")
    if restored != dtype or restored.type is not dtype.type:
        refuse(path, dtype, "it would not come back the same: use numpy's own field types in a packed dtype")
    return tag


def _plain(descr: Any) -> Json:
    """Tuples as lists, as JSON has them."""
    return [_plain(part) for part in descr] if isinstance(descr, list | tuple) else descr


def _dtype(tag: Json) -> np.dtype[Any]:
    """The dtype for a tag that nobody vouches for; ValueError or TypeError if there is none."""
    return _named_dtype(tag) if isinstance(tag, str) else _numpy_dtype(tag)


@lru_cache(maxsize=256)
def _named_dtype(tag: str) -> np.dtype[Any]:
    match = _ML_DTYPE.match(tag)
    return _ml_dtype(match[1]) if match else _numpy_dtype(tag)


def _numpy_dtype(tag: Json) -> np.dtype[Any]:
    import numpy as np

    return np.lib.format.descr_to_dtype(_descr(tag))


def _descr(tag: Json) -> Any:
    if isinstance(tag, str):
        if not _DTYPE.match(tag):
            raise ValueError(f"{tag[:80]!r} is not a dtype")
        return tag
    if not isinstance(tag, list):
        raise ValueError("a dtype is a string or a list of fields")
    return [_field(field) for field in tag]


def _field(field: Json) -> tuple[Any, ...]:
    if not isinstance(field, list) or len(field) not in (2, 3):
        raise ValueError("a field is a name, a dtype and perhaps a shape")
    name = tuple(field[0]) if isinstance(field[0], list) else field[0]
    return (name, _descr(field[1]), *(tuple(shape) for shape in field[2:]))


def _ml_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        import ml_dtypes
    except ImportError as error:
        raise RefusedError(f"this state holds numpy arrays of {name}: install ml_dtypes to restore it") from error
    scalar = getattr(ml_dtypes, name, None)
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        raise ValueError(f"ml_dtypes has no {name[:80]!r}")
    return np.dtype(scalar)
