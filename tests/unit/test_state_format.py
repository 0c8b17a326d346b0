"""Blobs are safetensors files, few, aligned, and made without doubling the state."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs.state import EncodedState, decode_index, encode, rebuild
from sdrs.state.blobs import CHUNK_BYTES
from sdrs.state.container import parse_header
from sdrs.state.plan import BIG_BYTES, PACK_BYTES, PACK_TENSORS, plan

MIB = 1 << 20


def blobs_of(encoded: EncodedState) -> list[bytearray]:
    blobs = []
    for blob in encoded.blobs:
        copied = bytearray()
        for segment in blob.segments():  # each is valid until the next is asked for
            copied += segment
        assert len(copied) == blob.size_bytes
        blobs.append(copied)
    return blobs


def test_safetensors_opens_every_blob() -> None:
    state = {
        "model": {"layers": [{"weight": torch.arange(6).view(2, 3), "scale": torch.ones(2, dtype=torch.bfloat16)}]},
        "f8": torch.ones(3, dtype=torch.float8_e4m3fn),
        "c16": np.ones((2, 2), "c16"),
        "records": np.zeros(3, "i4,f8"),
        "text": np.array(["ab"]),
        "empty": np.zeros((0, 4)),
        "big": np.arange(BIG_BYTES // 8 + 1),
        "bytes": b"x" * 10_000,
        "": np.ones(1),
        "sdrs": {"tree": np.ones(2), "files": np.ones(3)},
        "__metadata__": np.ones(4),
        "\ud800" * 200: np.ones(5),
    }
    blobs = [safetensors.torch.load(bytes(blob)) for blob in blobs_of(encode(state))]
    assert len(blobs) == 2
    assert list(blobs[1]) == ["big"]
    assert torch.equal(blobs[0]["model.layers.0.weight"], state["model"]["layers"][0]["weight"])  # type: ignore[index]
    assert blobs[0]["model.layers.0.scale"].dtype is torch.bfloat16
    assert blobs[0]["f8"].dtype is torch.float8_e4m3fn
    assert (blobs[0]["c16"].dtype, blobs[0]["c16"].shape) == (torch.uint8, (2, 2, 16))
    assert blobs[0]["sdrs.tree"].dtype is torch.uint8
    assert blobs[0]["sdrs.tree#2"].shape == (2,)
    assert blobs[0]["__metadata__#2"].shape == (4,)


def test_numpy_users_open_blobs_too() -> None:
    (blob,) = blobs_of(encode({"a": np.arange(3, dtype=">i4"), "b": np.arange(4, dtype="u2")}))
    opened = safetensors.numpy.load(bytes(blob))
    assert opened["b"].dtype == np.uint16
    assert opened["a"].shape == (3, 4)


def test_names_that_look_alike_are_told_apart() -> None:
    state = {
        "a": {"b": np.zeros(1)},
        "a.b": np.ones(1),
        "a.b#2": np.full(1, 2.0),
        1: np.full(1, 3.0),
        "1": np.full(1, 4.0),
    }
    blobs = blobs_of(encode(state))
    assert rebuild(decode_index(blobs[0]), blobs) == state


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["u1", "i2", "f4", "f8", "c16", "g", "S3", "U3", "S64", "i4,f8"]), max_size=20), st.data()
)
def test_tensors_start_at_a_multiple_of_their_alignment(dtypes: list[str], data: st.DataObject) -> None:
    state = [np.zeros(data.draw(st.integers(0, 5)), dtype) for dtype in dtypes]
    (blob,) = blobs_of(encode(state))
    spans = parse_header(blob, "blob")
    assert (8 + struct.unpack("<Q", blob[:8])[0]) % 64 == 0
    for position, array in enumerate(state):
        lowest_bit = array.itemsize & -array.itemsize
        assert spans[str(position)].start % lowest_bit == 0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 1 << 33) | st.integers(0, 100) | st.just(BIG_BYTES - 1), max_size=2000))
def test_a_plan_has_every_array_once_in_few_bounded_blobs(sizes: list[int]) -> None:
    blobs = plan(sizes)
    assert sorted(position for blob in blobs for position in blob) == list(range(len(sizes)))
    assert len(blobs) <= 520
    share = sum(sizes) // 256
    for blob in blobs:
        assert len(blob) <= 1 or sum(sizes[position] for position in blob) <= max(PACK_BYTES, share)
        assert len(blob) <= 1 or all(sizes[position] < max(BIG_BYTES, share) for position in blob)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [([], 1), ([4] * 100_000, 2), ([4] * 3_000_000, 31), ([MIB] * 10_000, 160), ([15 * MIB] * 100_000, 520),
     ([1 << 30] * 10, 11), ([1 << 40, *[MIB] * 1000], 3)],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_blobs_stay_few_whatever_the_state(sizes: list[int], most: int) -> None:
    blobs = plan(sizes)
    assert len(blobs) <= most
    assert max(map(len, blobs)) <= PACK_TENSORS


def test_many_small_arrays_come_back_from_one_blob() -> None:
    base = np.arange(40_000, dtype="f4").reshape(20_000, 2)
    state = {"layers": {f"w{i}": row for i, row in enumerate(base)}}
    blobs = blobs_of(encode(state))
    assert len(blobs) == 1
    restored = rebuild(decode_index(blobs[0]), blobs)
    assert all(np.array_equal(restored["layers"][f"w{i}"], base[i]) for i in range(0, 20_000, 97))


def test_contiguous_arrays_are_handed_out_as_they_lie() -> None:
    array, tensor, text = np.zeros(MIB), torch.zeros(MIB), b"x" * MIB
    views = [
        np.frombuffer(segment, "u1")
        for blob in encode([array, tensor, text]).blobs
        for segment in blob.segments()
        if len(segment) >= MIB
    ]
    for own in (array, tensor.numpy(), np.frombuffer(text, "u1")):
        assert sum(np.shares_memory(view, own) for view in views) == 1


def peak_bytes(state: object) -> int:
    tracemalloc.start()
    try:
        for blob in encode(state).blobs:
            for segment in blob.segments():
                assert segment.nbytes
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_strided_array_costs_a_few_mib_and_not_a_copy() -> None:
    base = np.zeros((8192, 8192), "f4")
    base[0, 0] = 1
    assert peak_bytes([base.T, base[:, ::-1], base[::2].reshape(4, -1, 64, 8192).swapaxes(1, 3)]) < 3 * CHUNK_BYTES


def test_a_strided_tensor_is_handed_out_in_small_pieces() -> None:
    # torch's allocations are not traced, so the pieces themselves are looked at.
    tensor = torch.zeros((4096, 4096), dtype=torch.uint8)
    for state in (
        tensor.t(),
        tensor.view(2, -1, 2, 1024).transpose(1, 3),
        torch.zeros(4 * MIB, dtype=torch.cfloat).conj(),
    ):
        sizes = [len(segment) for blob in encode(state).blobs for segment in blob.segments()]
        assert max(sizes) <= CHUNK_BYTES


def test_import_needs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, sdrs.state as s; e = s.encode({'a': [1, b'x' * 9000]});"
        "b = b''.join(bytes(x) for x in e.blobs[0].segments());"
        "assert s.rebuild(s.decode_index(b), [b]) == {'a': [1, b'x' * 9000]};"
        "print(sorted(m for m in ('torch', 'numpy', 'ml_dtypes', 'safetensors') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_torch_is_imported_to_restore_what_was_saved_from_torch() -> None:
    (blob,) = blobs_of(encode({"t": torch.ones(2)}))
    code = (
        "import sys, sdrs.state as s; b = bytes.fromhex(sys.stdin.read()); assert 'torch' not in sys.modules;"
        "print(s.rebuild(s.decode_index(b), [b])['t'].sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], input=blob.hex(), capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "2.0", done.stderr
