"""What the ranks of torch_ranks do: save and load models, with the same numbers whatever the number of ranks."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from sdrs.torch import StorageReader, StorageWriter
from sdrs.torch.staging import staging

ROWS, COLUMNS = 37, 50_021


def make_model(seed: int) -> nn.Sequential:
    """Of 9 and 7 rows, which no number of ranks divides; and one tensor larger than a block."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(257, 9), nn.ReLU(), nn.Linear(9, 7), nn.Linear(7, 40_003))


def plain_state(seed: int) -> dict[str, Any]:
    """What every rank has alike; DCP saves each tensor once."""
    torch.manual_seed(seed)
    return {
        "weights": {f"layer-{number}": torch.randn(300, 1000) for number in range(6)},
        "odd": [torch.randn(7).to(torch.bfloat16), torch.randn(3, 5).to(torch.float8_e4m3fn), torch.randn(4, 2).t()],
        "more": {
            "bool": torch.rand(11) > 0.5,
            "complex": torch.randn(5, dtype=torch.complex64),
            "scalar": torch.tensor(seed),
        },
        "empty": torch.empty(0, 3),
        "lr": 0.1 * seed,
        "names": ["a", "b"],
    }


def blank(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, torch.Tensor):
        same_bits = left.contiguous().view(torch.uint8) if left.dtype.itemsize == 1 else left
        other = right.contiguous().view(torch.uint8) if right.dtype.itemsize == 1 else right
        return left.dtype == right.dtype and left.shape == right.shape and bool((same_bits == other).all())
    return bool(left == right)


def sharded(count: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model under FSDP2 after one step of training, so that its optimizer has a state too."""
    model = make_model(seed)
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    model(torch.randn(4, 257)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def save_sharded(url: str, count: int, seed: int) -> float:
    model, optimizer = sharded(count, seed)
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optimizer": states[1], "epoch": 3}, storage_writer=StorageWriter(url))
    return fingerprint(model, optimizer)


def load_sharded(url: str, count: int) -> tuple[float, Any]:
    """Into a model of other numbers: what it holds afterwards."""
    model, optimizer = sharded(count, seed=99)
    states = get_state_dict(model, optimizer)
    state = {"model": states[0], "optimizer": states[1], "epoch": 0}
    dcp.load(state, storage_reader=StorageReader(url))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return fingerprint(model, optimizer), state["epoch"]


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


def wide_tensor() -> torch.Tensor:
    """Its rows are longer than what one block holds of them when it is cut by columns."""
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)


def four_ranks(rank: int, base: str) -> dict[str, Any]:
    """FSDP2, a replicated state, DDP and async saves, one after the other."""
    warnings.simplefilter("ignore")
    told: dict[str, Any] = {"sharded": save_sharded(f"{base}/sharded/1", 4, seed=5)}
    told["again"] = load_sharded(f"{base}/sharded/1", 4)

    dcp.save(plain_state(1), storage_writer=StorageWriter(f"{base}/plain/1"))
    state = blank(plain_state(1))
    dcp.load(state, storage_reader=StorageReader(f"{base}/plain/1"))
    told["plain"] = equal(state, plain_state(1))

    model = DistributedDataParallel(make_model(2))
    dcp.save({"model": model.state_dict()}, storage_writer=StorageWriter(f"{base}/ddp/1"))

    # Plans that the planner keeps: the second save of the same shapes sends none, only its step is another.
    for step in (1, 2):
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(plain_state(step), storage_writer=StorageWriter(f"{base}/cached/{step}"), planner=planner)

    writer, addresses = StorageWriter(f"{base}/async/0"), set()
    for step in (1, 2):
        state = {"w": torch.full((500_000,), float(10 * step + rank))}
        url = f"{base}/async/{step}"
        future = dcp.async_save({f"w-{rank}": state["w"]}, storage_writer=writer, checkpoint_id=url)
        state["w"].fill_(-1)  # training goes on
        future.result()
        addresses.add(staging._warm[f"w-{rank}"].data_ptr())
    loaded = {f"w-{rank}": torch.zeros(500_000)}
    dcp.load(loaded, storage_reader=StorageReader(f"{base}/async/2"))
    told["async"] = bool((loaded[f"w-{rank}"] == 20 + rank).all())
    told["warm"] = len(addresses) == 1
    return told


def two_ranks(rank: int, base: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    told: dict[str, Any] = {"four to two": load_sharded(f"{base}/sharded/1", 2)}
    told["saved"] = save_sharded(f"{base}/sharded/2", 2, seed=6)

    model = DistributedDataParallel(make_model(77))
    state = {"model": model.state_dict()}
    dcp.load(state, storage_reader=StorageReader(f"{base}/ddp/1"))
    told["ddp"] = equal(dict(model.module.state_dict()), dict(make_model(2).state_dict()))

    mesh = init_device_mesh("cpu", (2,))
    dcp.save(
        {"wide": distribute_tensor(wide_tensor(), mesh, [Shard(1)])}, storage_writer=StorageWriter(f"{base}/wide/1")
    )
    for placement in (Shard(0), Shard(1)):
        target = {"wide": distribute_tensor(torch.zeros(ROWS, COLUMNS), mesh, [placement])}
        dcp.load(target, storage_reader=StorageReader(f"{base}/wide/1"))
        told[str(placement)] = torch.equal(target["wide"].full_tensor(), wide_tensor())

    # One rank's failure is every rank's; the same step can be saved again, and what is in is not sent twice.
    own = {f"w-{rank}": torch.full((1000,), float(rank))}
    writer = StorageWriter(f"{base}/again/1")
    try:
        dcp.save(own, storage_writer=writer, planner=Failing() if rank == 1 else None)
        told["failed"] = False
    except dcp.CheckpointException as error:
        told["failed"] = "the disk of this planner is full" in str(error)
    dcp.save(own, storage_writer=writer)
    loaded = {"w-0": torch.ones(1000), "w-1": torch.zeros(1000)}
    dcp.load(loaded, storage_reader=StorageReader(f"{base}/again/1"))
    told["again"] = not loaded["w-0"].any() and bool(loaded["w-1"].all())
    return told


class Failing(DefaultSavePlanner):
    """Fails once, when its rank has found out what to write."""

    def resolve_data(self, write_item: WriteItem) -> Any:
        raise RuntimeError("the disk of this planner is full")


class Deadly(DefaultSavePlanner):
    """Its process is killed when the first of its tensors is being sent."""

    def __init__(self) -> None:
        super().__init__()
        self._looked_at: set[str] = set()

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.index.fqn in self._looked_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._looked_at.add(write_item.index.fqn)
        return super().resolve_data(write_item)


def die_in_mid_save(rank: int, base: str) -> str:
    planner = Deadly() if rank == 1 else DefaultSavePlanner()
    try:
        dcp.save(
            {f"w-{rank}": torch.ones(1_000_000)}, storage_writer=StorageWriter(f"{base}/killed/1"), planner=planner
        )
    except BaseException as error:
        return type(error).__name__
    return "saved"


def three_ranks(rank: int, base: str) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    return {"two to three": load_sharded(f"{base}/sharded/2", 3)}
