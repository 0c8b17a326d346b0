"""How the bytes of torch's tensors are read: as they lie, in pieces, or many small ones at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sdrs.state.arrays import row_chunks
from sdrs.state.blobs import Source

Tensor = Any  # torch.Tensor, which must not be imported for its type either
PINNED_BYTES = 32 << 20


def loaded_torch() -> Any | None:
    """torch, if the process has it; a half-imported one counts as absent."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


class TorchSource(NamedTuple):
    """``joins``: the dtype, if it may be read together with others of the same."""

    tensor: Tensor
    size_bytes: int
    joins: Any = None

    def segments(self) -> Iterator[memoryview]:
        tensor = self.tensor
        if not tensor.numel():
            return
        lazy = tensor.is_conj() or tensor.is_neg()
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not lazy:
            yield flat_bytes(tensor)
            return
        if tensor.device.type == "cuda" and tensor.is_contiguous() and not lazy:
            yield from through_pinned(loaded_torch(), tensor)
            return
        # A contiguous tensor of another device is cut flat, so that its chunks are of even size.
        rows = tensor.view(-1) if tensor.is_contiguous() else tensor
        for chunk in row_chunks(rows, tensor.element_size()):
            yield flat_bytes(chunk.to("cpu").resolve_conj().resolve_neg().contiguous())


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


def flat_bytes(tensor: Tensor) -> memoryview:
    torch = loaded_torch()
    assert torch is not None
    # Not view(-1): a contiguous tensor of one element may have any stride, and only a stride of 1 can be seen as bytes.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy())


# Each call to torch costs about a microsecond: of tensors smaller than this it is most of what they cost.
SMALL_BYTES = 64 << 10
_JOINED_BYTES = 1 << 20
JOINABLE = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class JoinedSource:
    """Small tensors of one dtype, brought together by one call to torch when they are read."""

    tensors: tuple[Tensor, ...]
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        torch = loaded_torch()
        assert torch is not None
        yield flat_bytes(torch.cat(list(map(torch.Tensor.flatten, self.tensors))))


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
        if not isinstance(source, TorchSource) or source.joins is None:
            flush()
            joined.append(source)
            continue
        if run and (run_bytes + source.size_bytes > _JOINED_BYTES or run[0].joins is not source.joins):
            flush()
        run.append(source)
        run_bytes += source.size_bytes
    flush()
    return joined
