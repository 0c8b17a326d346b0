"""What `sdrs job init` writes: job files to start from, and trainings that keep the contract with the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NAME = "@NAME@"
SCRIPT_NAME = "train.py"

_REST = """\

# Retries are counted for each kind of failure, and anew after progress.
retry:
  max: 3
  free_on: [preempted, node_lost, storage]   # these cost none
  backoff: {initial: 10s, max: 10m}
  no_progress_limit: 3     # so many starts in a row without a new checkpoint, and it has failed

# Tried in this order on what the job wrote last, before our own rules.
failure_policies:
  - {name: ecc, match: "uncorrectable ECC", action: exclude_node}
  - {name: oom, match: "CUDA out of memory", action: fail}

# hang: {heartbeat: 30s, progress: 20m}      # no beat, or no new step, for so long: it is killed and restarted
# depends_on: [prep]                         # starts once these have succeeded
# deadline: 3d                               # from now on, or 2026-12-01T18:00:00Z; urgency rises towards it
# estimate: 8h                               # lets it slip into gaps before larger jobs
# environment: {LR: 3e-4}
"""

_CHECKPOINT = """\

checkpoint:
  # pool: default
  # level: L2              # what a checkpoint must survive before it counts
  interval: 5m             # between two saves; auto: by measured save time and failure rate
  grace: 60s               # from the warning of a preemption until it is killed
  resume: latest-verified  # the newest that was read through and found whole
"""

_PYTHON_JOB = (
    """\
# A training in plain Python on one node. `sdrs job submit` it; every field: docs/jobs.md
name: @NAME@
command: python train.py
queue: default
priority: 50               # 0 to 100

resources:
  nodes: 1
  gpus_per_node: 1
  # memory_per_node: 64GiB
"""
    + _CHECKPOINT
    + _REST
)

_TORCHRUN_JOB = (
    """\
# A training with torchrun on several nodes. The command is started once on each of them; how many there are, and where
# they meet, torchrun is told by its own variables (PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, ...).
# `sdrs job submit` it; every field: docs/jobs.md
name: @NAME@
command: torchrun --nproc-per-node=8 train.py
queue: default
priority: 50               # 0 to 100

resources:
  nodes: 2                 # all of them or none
  gpus_per_node: 8
  # exclusive: true        # nobody else on these nodes
  # gpu_type: a100
"""
    + _CHECKPOINT
    + _REST
)

_MPI_JOB = (
    """\
# A training with MPI. The command is started once, on the first node; SDRS_HOSTFILE lists all.
# `sdrs job submit` it; every field: docs/jobs.md
name: @NAME@
launch: once
# Open MPI hands a variable to other nodes only if it is named (-x): these are the contract with the scheduler.
command: >-
  mpirun --hostfile "$SDRS_HOSTFILE"
  $(env | sed -n 's/^\\(SDRS_[A-Z_]*\\)=.*/-x \\1/p')
  --map-by ppr:8:node python train.py
queue: default
priority: 50               # 0 to 100

resources:
  nodes: 2                 # all of them or none
  gpus_per_node: 8
"""
    + _CHECKPOINT
    + _REST
)

_SLURM_JOB = (
    _TORCHRUN_JOB.replace(
        "# A training with torchrun on several nodes. The",
        "# A training with torchrun on nodes of a Slurm cluster: each start is a batch job of its own. The",
    )
    + "executor: slurm\n"
)

_SWEEP_JOB = """\
# One training for each learning rate: documents separated by ---, each with a name and a history of its own.
# `sdrs job submit` it; every field: docs/jobs.md
""" + "---\n".join(
    f"""\
