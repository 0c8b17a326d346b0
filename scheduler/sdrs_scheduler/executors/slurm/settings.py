"""What a platform team says about its Slurm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    # Jobs go there, and only its nodes are told; empty: Slurm's default, and all nodes.
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    # Further options of sbatch, as one would write them behind #SBATCH.
    options: tuple[str, ...] = ()
    # slurm.conf; empty: where Slurm's commands look for it by themselves.
    conf_file: str = ""
    # One command of Slurm may take so long. A controller that does not answer makes them all wait.
    deadline_seconds: float = 20.0
    # A shared file system may show files so much later to us than the node has written them.
    settle_seconds: float = 10.0
