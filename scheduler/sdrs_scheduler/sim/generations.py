"""Which checkpoints of a job lie where, and which of them a restart finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b

from sdrs_core.levels import Level
from sdrs_scheduler.sim.settings import Restart

# What a pool's retention leaves of a job. A restart never needs more: five damaged in a row do not happen by chance.
KEPT_GENERATIONS = 5


@dataclass(frozen=True, slots=True)
class Holders:
    """Nodes in groups; of each group so many may be away, and all is still there."""

    groups: tuple[tuple[int, ...], ...]
    spare: int

    def is_reachable(self, down: Set[int]) -> bool:
        if not down:
            return True
        return all(sum(node in down for node in group) <= self.spare for group in self.groups)


@dataclass(frozen=True, slots=True)
class Generation:
    work: float  # seconds of undisturbed work that it holds
    holders: Holders
    is_torn: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a restart begins. ``is_waiting``: all there is lies on nodes that are down, and they are waited for."""

    generation: Generation | None
    # How many were read before one was found whole.
    verified_count: int = 0
    is_waiting: bool = False


def place_holders(level: Level, nodes: Sequence[int], node_count: int, draw: Callable[[int], int]) -> Holders:
    """``nodes`` are the attempt's own; ``draw(n)`` chooses below n."""
    if level is Level.L1:
        return Holders(tuple((node,) for node in nodes), 0)
    if level is Level.L2:
        return Holders(tuple((node, (node + 1 + draw(node_count - 1)) % node_count) for node in nodes), 1)
    width, spare = (6, 2) if node_count >= 6 else (3, 1)
    first = nodes[0] + draw(node_count)
    return Holders((tuple((first + index) % node_count for index in range(width)),), spare)


def choose_resume(generations: Sequence[Generation], restart: Restart, down: Set[int]) -> Resume:
    """``generations`` from the oldest to the newest."""
    if restart is Restart.SCRATCH or not generations:
        return Resume(None)
    if restart is Restart.BLIND:
        # It looks once: what is out of reach does not exist for it, and what it finds it takes for good.
        found = next((one for one in reversed(generations) if one.holders.is_reachable(down)), None)
        return Resume(found)
    verified = 0
    is_waiting = False
    for generation in reversed(generations):
        if not generation.holders.is_reachable(down):
            is_waiting = True
            continue
        verified += 1
        if not generation.is_torn:
            return Resume(generation, verified)
    return Resume(None, verified, is_waiting)


def is_torn(seed: int, job_id: str, number: int, share: float) -> bool:
    """The fate of a job's n-th checkpoint depends on nothing else, so that ways to restart meet the same ones."""
    if share <= 0:
        return False
    digest = blake2b(f"{seed}/{job_id}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < share * 2.0**64
