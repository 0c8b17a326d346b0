"""A state comes back as what it was: types, dtypes, shapes and bits."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from collections import OrderedDict
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sdrs.state import EncodedState, decode_index, encode, rebuild


def blobs_of(encoded: EncodedState) -> list[bytearray]:
    blobs = []
    for blob in encoded.blobs:
        data = bytearray()
        for segment in blob.segments():
            data += segment
        assert len(data) == blob.size_bytes
        blobs.append(data)
    assert sum(map(len, blobs)) == encoded.total_bytes
    return blobs


def round_trip(state: Any) -> Any:
    blobs = blobs_of(encode(state))
    return rebuild(decode_index(blobs[0]), blobs)


def bits(value: Any) -> Any:
    """Something comparable that differs whenever type, shape, dtype or one bit does."""
    match value:
        case torch.Tensor():
            plain = value.detach().resolve_conj().resolve_neg().contiguous()
            raw = ctypes.string_at(plain.data_ptr(), plain.nbytes)
            return (type(value), value.dtype, tuple(value.shape), value.requires_grad, raw)
        case np.ndarray() | np.generic():
            return (type(value), value.dtype, value.shape, value.tobytes())
        case dict():
            return (type(value), [(bits(key), bits(element)) for key, element in value.items()])
        case list() | tuple():
            return (type(value), [bits(element) for element in value])
        case float():
            return (float, struct.pack(">d", value))
        case complex():
            return (complex, struct.pack(">dd", value.real, value.imag))
    return (type(value), value)


def assert_same(state: Any) -> None:
    assert bits(round_trip(state)) == bits(state)


PLAIN = [
    None, True, False, 0, -1, 2**53 - 1, 2**53, -(2**64), 7**9000, 0.0, -0.0, 0.1, 1e308, 5e-324, math.inf,
    -math.inf, math.nan, struct.unpack(">d", bytes.fromhex("fff8000000001234"))[0], complex(-0.0, math.nan), "",
    "plain", "ünï 😀", "\ud83d\ude00", "\ud800", "nul\x00", b"", b"\x00\xff", b"x" * 5000, (), [], {}, ((),),
    OrderedDict(b=1, a=2),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_come_back_exactly(value: object) -> None:
    assert_same(value)
    assert_same({"nested": [value, (value,)]})


def test_keys_keep_their_types_and_their_order() -> None:
    assert_same(
        {2: "int", "2": "str", 1.5: "float", None: 0, False: 1, (1, ("a", None)): 2, 2**70: 3, math.inf: 4, "\ud800": 5}
    )
    assert_same({7**9000: np.ones(1)})


NUMPY_DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "u2", "i4", "u4", "i8", ">u8", "f2", "f4", ">f4", "f8", "g", "c8", "c16", ">c16",
    "M8[ns]", "m8[25s]", "M8", "S5", "U3", ">U3", "V7", [("a", "i4"), ("b", ">f8", (2, 3))],
    [("x", [("y", "M8[s]")]), ("z", "S3")],
    np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"]}, align=True), [(("title", "n"), "f4")],
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz,
    ml_dtypes.float8_e3m4, ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (3, 5)], ids=str)
def test_numpy_dtypes(dtype: Any, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = bytes(i % 2 for i in range(size)) if dtype.kind in "?U" else random.Random(1).randbytes(size)
    assert_same({"a": np.ndarray(shape, dtype, bytearray(raw) or None)})


@pytest.mark.parametrize(
    "scalar",
    [np.float64(-0.0), np.int8(3), np.bool_(True), np.str_("ü\x00"), np.bytes_(b"a\x00"), np.datetime64("2024", "s"),
     ml_dtypes.bfloat16(1.5), np.complex64(1j), np.str_(""), np.zeros((), "i4,f8")[()], np.longdouble(1) / 3],
    ids=repr,
)  # fmt: skip
def test_numpy_scalars_stay_scalars(scalar: np.generic) -> None:
    assert_same([scalar])


TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu, torch.float4_e2m1fn_x2,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (3, 5)], ids=str)
def test_torch_dtypes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    raw = torch.arange(math.prod(shape) * dtype.itemsize, dtype=torch.uint8) % (2 if dtype is torch.bool else 251)
    tensor = raw.view(dtype).view(shape) if raw.numel() else torch.empty(shape, dtype=dtype)
    assert_same(tensor)
    if tensor.dim() == 2:
        assert_same(tensor.t())


def test_views_come_back_with_their_values() -> None:
    base = np.arange(24, dtype="f4").reshape(2, 3, 4)
    tensor = torch.arange(24).view(2, 3, 4)
    complex_tensor = torch.arange(6).to(torch.complex64).view(2, 3)
    assert_same([np.asfortranarray(base), base[::-1], base[:, ::-2, 1:3], np.broadcast_to(base[0, 0], (3, 4)), base.T])
    assert_same(
        [tensor.transpose(0, 2), tensor[:, ::2], tensor[0, 0].expand(5, 4), tensor[1, 2, 3], tensor[0, 0, 1::2][:1]]
    )
    assert_same(
        [complex_tensor.conj(), complex_tensor.conj().t(), complex_tensor.conj().imag, complex_tensor[:, 1:].conj()]
    )


def test_a_negated_view_is_resolved() -> None:
    assert_same(torch._neg_view(torch.arange(3)))


def test_large_strided_arrays_are_cut_in_the_right_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdrs.state.arrays.CHUNK_BYTES", 64)
    base = np.arange(3 * 5 * 7 * 2, dtype="i8").reshape(3, 5, 7, 2)
    for axes in [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)]:
        assert_same([base.transpose(axes), torch.from_numpy(base).permute(axes), base.transpose(axes)[::-1, :, ::2]])
    assert_same(np.zeros(6, "V100")[::2])


def test_memmap_comes_back_as_an_array(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "m", "i4", "w+", shape=(4,))
    mapped[:] = 7
    assert bits(round_trip(mapped)) == bits(np.full(4, 7, "i4"))


def test_parameters_and_gradients_keep_their_flags() -> None:
    frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    leaf = torch.ones(3, requires_grad=True)
    assert_same([torch.nn.Parameter(torch.ones(2, 2)), frozen, leaf, leaf * 2, torch.ones(1)])


def test_torch_settings_come_back() -> None:
    assert_same([torch.float16, torch.Size([2, 3]), torch.device("cuda:1"), torch.quint8])


def test_tied_tensors_are_stored_once_and_come_back_as_one_object() -> None:
    weight, other = torch.ones(1000), np.ones(1000)
    state = {"a": weight, "b": [weight.view(1000), weight.detach()], "c": other, "d": other[:], "half": weight[:500]}
    encoded = encode(state)
    assert encoded.total_bytes < 4000 + 8000 + 2000 + 2500
    restored = round_trip(state)
    assert restored["a"] is restored["b"][0] is restored["b"][1]
    assert restored["c"] is restored["d"]
    assert restored["half"] is not restored["a"]
    assert_same(state)


def test_separate_empty_arrays_stay_separate() -> None:
    restored = round_trip([torch.empty(0), torch.empty(0), np.empty(0), np.empty(0)])
    assert len(set(map(id, restored))) == 4


def test_a_model_and_its_optimizer_load_again() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": random.getstate()}
    restored = round_trip(state)
    assert bits(restored) == bits(state)
    assert restored["model"]._metadata == state["model"]._metadata
    model.load_state_dict(restored["model"])
    optimizer.load_state_dict(restored["optimizer"])


def test_restored_arrays_are_writable_and_large_ones_are_views() -> None:
    state = {
        "numpy": np.zeros(3 << 20, "u1"),
        "torch": torch.zeros(1 << 20),
        "small": np.zeros(3),
        "empty": np.zeros(0),
    }
    blobs = blobs_of(encode(state))
    restored = rebuild(decode_index(blobs[0]), blobs)
    assert sum(np.shares_memory(restored["numpy"], np.frombuffer(blob, "u1")) for blob in blobs) == 1
    assert sum(np.shares_memory(restored["torch"].numpy(), np.frombuffer(blob, "u1")) for blob in blobs) == 1
    assert not any(np.shares_memory(restored["small"], np.frombuffer(blob, "u1")) for blob in blobs)
    for array in restored.values():
        array[...] = 1


def test_read_only_and_misaligned_buffers_are_copied() -> None:
    state = {"numpy": np.arange(1 << 18), "torch": torch.arange(1 << 18)}
    (blob,) = blobs_of(encode(state))
    for buffer in (bytes(blob), memoryview(bytearray(b"x") + blob)[1:]):
        restored = rebuild(decode_index(buffer), [buffer])
        assert bits(restored) == bits(state)
        assert restored["numpy"].flags.aligned
        restored["numpy"][0] = restored["torch"][0] = 9


plain_values = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.binary(max_size=50)
    | st.text(st.characters(), max_size=20)
)  # fmt: skip
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
dtypes = hnp.scalar_dtypes() | hnp.byte_string_dtypes() | hnp.unicode_string_dtypes() | hnp.array_dtypes()
numpy_arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
tensors = hnp.arrays(st.sampled_from(["f4", "i8", "u1", "c8", "?"]), hnp.array_shapes(min_side=0)).map(torch.from_numpy)
states = st.recursive(
    plain_values | numpy_arrays | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(states)
def test_any_nested_state_comes_back(state: Any) -> None:
    assert_same(state)


@settings(max_examples=30, deadline=None)
@given(states)
def test_the_same_state_gives_the_same_bytes(state: Any) -> None:
    encoded = encode(state)
    assert blobs_of(encoded) == blobs_of(encoded) == blobs_of(encode(state))
