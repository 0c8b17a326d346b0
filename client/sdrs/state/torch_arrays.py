"""torch's tensors, in and out.

A state that holds tensors has imported torch already, so saving looks it up and never imports it; restoring a state
that was saved from torch does.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

from sdrs.state import torch_sources
from sdrs.state.arrays import MAX_DIMENSIONS, ArrayKind, ArrayType, LiveArray
from sdrs.state.container import Json
from sdrs.state.paths import Path, refuse_as, refuse_target
from sdrs.state.sinks import ElementSink, FlatSink, Sink
from sdrs.state.torch_sources import JOINABLE, Tensor, TorchSource, flat_bytes, loaded_torch
from sdrs_core.errors import RefusedError

_NATIVE = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_AS_BYTES = {
    "complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
}  # fmt: skip
_DTYPES = frozenset(_NATIVE) | _AS_BYTES


def is_tensor(value: object) -> bool:
    torch = loaded_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def encode_plain(value: object) -> Json:
    """torch's small values, which optimizers keep among their settings; None for anything else."""
    torch = loaded_torch()
    if torch is None:
        return None
    if isinstance(value, torch.Size):
        return {"torch.Size": list(value)}
    if isinstance(value, torch.dtype):
        return {"torch.dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"torch.device": str(value)}
    return None


@cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Described(NamedTuple):
    """Many tensors, property by property."""

    kinds: list[ArrayKind]
    identities: list[Hashable]
    sources: list[TorchSource]


def storable_types() -> tuple[type, ...]:
    torch = loaded_torch()
    return () if torch is None else (torch.Tensor, torch.nn.Parameter)


def live_array(tensor: Tensor, path: Path) -> LiveArray:
    (kind,), (identity,), (source,) = describe([tensor], lambda _: path)
    return LiveArray(kind, identity, source)


def describe(tensors: Sequence[Tensor], path_of: Callable[[int], Path]) -> Described:
    """``path_of`` says where a tensor is, by its position. A loop over tensors within C, for each property, costs a
    tenth of one in Python that asks each tensor for everything.
    """
    torch = loaded_torch()
    assert torch is not None
    of = torch.Tensor
    if not (
        set(map(type, tensors)).issubset(storable_types())
        and not any(map(of.is_nested.__get__, tensors))
        and set(map(of.layout.__get__, tensors)).issubset({torch.strided})
    ):
        _refuse_first(torch, tensors, path_of)
    grads = list(map(of.requires_grad.__get__, tensors))
    columns = (map(type, tensors), map(of.dtype.__get__, tensors), map(of.size, tensors), grads)
    keys = list(zip(*columns, map(of.device.__get__, tensors), strict=True))
    distinct = set(keys)
    if not all(_is_storable(dtype, shape, device) for _, dtype, shape, _, device in distinct):
        _refuse_first(torch, tensors, path_of)
    kind_of = {key: _kind(torch, *key) for key in distinct}
    joins_of = {key: _joins(key[1], key[4], kind.size_bytes) for key, kind in kind_of.items()}
    kinds = list(map(kind_of.__getitem__, keys))
    identities = _identities(tensors, keys)
    if any(grads):  # reading what is recorded for gradients would be recorded too
        tensors = [tensor.detach() if grad else tensor for tensor, grad in zip(tensors, grads, strict=True)]
    joins = [
        joins_of[key] if contiguous and not negated else None
        for key, contiguous, negated in zip(keys, map(of.is_contiguous, tensors), map(of.is_neg, tensors), strict=True)
    ]
    # As TorchSource(...) makes them, without its detour through Python.
    make = partial(tuple.__new__, TorchSource)
    sources = list(map(make, zip(tensors, [kind.size_bytes for kind in kinds], joins, strict=True)))
    return Described(kinds, identities, sources)


def _kind(torch: Any, tensor_class: type, dtype: Any, shape: Sequence[int], grad: bool, device: Any) -> ArrayKind:
    name, device_name = _dtype_name(dtype), "" if device.type == "cpu" else str(device)
    array_type = ArrayType("torch", name, tuple(shape), grad, tensor_class is torch.nn.Parameter, device_name)
    return ArrayKind.of(array_type, dtype.itemsize, _NATIVE.get(name))


def _joins(dtype: Any, device: Any, size_bytes: int) -> Any:
    is_small = 0 < size_bytes < torch_sources.SMALL_BYTES
    return dtype if is_small and device.type == "cpu" and _dtype_name(dtype) in JOINABLE else None


def _identities(tensors: Sequence[Tensor], keys: Sequence[Hashable]) -> list[Hashable]:
    """Equal where two tensors are one: most have an address that no other has, and need no closer look."""
    addresses = [tensor.data_ptr() for tensor in tensors]
    if 0 not in (distinct := set(addresses)) and len(distinct) == len(addresses):
        return addresses
    counts = Counter(addresses)
    return [
        address if address and counts[address] == 1 else _identity(tensor, address, key)
        for tensor, address, key in zip(tensors, addresses, keys, strict=True)
    ]


def _identity(tensor: Tensor, address: int, key: Hashable) -> Hashable:
    # Tensors without bytes have no address that would tell them apart.
    place = address if tensor.numel() else ("empty", id(tensor))
    return place, tensor.stride(), tensor.is_conj(), tensor.is_neg(), key


def _is_storable(dtype: Any, shape: Sequence[int], device: Any) -> bool:
    return _dtype_name(dtype) in _DTYPES and len(shape) <= MAX_DIMENSIONS and device.type != "meta"


def _refuse_first(torch: Any, tensors: Sequence[Tensor], path_of: Callable[[int], Path]) -> None:
    for position, tensor in enumerate(tensors):
        _refuse_unstorable(torch, tensor, path_of(position))


def refuse_type(tensor: Tensor, path: Path) -> NoReturn:
    name = type(tensor).__qualname__
    refuse_as(path, f"a tensor of type {name}", "store its plain local tensor (for a DTensor: .to_local())")


def _refuse_unstorable(torch: Any, tensor: Tensor, path: Path) -> None:
    if type(tensor) not in storable_types():
        refuse_type(tensor, path)
    if tensor.is_nested or tensor.layout is not torch.strided:
        refuse_as(path, f"a tensor of layout {tensor.layout}", "make it dense first: .to_dense()")
    if tensor.is_quantized:
        refuse_as(path, f"a quantized tensor ({tensor.dtype})", "store .int_repr() with its scale and zero point")
    if tensor.is_meta:
        refuse_as(path, "a tensor on the meta device", "it has no data: materialize it first with .to_empty()")
    if _dtype_name(tensor.dtype) not in _DTYPES:
        refuse_as(path, f"a tensor of dtype {tensor.dtype}", "store it as uint8: .view(torch.uint8)")
    if tensor.dim() > MAX_DIMENSIONS:
        refuse_as(path, f"a tensor of {tensor.dim()} dimensions", f"reshape it to at most {MAX_DIMENSIONS}")


def _import_torch() -> Any:
    try:
        return loaded_torch() or importlib.import_module("torch")
    except ImportError as error:
        raise RefusedError("this state was saved from torch: install torch to restore it") from error


def _dtype(torch: Any, name: Json) -> Any:
    if not isinstance(name, str) or name not in _DTYPES:
        raise ValueError(f"{str(name)[:80]!r} is not a dtype of torch")
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise RefusedError(f"this state holds tensors of {name}, which torch {torch.__version__} lacks: upgrade torch")
    return dtype


def item_bytes(array_type: ArrayType) -> int:
    return int(_dtype(_import_torch(), array_type.dtype).itemsize)


def maker(array_type: ArrayType) -> Callable[[memoryview | bytearray], Tensor]:
    """Makes tensors over data that is writable; ValueError, TypeError or RuntimeError if it does not fit."""
    torch, shape = _import_torch(), array_type.shape
    dtype, requires_grad = _dtype(torch, array_type.dtype), array_type.requires_grad

    def make(data: memoryview | bytearray) -> Tensor:
        if not len(data):
            tensor = torch.empty(shape, dtype=dtype)
        elif len(shape) == 1:
            tensor = torch.frombuffer(data, dtype=dtype, count=shape[0])
        else:
            tensor = torch.frombuffer(data, dtype=dtype).view(shape)
        if array_type.parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_() if requires_grad else tensor

    return make


def open_sink(tensor: Tensor, array_type: ArrayType, path: Path) -> Sink:
    """How ``tensor`` takes the bytes of an array of this type; InvalidArgumentError if it is of another."""
    torch = _import_torch()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if (dtype, shape) != (array_type.dtype, array_type.shape):
        refuse_target(path, f"a tensor of {dtype} {shape}", f"{array_type.dtype} {array_type.shape}")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        refuse_target(path, f"a tensor of type {type(tensor).__qualname__}", "a plain dense one")
    if tensor.device.type == "meta":
        refuse_target(path, "a tensor without memory (meta device)", "one that is materialized, with .to_empty()")
    plain = tensor.detach()
    if any(stride == 0 and size > 1 for stride, size in zip(plain.stride(), shape, strict=True)):
        refuse_target(path, "an expanded tensor, whose elements share memory", "one with memory of its own")
    lazy = plain.is_conj() or plain.is_neg()
    if plain.device.type == "cpu" and plain.is_contiguous() and not lazy:
        return FlatSink(flat_bytes(plain) if plain.numel() else memoryview(bytearray()))
    return ElementSink(plain, plain.element_size(), lambda data: elements(data, plain.dtype), assign)


def elements(data: memoryview, dtype: Any) -> Tensor:
    """``data``, which is writable, seen as a tensor of one dimension."""
    torch = _import_torch()
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype)


def assign(target: Tensor, values: Tensor) -> None:
    target.copy_(values)


def decode_size(payload: Json) -> object:
    if not isinstance(payload, list) or not all(type(size) is int for size in payload):
        raise ValueError("a size is a list of whole numbers")
    return _import_torch().Size(payload)


def decode_dtype(payload: Json) -> object:
    torch = _import_torch()
    dtype = getattr(torch, payload, None) if isinstance(payload, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{str(payload)[:80]!r} is not a dtype of torch")
    return dtype


def decode_device(payload: Json) -> object:
    if not isinstance(payload, str):
        raise ValueError("a device is text")
    return _import_torch().device(payload)
