"""What the ranks save and load: the same numbers whatever the number of ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sdrs.torch import StorageReader, StorageWriter


def make_model(seed: int) -> nn.Sequential:
    """Of 9 and 7 rows, which no number of ranks divides; and one tensor larger than a block."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(257, 9), nn.ReLU(), nn.Linear(9, 7), nn.Linear(7, 40_003))


def sharded(count: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = make_model(seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    model(torch.randn(4, 257)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def save_sharded(rank: int, url: str, count: int, seed: int) -> float:
    model, optimizer = sharded(count, seed)
    train(model, optimizer)
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optimizer": states[1], "epoch": 3}, storage_writer=StorageWriter(url))
    return fingerprint(model, optimizer)


def load_sharded(rank: int, url: str, count: int) -> tuple[float, Any, int]:
    """Into a model of other numbers: what it holds afterwards, in numbers that do not depend on the ranks."""
    model, optimizer = sharded(count, seed=99)
    train(model, optimizer)
    states = get_state_dict(model, optimizer)
    state = {"model": states[0], "optimizer": states[1], "epoch": 0}
    reader = StorageReader(url)
    dcp.load(state, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return fingerprint(model, optimizer), state["epoch"], reader.read_bytes


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Of the whole tensors, to the bit: elements are weighed by their positions."""
    total = torch.zeros((), dtype=torch.float64)
    values = [parameter.data for parameter in model.parameters()]
    values += [state["exp_avg"] for state in optimizer.state.values()]
    for value in values:
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        flat = full.flatten().double()
        total += (flat * torch.arange(1, len(flat) + 1, dtype=torch.float64)).sum()
    return float(total)
