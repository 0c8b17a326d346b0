"""A small GPT that learns to add, trained on CPU by several ranks, that may be killed at any time.

    sdrs up
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1     # or restarted gloo ranks may look for each other where they were
    torchrun --nproc-per-node 2 --max-restarts 3 examples/gpt.py --steps 60 --save-every 10

Kill a rank, or everything, and start it again: it goes on from its newest checkpoint, and every loss it prints is the
one, bit for bit, that it would have printed undisturbed. For that a checkpoint holds all that the next step depends
on: weights, optimizer, where each rank is in its data, and the random numbers that dropout draws.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import sdrs

CONTEXT, BATCH, WIDTH, HEADS, LAYERS, DROPOUT = 48, 8, 64, 4, 2, 0.1
TEXT = "".join(f"{a}+{b}={a + b};" for a in range(40) for b in range(40))
ALPHABET = sorted(set(TEXT))
TOKENS = torch.tensor([ALPHABET.index(character) for character in TEXT])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.attend(self.norm1(x)).chunk(3, -1)]
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.dropout(self.project(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.think(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET)))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.tokens(tokens) + self.places.weight))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    """A rank of the training."""

    def __init__(self, rank: int) -> None:
        torch.manual_seed(0)  # all ranks begin with the same weights ...
        self.gpt = GPT()
        self.optimizer = torch.optim.AdamW(self.gpt.parameters(), lr=3e-3)
        torch.manual_seed(1 + rank)  # ... and go on with dropout and data of their own
        self.data = torch.Generator().manual_seed(1 + rank)
        self.step = 0

    def state(self, rank: int) -> dict[str, Any]:
        own = {"step": self.step, "data": self.data.get_state(), "dropout": torch.get_rng_state()}
        # Data-parallel ranks hold the same model: it is enough that one of them saves it.
        shared = {"gpt": self.gpt.state_dict(), "optimizer": self.optimizer.state_dict()}
        return own | shared if rank == 0 else own

    def load(self, own: dict[str, Any], shared: dict[str, Any]) -> None:
        self.step = own["step"]
        self.data.set_state(own["data"])
        torch.set_rng_state(own["dropout"])
        self.gpt.load_state_dict(shared["gpt"])
        self.optimizer.load_state_dict(shared["optimizer"])

    def batch(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(TOKENS) - CONTEXT, (BATCH,), generator=self.data)
        windows = torch.stack([TOKENS[start : start + CONTEXT + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    def train_step(self, parallel: DistributedDataParallel) -> float:
        """The mean loss of all ranks."""
        self.optimizer.zero_grad()
        loss: Tensor = parallel(*self.batch())
        loss.backward()
        self.optimizer.step()
        self.step += 1
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total) / dist.get_world_size()


def resume(ckpts: sdrs.Checkpoints, trainer: Trainer, rank: int, world_size: int) -> bool:
    """Whether there was a checkpoint to go on from; all ranks get the same one, or none does."""
    try:
        own = ckpts.restore(rank=rank, world_size=world_size, resume=True)
    except sdrs.errors.NotFoundError:
        return False
    trainer.load(own, shared=own if rank == 0 else ckpts.restore(own["step"], rank=0))
    return True


def say(line: str) -> None:
    """One write a line: the ranks share a pipe, and print() under torchrun writes a line and its end apart."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--job", default="gpt")
    flags.add_argument("--pool", help="where its checkpoints go; the pool `default` if it is not given")
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--save-every", type=int, default=10)
    options = flags.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums in one order, whatever the number of cores
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    say(f"rank {rank} of {world_size} is pid {os.getpid()}")
    with sdrs.connect() as cluster:
        ckpts = cluster.checkpoints(options.job, pool=options.pool)
        trainer = Trainer(rank)
        is_resumed = resume(ckpts, trainer, rank, world_size)
        if rank == 0:
            say(f"resume after step {trainer.step}" if is_resumed else "start from nothing")
        parallel = DistributedDataParallel(trainer.gpt)
        saving = None
        while trainer.step < options.steps:
            loss = trainer.train_step(parallel)
            if rank == 0:
                say(f"step {trainer.step} loss {loss!r}")  # repr: every bit of it
            if trainer.step % options.save_every == 0:
                if saving:
                    saving.wait()  # committed long ago, unless something is wrong; then it is raised here
                # Returns once the state is copied: training goes on while it becomes durable.
                saving = ckpts.save(trainer.step, trainer.state(rank), rank=rank, world_size=world_size)
        if saving:
            saving.wait()
    if rank == 0:
        say("finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