name: {_NAME}-{word}
command: python train.py
environment: {{LR: {rate}}}
resources: {{nodes: 1, gpus_per_node: 1}}
checkpoint: {{interval: 5m, grace: 60s}}
"""
    for word, rate in (("lr1", "1e-1"), ("lr2", "1e-2"), ("lr3", "1e-3"))
)

_PLAIN_SCRIPT = '''\
"""A small training that survives being killed: it goes on from its newest checkpoint. Put your model in its place."""

import os
import time

import numpy as np

import sdrs

STEPS = 600
LEARNING_RATE = float(os.environ.get("LR", "0.05"))
TARGET = np.linspace(-1.0, 1.0, 1000)


def train_step(state):
    """Stands for yours."""
    time.sleep(0.1)
    error = state["weights"] - TARGET
    state["weights"] -= LEARNING_RATE * error
    state["step"] += 1
    return float(np.mean(error**2))


def main():
    job = sdrs.current_job()  # None outside of a job: then it trains, and saves nothing
    ckpts = job.checkpoints() if job else None
    state = {"step": 0, "weights": np.zeros(1000)}
    if job and job.resume_step is not None:
        state = ckpts.restore()
        print(f"goes on from step {state['step']} (attempt {job.attempt})", flush=True)

    while state["step"] < STEPS:
        loss = train_step(state)
        if state["step"] % 50 == 0:
            print(f"step {state['step']} loss {loss:.6f}", flush=True)
        if not job:
            continue
        job.report(step=state["step"], loss=loss)
        # The interval is over, or the job is to give way to another one.
        if ckpts.should_save(state["step"]) or state["step"] == STEPS:
            ckpts.save(state["step"], state)
            if job.preempted:
                job.leave()  # once the checkpoint is durable; exit code 75: start me again


if __name__ == "__main__":
    main()
'''

_RANKS_SCRIPT = '''\
"""A small training on many ranks that survives being killed: it goes on from its newest checkpoint.

Every rank saves, and all of them at the same step: should_save() tells each the same. Put your model in its place.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sdrs

STEPS = 600
LEARNING_RATE = float(os.environ.get("LR", "0.001"))


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

    job = sdrs.current_job()  # None outside of a job: then it trains, and saves nothing
    ckpts = job.checkpoints() if job else None
    step = 0
    if job and job.resume_step is not None:
        saved = ckpts.restore(rank=rank, world_size=world_size)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        if rank == 0:
            print(f"goes on from step {step} (attempt {job.attempt})", flush=True)
    trained = DistributedDataParallel(model)

    while step < STEPS:
        # Of the step and the rank alone: after a restart the same batches come again.
        generator = torch.Generator().manual_seed(step * world_size + rank)
        batch = torch.randn(32, 64, generator=generator).to(device)
        loss = (trained(batch) - batch.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if not job:
            continue
        job.report(step=step, loss=loss.item())
        # The interval is over, or the job is to give way to another one.
        if ckpts.should_save(step) or step == STEPS:
            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            ckpts.save(step, state, rank=rank, world_size=world_size)
            if job.preempted:
                job.leave()  # once the checkpoint is durable; exit code 75: start me again
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''

# What MPI tells its ranks, in the words that torch.distributed reads.
_MPI_SCRIPT = _RANKS_SCRIPT.replace(
    """    on_gpu = torch.cuda.is_available()
    dist.init_process_group(""",
    """    on_gpu = torch.cuda.is_available()
    for word, mpi_word in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        os.environ.setdefault(word, os.environ.get(f"OMPI_COMM_WORLD_{mpi_word}", "0" if "RANK" in word else "1"))
    dist.init_process_group(""",
)


@dataclass(frozen=True, slots=True)
class Template:
    about: str
    job_file: str
    script: str

    def job_text(self, name: str) -> str:
        return self.job_file.replace(_NAME, name)


TEMPLATES: Mapping[str, Template] = {
    "python": Template("plain Python on one node", _PYTHON_JOB, _PLAIN_SCRIPT),
    "torchrun": Template("torchrun on several nodes", _TORCHRUN_JOB, _RANKS_SCRIPT),
    "mpi": Template("mpirun and its like", _MPI_JOB, _MPI_SCRIPT),
    "slurm": Template("torchrun on a Slurm cluster", _SLURM_JOB, _RANKS_SCRIPT),
    "sweep": Template("several jobs that differ in a variable", _SWEEP_JOB, _PLAIN_SCRIPT),
}
