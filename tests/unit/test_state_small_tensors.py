"""Many small tensors are read together, and nobody can tell."""

from __future__ import annotations

import gc

import pytest
import torch

from sdrs.state import encode, torch_sources
from sdrs.state.blobs import EncodedState

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
