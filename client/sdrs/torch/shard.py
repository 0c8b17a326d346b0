"""What a rank's plan becomes: one shard, in the format of any other state.

Each item is an array of a flat dict, by its name, so that a shard is a few safetensors files that other tools read.
Tensors are asked of the planner when their bytes are sent, one for each stream that sends: what a planner makes for
saving (another dtype, say) is never in memory all at once.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from sdrs.state import EncodedState, encode_flat
from sdrs.state.arrays import ArrayType, LiveArray
from sdrs.state.blobs import BytesSource
from sdrs.state.flatten import FlatState
from sdrs.state.paths import Path, TensorNames
from sdrs.state.torch_arrays import live_array
from sdrs.torch.metadata import Place
from sdrs_core.errors import SaveFailedError


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A tensor that is had from its planner each time it is sent."""

    planner: SavePlanner
    item: WriteItem
    type: ArrayType
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        array = _resolve(self.planner, self.item)
        if (array.type.dtype, array.type.shape) != (self.type.dtype, self.type.shape):
            raise SaveFailedError(f"{self.item.index.fqn} changed its shape or dtype while it was saved: save a copy")
        yield from array.source.segments()


@dataclass(frozen=True, slots=True)
class PlannedShard:
    encoded: EncodedState
    results: list[WriteResult]


def plan_shard(plan: SavePlan, planner: SavePlanner, rank: int) -> PlannedShard:
    names, unique = [], TensorNames()
    arrays: list[LiveArray] = []
    for item in plan.items:
        names.append(unique.unique(_name(item)))
        arrays.append(_live(planner, item))
    tree: list[Any] = [entry for number, name in enumerate(names) for entry in (name, {"array": number})]
    encoded = encode_flat(FlatState([*tree, {"dict": len(names)}], arrays, names))
    spans = {name: (number, span) for number, blob in enumerate(encoded.blobs) for name, span in blob.spans().items()}
    results = []
    for item, name, array in zip(plan.items, names, arrays, strict=True):
        number, span = spans[name]
        dtype = getattr(torch, array.type.dtype) if array.type.kind == "torch" else None
        shape = array.type.shape if dtype is not None else ()
        place = Place(rank, number, span.start, span.end, dtype, shape)
        results.append(WriteResult(item.index, span.end - span.start, place))
    return PlannedShard(encoded, results)


def _name(item: WriteItem) -> str:
    """Its name in the state, and for a part of a tensor where that begins: ``model.weight@512,0``."""
    fqn, offset, tensor = item.index.fqn, item.index.offset, item.tensor_data
    if offset is None or tensor is None or tensor.chunk.sizes == tensor.size:
        return fqn
    return f"{fqn}@{','.join(map(str, offset))}"


def _live(planner: SavePlanner, item: WriteItem) -> LiveArray:
    if item.type == WriteItemType.BYTE_IO:
        data = planner.resolve_data(item)
        assert isinstance(data, io.BytesIO)
        raw = data.getvalue()
        return LiveArray(ArrayType("bytes", "bytes", (len(raw),)), 1, "U8", id(raw), BytesSource(raw))
    # Only looked at here: what the planner made of it is let go, and made again when it is sent.
    array = _resolve(planner, item)
    source = PlannedSource(planner, item, array.type, array.source.size_bytes)
    return LiveArray(array.type, array.item_bytes, array.native_dtype, id(source), source)


def _resolve(planner: SavePlanner, item: WriteItem) -> LiveArray:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor)
    return live_array(tensor.detach(), Path(Path(), item.index.fqn))
