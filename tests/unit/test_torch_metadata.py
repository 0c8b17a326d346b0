"""DCP's metadata as a state: it comes back the same, and nothing that is not what it should be is used."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from sdrs.errors import CorruptDataError, InvalidArgumentError
from sdrs.state import decode_index, encode, rebuild
from sdrs.torch.metadata import Place, from_state, to_state


def make_metadata() -> Metadata:
    chunks = [ChunkStorageMetadata(torch.Size([row, 0]), torch.Size([2, 3])) for row in (0, 2)]
    properties = TensorProperties(torch.bfloat16, requires_grad=True, memory_format=torch.preserve_format)
    return Metadata(
        state_dict_metadata={
            "w": TensorStorageMetadata(properties, torch.Size([4, 3]), chunks),
            "epoch": BytesStorageMetadata(),
            "scalar": TensorStorageMetadata(TensorProperties(torch.int64), torch.Size([]), []),
        },
        planner_data={"w": ("model", 0, "w"), "epoch": ("epoch",)},
        storage_data={
            MetadataIndex("w", torch.Size([0, 0]), 0): Place(0, 0, 64, 76, torch.bfloat16, (2, 3)),
            MetadataIndex("w", torch.Size([2, 0]), 1): Place(1, 3, 128, 140, torch.bfloat16, (2, 3)),
            MetadataIndex("epoch"): Place(0, 1, 0, 100),
        },
        version="1.0.0",
    )


def stored_and_read(state: Any) -> Any:
    blobs = [b"".join(bytes(segment) for segment in blob.segments()) for blob in encode(state).blobs]
    return rebuild(decode_index(blobs[0]), blobs)


def test_metadata_comes_back_the_same() -> None:
    assert from_state(stored_and_read(to_state(make_metadata()))) == make_metadata()


def test_an_object_that_a_planner_left_is_named() -> None:
    metadata = make_metadata()
    metadata.planner_data = {"w": object()}
    with pytest.raises(TypeError, match=r'state\["planner"\]\["w"\]'):
        encode(to_state(metadata))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["items"], []),
        (["items", "w"], 3),
        (["items", "w", "dtype"], "bfloat16"),
        (["items", "w", "size"], [4, 3]),
        (["items", "w", "size"], (4, -3)),
        (["items", "w", "chunks"], [((0, 0),)]),
        (["items", "w", "memory_format"], "none"),
        (["places"], {}),
        (["places", 0], ("w",)),
        (["places", 0], ("w", (0, 0), 0, 0, 0, 64, 77, torch.bfloat16, (2, 3))),
        (["places", 0], ("w", (0, 0), 0, -1, 0, 64, 76, torch.bfloat16, (2, 3))),
        (["places", 0], ("w", (0, 0), 0, True, 0, 64, 76, torch.bfloat16, (2, 3))),
        (["places", 0], (["w"], (0, 0), 0, 0, 0, 64, 76, torch.bfloat16, (2, 3))),
    ],
)
def test_what_is_malformed_is_refused(path: list[Any], value: Any) -> None:
    state = copy.deepcopy(to_state(make_metadata()))
    place = state
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(CorruptDataError, match="metadata of this checkpoint is malformed"):
        from_state(state)


@pytest.mark.parametrize("state", [[], {"x": 1}, {"format": "torch.distributed.checkpoint", "version": 2}])
def test_another_state_is_not_taken_for_it(state: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        from_state(state)
