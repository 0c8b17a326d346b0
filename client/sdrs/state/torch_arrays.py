"""torch's tensors, in and out.

A state that holds tensors has imported torch already, so saving looks it up and never imports it; restoring a state
that was saved from torch does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sdrs.state.arrays import MAX_DIMENSIONS, ArrayType, LiveArray, row_chunks
from sdrs.state.blobs import Source
from sdrs.state.container import Json
from sdrs.state.paths import Path, refuse_as, refuse_target
from sdrs.state.sinks import ElementSink, FlatSink, Sink
from sdrs_core.errors import RefusedError

Tensor = Any  # torch.Tensor, which must not be imported for its type either

_NATIVE = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_AS_BYTES = {
    "complex32", "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
}  # fmt: skip
PINNED_BYTES = 32 << 20
_DTYPES = frozenset(_NATIVE) | _AS_BYTES


def loaded_torch() -> Any | None:
    """torch, if the process has it; a half-imported one counts as absent."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


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


@dataclass(frozen=True, slots=True)
class TorchSource:
    tensor: Tensor
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        tensor = self.tensor
        if not tensor.numel():
            return
        lazy = tensor.is_conj() or tensor.is_neg()
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not lazy:
            yield _flat_bytes(tensor)
            return
        if tensor.device.type == "cuda" and tensor.is_contiguous() and not lazy:
            yield from through_pinned(loaded_torch(), tensor)
            return
        # A contiguous tensor of another device is cut flat, so that its chunks are of even size.
        rows = tensor.view(-1) if tensor.is_contiguous() else tensor
        for chunk in row_chunks(rows, tensor.element_size()):
            yield _flat_bytes(chunk.to("cpu").resolve_conj().resolve_neg().contiguous())


def through_pinned(torch: Any, tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a GPU's tensor, in pieces: the device fills one pinned buffer while the caller copies the other.

    torch keeps pinned memory for the next who asks; memory that is not pinned is copied twice, and slower.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    size_bytes = flat.numel()
    buffers = [torch.empty(min(PINNED_BYTES, size_bytes), dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    ahead: tuple[Any, Any] | None = None
    stream = torch.cuda.Stream(tensor.device)
    # What the training has put on its own stream is to be done first.
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    for number, start in enumerate(range(0, size_bytes, PINNED_BYTES)):
        piece = flat[start : start + PINNED_BYTES]
        # Free again: the caller has asked for the next piece since it was handed out.
        target = buffers[number % 2][: piece.numel()]
        with torch.cuda.stream(stream):
            target.copy_(piece, non_blocking=True)
            filled = torch.cuda.Event()
            filled.record(stream)
        if ahead is not None:
            yield _when_filled(*ahead)
        ahead = (target, filled)
    if ahead is not None:
        yield _when_filled(*ahead)


def _when_filled(buffer: Tensor, filled: Any) -> memoryview:
    filled.synchronize()
    return memoryview(buffer.numpy())


def _flat_bytes(tensor: Tensor) -> memoryview:
    torch = loaded_torch()
    assert torch is not None
    # Not view(-1): a contiguous tensor of one element may have any stride, and only a stride of 1 can be seen as bytes.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())


# Each call to torch costs about a microsecond: of tensors smaller than this it is most of what they cost.
SMALL_BYTES = 64 << 10
_JOINED_BYTES = 1 << 20
_JOINABLE = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class JoinedSource:
    """Small tensors of one dtype, brought together by one call to torch when they are read."""

    tensors: tuple[Tensor, ...]
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        torch = loaded_torch()
        assert torch is not None
        yield _flat_bytes(torch.cat([tensor.reshape(-1) for tensor in self.tensors]))


def join_small(sources: Sequence[Source]) -> list[Source]:
    """The same bytes in the same order, from fewer sources."""
    joined: list[Source] = []
    run: list[TorchSource] = []
    run_bytes = 0

    def flush() -> None:
        nonlocal run, run_bytes
        if len(run) > 1:
            joined.append(JoinedSource(tuple(source.tensor for source in run), run_bytes))
        else:
            joined.extend(run)
        run, run_bytes = [], 0

    for source in sources:
        if not isinstance(source, TorchSource) or not _is_joinable(source):
            flush()
            joined.append(source)
            continue
        if run and (run_bytes + source.size_bytes > _JOINED_BYTES or run[0].tensor.dtype != source.tensor.dtype):
            flush()
        run.append(source)
        run_bytes += source.size_bytes
    flush()
    return joined


def _is_joinable(source: TorchSource) -> bool:
    tensor = source.tensor
    if not 0 < source.size_bytes < SMALL_BYTES or _dtype_name(tensor.dtype) not in _JOINABLE:
        return False
    return bool(tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg())


@cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def live_array(tensor: Tensor, path: Path) -> LiveArray:
    torch = loaded_torch()
    assert torch is not None
    _check_storable(torch, tensor, path)
    dtype = _dtype_name(tensor.dtype)
    parameter = type(tensor) is torch.nn.Parameter
    plain = tensor.detach()
    device = "" if plain.is_cpu else str(plain.device)
    array_type = ArrayType("torch", dtype, tuple(plain.shape), tensor.requires_grad, parameter, device)
    address = plain.data_ptr() if plain.numel() else id(tensor)
    lazy = (plain.is_conj(), plain.is_neg())
    return LiveArray(
        type=array_type,
        item_bytes=plain.element_size(),
        native_dtype=_NATIVE.get(dtype),
        identity=(address, plain.stride(), lazy, array_type),
        source=TorchSource(plain, plain.numel() * plain.element_size()),
    )


def _check_storable(torch: Any, tensor: Tensor, path: Path) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        name = type(tensor).__qualname__
        refuse_as(path, f"a tensor of type {name}", "store its plain local tensor (for a DTensor: .to_local())")
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
        return importlib.import_module("torch")
    except ImportError as error:
        raise RefusedError("this state was saved from torch: install torch to restore it") from error


def _dtype(torch: Any, name: Json) -> Any:
    if not isinstance(name, str) or name not in _DTYPES:
        raise ValueError(f"{str(name)[:80]!r} is not a dtype of torch")
    if not hasattr(torch, name):
        raise RefusedError(f"this state holds tensors of {name}, which torch {torch.__version__} lacks: upgrade torch")
    return getattr(torch, name)


def item_bytes(array_type: ArrayType) -> int:
    return int(_dtype(_import_torch(), array_type.dtype).itemsize)


def restore(array_type: ArrayType, data: memoryview) -> Tensor:
    """A tensor over ``data``, which is writable; ValueError, TypeError or RuntimeError if it does not fit."""
    torch = _import_torch()
    dtype = _dtype(torch, array_type.dtype)
    if len(data):
        tensor = torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(array_type.shape)
    else:
        tensor = torch.empty(array_type.shape, dtype=dtype)
    if array_type.parameter:
        return torch.nn.Parameter(tensor, requires_grad=array_type.requires_grad)
    return tensor.requires_grad_(array_type.requires_grad)


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
        return FlatSink(_flat_bytes(plain) if plain.numel() else memoryview(bytearray()))
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
