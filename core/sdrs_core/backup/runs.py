"""What is done to a target, one at a time: the kinds of runs, and what one is about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunKind(StrEnum):
    BACKUP = "backup"
    VERIFY = "verify"
    PRUNE = "prune"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Selection:
    """Nothing said: everything. ``step`` goes with ``job`` only.

    ``full``: verify reads every byte. ``dry_run``: prune only tells. Of an import: ``into_pool``, ``lazy`` (the catalog
    only, bytes come when they are asked for), ``missing_only`` (pass over what is here, unless it cannot be read).
    """

    pool: str = ""
    job: str = ""
    step: int | None = None
    full: bool = False
    dry_run: bool = False
    into_pool: str = ""
    lazy: bool = False
    missing_only: bool = False

    def takes(self, pool: str, job: str, step: int) -> bool:
        return self.pool in ("", pool) and self.job in ("", job) and self.step in (None, step)
