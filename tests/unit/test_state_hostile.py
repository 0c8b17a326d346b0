"""Nothing in a blob, however it got there, makes decode raise anything but CorruptDataError."""

from __future__ import annotations

import copy
import json
import random
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs.state import decode_index, encode, rebuild
from sdrs.state.blobs import BytesSource, StoredTensor, index_tensor, make_blob
from sdrs.state.container import TREE_TENSOR, parse_header
from sdrs_core.errors import CorruptDataError

STATE = {
    "model": OrderedDict(
        w=torch.ones(2, 3), p=torch.nn.Parameter(torch.ones(1)), n=np.arange(4), s=np.zeros(2, "i4,f8")
    ),
    0: [1, 2.5, float("nan"), 2**80, 1j, "\ud800", b"b", b"x" * 5000, None, True],
    "more": (np.float32(1), np.str_("s"), torch.float32, torch.Size([1]), torch.device("cpu"), np.zeros(2, "M8[s]")),
    "e": np.zeros((0, 3)),
}
BLOB = b"".join(bytes(segment) for segment in encode(STATE).blobs[0].segments())
SPANS = parse_header(BLOB, "blob")
INDEX = json.loads(BLOB[SPANS[TREE_TENSOR].start : SPANS[TREE_TENSOR].end])
DATA = {name: BLOB[span.start : span.end] for name, span in SPANS.items() if name != TREE_TENSOR}


def blob_with(index: Any) -> bytes:
    data = index if isinstance(index, bytes) else json.dumps(index).encode()
    tensors = [StoredTensor(name, "U8", (len(raw),), 1, BytesSource(raw)) for name, raw in DATA.items()]
    return b"".join(bytes(segment) for segment in make_blob([*tensors, index_tensor(TREE_TENSOR, data)]).segments())


def restore(blob: bytes) -> Any:
    return rebuild(decode_index(blob), [blob])


def test_the_untouched_index_restores() -> None:
    assert restore(blob_with(INDEX)).keys() == STATE.keys()


def places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        current = pending.pop()
        steps = list(current) if isinstance(current, dict) else range(len(current)) if isinstance(current, list) else []
        for step in steps:
            found.append((current, step))
            pending.append(current[step])
    return found


TAGS = [next(iter(item)) for item in INDEX["tree"] if isinstance(item, dict)]
JUNK = [
    None, True, -1, 0, 1, 2, 3, 10**30, 1.5, "", "x", "O", "|O8", "<f8", "i4,(", "ml_dtypes.finfo",
    "ml_dtypes.bfloat16", "float64", "quint8", "int4", "nn", [], [[]], {}, {"array": 0}, {"list": 2}, [["a", "|O8"]],
    "|S99999999999", "<V0", [["a", "<i4", [10**9, 10**9]]], [0, 10**18], [2**62, 4], {"numpy": ["<f8", "AAAA"]},
    {"odict+metadata": 0}, "bytes", "torch", "numpy", "\x00", "é",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_a_mutated_index_is_corrupt_or_a_state(seed: int) -> None:
    rng = random.Random(seed)
    index = copy.deepcopy(INDEX)
    for _ in range(rng.randint(1, 3)):
        if not (found := places(index)):
            break
        container, step = rng.choice(found)
        choice = rng.random()
        if choice < 0.2:
            del container[step]
        elif choice < 0.4 and isinstance(container, dict):
            container[rng.choice(TAGS)] = container.pop(step)
        elif choice < 0.5 and isinstance(container, list):
            container.insert(step, copy.deepcopy(rng.choice(JUNK)))
        else:
            container[step] = copy.deepcopy(rng.choice(JUNK))
    with suppress(CorruptDataError):
        restore(blob_with(index))


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:30])
def test_each_place_of_the_index_survives_junk(junk: Any) -> None:
    for number in range(len(places(INDEX))):
        index = copy.deepcopy(INDEX)
        container, step = places(index)[number]
        container[step] = junk
        with suppress(CorruptDataError):
            restore(blob_with(index))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(BLOB) - 1), st.integers(0, 255), st.integers(0, len(BLOB)))
def test_changed_and_truncated_bytes_are_corrupt_or_a_state(position: int, byte: int, length: int) -> None:
    changed = bytearray(BLOB)
    changed[position] = byte
    for blob in (bytes(changed), BLOB[:length], BLOB[length:], BLOB + BLOB[:length]):
        with suppress(CorruptDataError):
            restore(blob)


@pytest.mark.parametrize(
    "tree",
    [b"", b"[", b"[]", b"{}", b"\xff", b"NaN", b"[" * 100_000, b'{"version":2}', b'{"version":1}', b"9" * 5000,
     b'{"version":1,"blobs":1,"arrays":[],"tree":[]}', b'{"version":1,"blobs":1,"arrays":[],"tree":[1,2]}',
     b'{"version":1,"blobs":1,"arrays":[],"tree":[{"list":1000000000000}]}',
     b'{"version":1,"blobs":1,"arrays":[],"tree":[{"array":0}]}',
     b'{"version":1,"blobs":1,"arrays":[],"tree":["a",1,"a",2,{"dict":2}]}',
     b'{"version":1,"blobs":1,"arrays":[],"tree":[{"list":0},1,{"dict":1}]}',
     b'{"version":1,"blobs":1,"arrays":[],"tree":[{"bytes":""},1,{"dict":1}]}',
     b'{"version":1,"blobs":1,"arrays":[],"tree":[{"list":0}' + b',{"list":1}' * 1000 + b"]}"],
    ids=lambda tree: str(tree[:70]),
)  # fmt: skip
def test_malformed_indexes_are_corrupt(tree: bytes) -> None:
    with pytest.raises(CorruptDataError):
        restore(blob_with(tree))


@pytest.mark.parametrize(
    "blob", [b"", b"\0" * 7, b"\xff" * 8, b"\2" + b"\0" * 7 + b"{}", b"\2" + b"\0" * 7 + b"[]"], ids=repr
)
def test_what_is_no_container_is_corrupt(blob: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_index(blob)


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "i4,i4"}, {"dtype": "|O8"}, {"dtype": "<f4"}, {"shape": [3]}, {"shape": [5]}, {"as": "torch"}],
    ids=repr,
)
def test_an_array_that_does_not_fit_its_bytes_is_corrupt(changes: dict[str, Any]) -> None:
    index = copy.deepcopy(INDEX)
    (record,) = (record for record in index["arrays"] if record["tensor"] == "model.n")
    record |= changes
    with pytest.raises(CorruptDataError, match=r"'model\.n' of blob 0 does not fit"):
        restore(blob_with(index))


def test_a_header_longer_than_its_blob_is_not_read() -> None:
    with pytest.raises(CorruptDataError, match="claims a header"):
        decode_index((100).to_bytes(8, "little") + b"{}")


def test_a_wrong_number_of_blobs_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="1 blobs, but 2"):
        rebuild(decode_index(BLOB), [BLOB, BLOB])


def test_tensor_spans_may_neither_overlap_nor_leave_gaps() -> None:
    for offsets in ([[0, 4], [3, 8]], [[0, 3], [4, 8]], [[0, 4], [4, 7]], [[0, 4], [4, 9]], [[4, 0], [0, 8]]):
        entries = {
            str(number): {"dtype": "U8", "shape": [1], "data_offsets": pair} for number, pair in enumerate(offsets)
        }
        header = json.dumps(entries).encode()
        with pytest.raises(CorruptDataError):
            parse_header(len(header).to_bytes(8, "little") + header + b"12345678", "blob")
