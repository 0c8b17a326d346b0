"""A training that a scheduler may start, warn, kill and start again: the whole contract with the job, on CPU.

    torchrun --nproc-per-node 2 examples/job_trainer.py --steps 60 --losses losses.txt     # as the command of a job
    python examples/job_trainer.py --steps 60                                              # one process, also by hand

It saves when it is told to (the job's save interval, or a warning before a preemption) and every ``--save-every`` steps
by itself. After a warning all ranks save the same step and leave with exit code 75. However often it is killed and
started again, it writes the losses that it would have written undisturbed, bit for bit: a checkpoint holds all that the
next step depends on, and a step's data depends on the step alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import sdrs

FEATURES, HIDDEN, BATCH, DROPOUT = 32, 64, 16, 0.1


class Trainer:
    """A rank of the training. Data-parallel: all ranks have the same model, and data of their own."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-2)
        torch.manual_seed(1 + rank)  # dropout differs from rank to rank
        self.step = 0

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "dropout": torch.get_rng_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["dropout"])

    def batch(self) -> tuple[Tensor, Tensor]:
        """By the step and the rank alone: a resumed training sees the data in the same order."""
        draw = torch.Generator().manual_seed(self.step * self.world_size + self.rank)
        inputs = torch.randn(BATCH, FEATURES, generator=draw)
        return inputs, inputs.square().mean(1, keepdim=True)

    def train_step(self) -> float:
        """The mean loss of all ranks."""
        inputs, targets = self.batch()
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), targets)
        loss.backward()
        total = loss.detach().clone()
        if self.world_size > 1:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
            dist.all_reduce(total)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= self.world_size
        self.optimizer.step()
        self.step += 1
        return float(total) / self.world_size


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--save-every", type=int, default=0, help="also without being told to; 0: never")
    flags.add_argument("--step-seconds", type=float, default=0.0, help="make each step last so long at least")
    flags.add_argument("--losses", type=Path, help="a file to which rank 0 appends STEP LOSS for each step")
    flags.add_argument("--history", default="job-trainer", help="the name of its checkpoints outside of a job")
    options = flags.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums in one order, whatever the number of cores
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        dist.init_process_group("gloo")
    job = sdrs.current_job()
    ckpts = job.checkpoints() if job else sdrs.connect().checkpoints(options.history)
    trainer = Trainer(rank, world_size)
    if job and job.resume_step is not None:
        trainer.load(ckpts.restore(rank=rank, world_size=world_size))
    say(f"rank {rank} of {world_size} is pid {os.getpid()}, begins after step {trainer.step}")

    saving = None
    while trainer.step < options.steps:
        started = time.monotonic()
        loss = trainer.train_step()
        if job:
            job.report(step=trainer.step, loss=loss)
        if rank == 0:
            say(f"step {trainer.step} loss {loss!r}")
            if options.losses:
                with options.losses.open("a") as file:
                    file.write(f"{trainer.step} {loss!r}\n")  # repr: every bit of it
        is_regular = options.save_every > 0 and trainer.step % options.save_every == 0
        if ckpts.should_save(trainer.step) or is_regular or trainer.step == options.steps:
            # Returns once the state is copied: training goes on while it becomes durable.
            saving = ckpts.save(trainer.step, trainer.state(), rank=rank, world_size=world_size)
        if job and job.preempted:
            say(f"rank {rank} leaves after step {trainer.step}")
            job.leave()
        time.sleep(max(0.0, started + options.step_seconds - time.monotonic()))
    if saving:
        saving.wait()
    if rank == 0:
        say("finished")
    if world_size > 1:
        dist.destroy_process_group()


def say(line: str) -> None:
    """One write a line: the ranks share a pipe, and print() under torchrun writes a line and its end apart."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
