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
from sdrs.state.arrays import ArrayKind, LiveArray
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
    kind: ArrayKind

    @property
    def size_bytes(self) -> int:
        return self.kind.size_bytes

    def segments(self) -> Iterator[memoryview]:
        array = _resolve(self.planner, self.item)
        if array.kind.stored != self.kind.stored:
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
    kinds, sources = [array.kind for array in arrays], [array.source for array in arrays]
    encoded = encode_flat(FlatState([*tree, {"dict": len(names)}], names, kinds, sources))
    spans = {name: (number, span) for number, blob in enumerate(encoded.blobs) for name, span in blob.spans().items()}
    results = []
    for item, name, array in zip(plan.items, names, arrays, strict=True):
        number, span = spans[name]
        array_type = array.kind.type
        dtype = getattr(torch, array_type.dtype) if array_type.kind == "torch" else None
        shape = array_type.shape if dtype is not None else ()
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
        return LiveArray.of_bytes(data.getvalue())
    # Only looked at here: what the planner made of it is let go, and made again when it is sent.
    kind = _resolve(planner, item).kind
    return LiveArray(kind, id(item), PlannedSource(planner, item, kind))


def _resolve(planner: SavePlanner, item: WriteItem) -> LiveArray:
    tensor = planner.resolve_data(item)
    assert isinstance(tensor, torch.Tensor)
    return live_array(tensor.detach(), Path(Path(), item.index.fqn))
