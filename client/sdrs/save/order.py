"""What one rank wants saved."""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import ContentKind
from sdrs_core.levels import Level


@dataclass(frozen=True, slots=True)
class SaveOrder:
    job: str
    step: int
    rank: int
    world_size: int
    attempt: Attempt
    pool: str
    level: Level  # NONE: what the pool promises
    kind: ContentKind
    # "zstd": its blobs are stored compressed where that pays; empty: as they are.
    compression: str = ""

    @property
    def title(self) -> str:
        rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f'step {self.step} of job "{self.job}"{rank}'
