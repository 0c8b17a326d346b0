"""What one simulation assumes: the cluster, its failures, how jobs are saved, and how they come back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.levels import Level

MAX_NODES = 100_000
MAX_GPUS_PER_NODE = 64
LEAST_NODES = {Level.L1: 1, Level.L2: 2, Level.L3: 3}


class PolicyName(StrEnum):
    PRIORITY = "priority"  # what the scheduler does
    # What papers compare with.
    FIFO = "fifo"
    SRTF = "srtf"  # shortest remaining time first
    SRSF = "srsf"  # shortest remaining service first: time × GPUs


class Restart(StrEnum):
    VERIFIED = "verified"  # from the newest checkpoint that was read through and found whole, and is within reach
    BLIND = "blind"  # from the newest that lies there; that it is torn shows when it is loaded
    SCRATCH = "scratch"  # from the top


class Preemption(StrEnum):
    CHECKPOINT = "checkpoint"  # warned; free when its checkpoint is durable
    KILL = "kill"  # free at once; what it did since its last checkpoint is lost
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SimSettings:
    nodes: int
    gpus_per_node: int
    # Of one node, between two failures; infinite: none fails.
    mtbf_seconds: float = math.inf
    repair_seconds: float = 3600.0
    # Of work between two saves; None: by Young and Daly, from the cost of a save and the job's own failure rate.
    interval_seconds: float | None = 1800.0
    save_seconds: float = 10.0
    restore_seconds: float = 30.0
    # L1: each node's part of a checkpoint lies on that node alone. L2: and on one other. L3: 4+2 over six nodes; on a
    # cluster of three to five, 2+1 over three.
    level: Level = Level.L2
    policy: PolicyName = PolicyName.PRIORITY
    restart: Restart = Restart.VERIFIED
    preemption: Preemption = Preemption.CHECKPOINT
    # The share of checkpoints that cannot be restored although they lie there.
    torn: float = 0.0
    # Decisions are taken at multiples of it; 0: whenever something changed.
    tick_seconds: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_range("nodes", self.nodes, 1, MAX_NODES)
        _check_range("GPUs of a node", self.gpus_per_node, 1, MAX_GPUS_PER_NODE)
        if self.nodes < LEAST_NODES[self.level]:
            raise InvalidArgumentError(
                f"{self.level} keeps checkpoints on at least {LEAST_NODES[self.level]} nodes, there is {self.nodes}: "
                "simulate more nodes, or --level L1"
            )
        if self.mtbf_seconds <= 0 or self.interval_seconds == 0:
            raise InvalidArgumentError("the time between failures, or between saves, is 0: give one above it")
        if not 0 <= self.torn <= 1:
            raise InvalidArgumentError(f"a share of {self.torn:g} torn checkpoints cannot be: give one from 0 to 1")


def _check_range(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(f"{what}: {value} is not from {least} to {most}")
