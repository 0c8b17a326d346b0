"""Which attempt this process speaks for (P1)."""

from __future__ import annotations

import os
import socket

from sdrs import forks
from sdrs_core.attempts import Attempt, attempt_from_environment, parse_attempt
from sdrs_core.errors import AttemptRequiredError
from sdrs_core.ids import random_id

_own_runs: dict[tuple[int, str], str] = {}


def resolve_attempt(given: str | int | Attempt | None, job: str, world_size: int) -> Attempt:
    """What the caller gave, else the launcher's, else (one process alone) a run of this process's own."""
    owner = f"{socket.gethostname()} pid {os.getpid()}"
    if isinstance(given, Attempt):
        return given
    if given is not None:
        return parse_attempt(str(given), owner)
    launched = attempt_from_environment(os.environ, owner)
    if launched:
        return launched
    if world_size > 1:
        raise AttemptRequiredError(
            f'job "{job}" runs with world_size {world_size}, and nobody says which attempt this is: start it with '
            "torchrun (on several hosts with a new --rdzv-id at each start) or Slurm, set SDRS_ATTEMPT to the same "
            "value for all ranks and a new one at each start, or pass attempt="
        )
    return Attempt(_own_run(job), 0, owner)


def _own_run(job: str) -> str:
    """One run for each process and job: every Cluster of the process shares it, a forked child does not."""
    return _own_runs.setdefault((forks.generation(), job), f"process:{random_id()}")
