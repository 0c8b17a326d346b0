"""GPU tensors come through pinned memory; there is no GPU here, so its part is played by the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sdrs.state import torch_sources
from sdrs.state.torch_sources import through_pinned


class Stream:
    def __init__(self, device: Any = None) -> None:
        self.waited = False

    def wait_stream(self, other: Any) -> None:
        self.waited = True


class Event:
    """What was copied is there only once this was waited for."""

    def __init__(self) -> None:
        self.pending: list[Any] = []

    def record(self, stream: Stream) -> None:
        assert stream.waited, "the training's own work on the tensor must be done before it is read"

    def synchronize(self) -> None:
        pass


def fake_torch() -> Any:
    cuda = SimpleNamespace(
        Stream=Stream, Event=Event, current_stream=lambda device: None, stream=lambda stream: nullcontext()
    )
    return SimpleNamespace(
        uint8=torch.uint8, cuda=cuda, empty=lambda size, dtype, pin_memory: torch.full((size,), 255, dtype=dtype)
    )


@pytest.mark.parametrize("count", [1, 7, 1024, 1025, 5000])
def test_all_pieces_come_in_order_and_each_is_valid_until_the_next(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_sources, "PINNED_BYTES", 4096)
    tensor = torch.arange(count, dtype=torch.float32)
    came = b""
    for piece in through_pinned(fake_torch(), tensor):
        assert len(piece) <= 4096
        came += bytes(piece)
    assert came == tensor.numpy().tobytes()
