"""DCP's Metadata as a plain state, and back.

Other storages pickle it, and whoever can write a checkpoint can then run code in all who load it. Here it is a state
like any other (dicts, tuples, sizes and dtypes; see ``sdrs.state``), and each part is checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from sdrs_core.errors import CorruptDataError, InvalidArgumentError

FORMAT = "torch.distributed.checkpoint"
VERSION = 1
DCP_VERSION = "1.0.0"

_MEMORY_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item's bytes are: in which rank's shard, in which blob of it, and from which byte to which."""

    rank: int
    blob: int
    start: int
    end: int
    # Of the stored tensor; None for what DCP calls bytes.
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()

    def to_tuple(self) -> tuple[Any, ...]:
        return (self.rank, self.blob, self.start, self.end, self.dtype, self.shape)


def to_state(metadata: Metadata) -> dict[str, Any]:
    """``metadata.storage_data`` has a Place for each MetadataIndex."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "dcp_version": metadata.version,
        "items": {fqn: _item_to(item) for fqn, item in metadata.state_dict_metadata.items()},
        "places": [
            (index.fqn, _sizes_to(index.offset), index.index, *place.to_tuple())
            for index, place in metadata.storage_data.items()
        ],
        "planner": metadata.planner_data,
    }


def from_state(state: Any) -> Metadata:
    """CorruptDataError if it is not what ``to_state`` makes."""
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise InvalidArgumentError(
            "this checkpoint was not saved by torch.distributed.checkpoint: restore it with checkpoints(job).restore()"
        )
    if state.get("version") != VERSION:
        raise InvalidArgumentError(f"its metadata has version {state.get('version')!r}: upgrade sdrs to load it")
    try:
        items = _checked(state["items"], dict)
        places = [_place_from(entry) for entry in _checked(state["places"], list)]
        return Metadata(
            state_dict_metadata={_checked(fqn, str): _item_from(item) for fqn, item in items.items()},
            planner_data=state["planner"],
            storage_data=dict(places),
            version=state["dcp_version"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"the metadata of this checkpoint is malformed ({error!r}): load another step"
        ) from error


def _item_to(item: TensorStorageMetadata | BytesStorageMetadata) -> Any:
    if isinstance(item, BytesStorageMetadata):
        return None
    properties = item.properties
    names = {known: name for name, known in _MEMORY_FORMATS.items()}
    return {
        "dtype": properties.dtype,
        "requires_grad": properties.requires_grad,
        "pin_memory": properties.pin_memory,
        "memory_format": names.get(properties.memory_format, "contiguous"),
        "size": tuple(item.size),
        "chunks": [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in item.chunks],
    }


def _item_from(item: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if item is None:
        return BytesStorageMetadata()
    properties = TensorProperties(
        dtype=_checked(item["dtype"], torch.dtype),
        requires_grad=_checked(item["requires_grad"], bool),
        memory_format=_MEMORY_FORMATS[item["memory_format"]],
        pin_memory=_checked(item["pin_memory"], bool),
    )
    chunks = [ChunkStorageMetadata(_sizes_from(offsets), _sizes_from(sizes)) for offsets, sizes in item["chunks"]]
    return TensorStorageMetadata(properties, _sizes_from(item["size"]), chunks)


def _place_from(entry: Any) -> tuple[MetadataIndex, Place]:
    fqn, offset, hint, rank, blob, start, end, dtype, shape = entry
    index = MetadataIndex(
        _checked(fqn, str),
        None if offset is None else _sizes_from(offset),
        None if hint is None else _checked(hint, int),
    )
    sizes = tuple(_sizes_from(shape))
    if dtype is not None:
        size_bytes = torch.Size(sizes).numel() * _checked(dtype, torch.dtype).itemsize
        if end - start != size_bytes:
            raise ValueError(f"{fqn[:80]!r} has {end - start} bytes instead of {size_bytes}")
    return index, Place(_count(rank), _count(blob), _count(start), _count(end), dtype, sizes)


def _checked(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} where {kind.__name__} is expected")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{str(value)[:40]} where a count is expected")
    return value


def _sizes_to(sizes: torch.Size | None) -> tuple[int, ...] | None:
    return None if sizes is None else tuple(sizes)


def _sizes_from(sizes: Any) -> torch.Size:
    return torch.Size([_count(size) for size in _checked(sizes, tuple)])
