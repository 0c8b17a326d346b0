"""The memory of async saves: kept, and never overwritten while it is being sent."""

from __future__ import annotations

import torch

from sdrs.torch.staging import Staging


def test_memory_is_used_again_once_it_is_given_back() -> None:
    staging = Staging()
    first, ticket = staging.copy({"w": torch.ones(5), "n": 1})
    assert ticket is not None
    ticket.is_over = True
    again, _ = staging.copy({"w": torch.zeros(5), "n": 2})
    assert again["w"].data_ptr() == first["w"].data_ptr()
    assert again["n"] == 2


def test_what_is_still_being_sent_is_not_overwritten() -> None:
    staging = Staging()
    first, ticket = staging.copy({"w": torch.ones(5)})
    second, none = staging.copy({"w": torch.zeros(5)})
    assert none is None
    assert bool(first["w"].all())
    assert not second["w"].any()
    del ticket  # a save that failed before it wrote anything lets go of it
    third, ticket = staging.copy({"w": torch.zeros(5)})
    assert ticket is not None
    assert third["w"].data_ptr() == first["w"].data_ptr()


def test_a_state_of_another_shape_gets_other_memory() -> None:
    staging = Staging()
    _, ticket = staging.copy({"w": torch.ones(1), "v": torch.ones(2)})
    del ticket
    wide, ticket = staging.copy({"w": torch.full((5,), 3.0), "v": torch.ones(2)})
    assert ticket is not None
    assert wide["w"].tolist() == [3.0] * 5
