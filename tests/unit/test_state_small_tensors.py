"""Many small tensors are read together, and nobody can tell."""

from __future__ import annotations

import gc
import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sdrs.state import decode_index, encode, parse_header, rebuild, torch_sources
from sdrs.state.arrays import records_from_json
from sdrs.state.blobs import EncodedState
from sdrs.state.container import TREE_TENSOR
from sdrs_core.errors import CorruptDataError, UnsupportedObjectError

DTYPES = [torch.float32, torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]


def _state() -> dict[str, torch.Tensor]:
    state = {}
    for number in range(300):
        tensor = (torch.arange(number % 7 * 5) % 2 + number).to(DTYPES[number % len(DTYPES)])
        if number % 11 == 0:
            tensor = torch.arange(24.0).reshape(4, 6).t()
        if number % 13 == 0:
            tensor = torch.tensor(float(number))
        if number % 17 == 0:
            tensor = torch.complex(torch.ones(3), torch.full((3,), float(number))).conj().imag
        if number % 50 == 0:
            tensor = torch.full((40_000,), float(number))
        state[f"t{number}"] = tensor
    return state


def _bytes(encoded: EncodedState) -> list[bytes]:
    return [b"".join(bytes(segment) for segment in blob.segments()) for blob in encoded.blobs]


def test_joined_or_alone_the_bytes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _state()
    joined = encode(state)
    assert any(isinstance(source, torch_sources.JoinedSource) for source in joined.blobs[0].sources)
    together, spans = _bytes(joined), [blob.spans() for blob in joined.blobs]
    monkeypatch.setattr(torch_sources, "SMALL_BYTES", 0)
    alone = encode(state)
    assert not any(isinstance(source, torch_sources.JoinedSource) for source in alone.blobs[0].sources)
    assert _bytes(alone) == together
    assert [blob.spans() for blob in alone.blobs] == spans


def test_what_changes_after_it_was_described_is_read_as_it_is_then() -> None:
    first, second = torch.zeros(4), torch.zeros(4)
    encoded = encode({"a": first, "b": second})
    second += 7
    assert torch.full((4,), 7.0).numpy().tobytes() in _bytes(encoded)[0]


def test_the_garbage_collector_is_on_again_afterwards() -> None:
    assert gc.isenabled()
    encode(_state())
    assert gc.isenabled()
    with pytest.raises(TypeError):
        encode({"a": object()})
    assert gc.isenabled()
    gc.disable()
    try:
        encode(_state())
        assert not gc.isenabled()
    finally:
        gc.enable()


def _restored(state: Any) -> Any:
    buffers = [bytearray(data) for data in _bytes(encode(state))]
    return rebuild(decode_index(buffers[0]), buffers)


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.arange(6.0), "b": torch.arange(6, dtype=torch.int32)},
        {"a": torch.arange(6.0).reshape(3, 2), "b": torch.arange(6.0)},
        {"b": torch.arange(6.0), "a": torch.arange(6.0) + 1},
        {"a": torch.nn.Parameter(torch.arange(6.0)), "b": torch.arange(6.0).requires_grad_()},
        {"a": torch.arange(6.0), "b": torch.arange(12.0)[::2]},
    ],
    ids=["dtype", "shape", "order", "flags", "strides"],
)
def test_the_same_names_with_something_else_are_described_anew(changed: dict[str, torch.Tensor]) -> None:
    _restored({"a": torch.arange(6.0), "b": torch.arange(6.0)})
    restored = _restored(changed)
    assert list(restored) == list(changed)
    for name, tensor in changed.items():
        other = restored[name]
        assert (type(other), other.dtype, other.shape) == (type(tensor), tensor.dtype, tensor.shape)
        assert other.requires_grad == tensor.requires_grad
        assert torch.equal(other, tensor)


def test_what_changed_between_two_saves_is_in_the_second() -> None:
    state = {f"t{number}": torch.full((3,), float(number)) for number in range(10)}
    before = _bytes(encode(state))
    state["t7"] += 100
    state["t8"].data = torch.full((5,), 8.5)
    restored = _restored(state)
    assert _bytes(encode(state)) != before
    assert torch.equal(restored["t7"], torch.full((3,), 107.0))
    assert torch.equal(restored["t8"], torch.full((5,), 8.5))


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.sampled_from(range(len(DTYPES))), min_size=1, max_size=6),
    st.lists(st.integers(0, 3), max_size=3),
)
def test_header_and_index_are_written_as_json_writes_them(names: dict[str, int], shape: list[int]) -> None:
    state = {name: torch.ones(shape).to(DTYPES[number]) for name, number in names.items()}
    (data,) = _bytes(encode(state))
    (header_bytes,) = struct.unpack("<Q", data[:8])
    span = parse_header(data, "it")[TREE_TENSOR]
    for text in (data[8 : 8 + header_bytes].rstrip(b" "), data[span.start : span.end]):
        assert json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False).encode() == text


def test_tensors_at_one_address_are_told_apart_and_tied_ones_are_not() -> None:
    whole = torch.arange(8.0)
    empty = torch.nn.Parameter(torch.empty(0))
    state = [whole, whole[:4], whole.view(2, 4), whole, whole[:0], whole[:0], empty, empty, whole.view(torch.int32)]
    restored = _restored(state)
    assert restored[0] is restored[3]
    assert restored[6] is restored[7]
    assert len({id(tensor) for tensor in restored}) == len(state) - 2
    for tensor, other in zip(state, restored, strict=True):
        assert other.dtype == tensor.dtype
        assert torch.equal(other, tensor)


def test_a_small_tensor_has_memory_of_its_own() -> None:
    buffers = [bytearray(data) for data in _bytes(encode([torch.arange(6.0) + number for number in range(50)]))]
    restored = rebuild(decode_index(buffers[0]), buffers)
    buffers[0][:] = bytes(len(buffers[0]))
    for number, tensor in enumerate(restored):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert torch.equal(tensor, torch.arange(6.0) + number)


@pytest.mark.parametrize("bad", [torch.empty(2, device="meta"), torch.eye(2).to_sparse()], ids=["meta", "sparse"])
def test_of_many_tensors_the_one_that_cannot_be_stored_is_named(bad: torch.Tensor) -> None:
    with pytest.raises(UnsupportedObjectError, match=r"state\[\"model\"\]\[2\]: a tensor"):
        encode({"a": b"x" * 9000, "model": [torch.ones(1), torch.ones(2), bad, torch.ones(3)]})


def _record(**changes: Any) -> dict[str, Any]:
    return {"blob": 0, "tensor": "t", "as": "torch", "dtype": "float32", "shape": [1, 2], **changes}


def test_arrays_that_are_alike_share_their_type_and_others_do_not() -> None:
    changes: list[dict[str, Any]] = [{}, {"shape": [2, 1]}, {"dtype": "int8"}, {"parameter": True}, {"device": "cuda"}]
    records = records_from_json([_record(**change) for change in (*changes, *changes)], blob_count=1)
    types = [record.type for record in records]
    assert len({*types}) == len({id(array_type) for array_type in types}) == len(changes)


@pytest.mark.parametrize("changes", [{"shape": [-1, 2]}, {"blob": 1}, {"tensor": 3}, {"as": []}, {"parameter": "x"}])
def test_a_malformed_array_after_good_ones_is_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError):
        records_from_json([_record(), _record(), _record(**changes)], blob_count=1)
