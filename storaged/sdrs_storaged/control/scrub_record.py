"""How far a scrub is: kept in the MetaStore, so that the next controller goes on where this one stood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sdrs_core.checkpoints import Save, Verdict
from sdrs_core.ids import BlobId, JobName
from sdrs_core.scrub import Depth
from sdrs_storaged.control.findings import Problem

# I10; the record stays small, and is written often.
_MAX_PROBLEMS = 50
_MAX_PROBLEM_CHARS = 300
_MAX_MENDING = 300


class Stage(StrEnum):
    """In this order. The catalog against the nodes, the nodes against the catalog, then what repair makes of it."""

    CHECKPOINTS = "checkpoints"
    INVENTORIES = "inventories"
    MENDING = "mending"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Mending:
    """A blob of which fragments were taken off the record, until it has as many again."""

    save_key: str
    shard_key: str
    blob_id: BlobId
    fragment_count: int
    removed_count: int
    # Its parity could not be computed anew, because a data fragment is lacking: it is read again once that is there.
    is_unproven: bool = False


@dataclass(slots=True)
class Scrub:
    id: str
    depth: Depth
    job: JobName | None
    trigger: str
    request_id: str
    started_unix_ms: int
    ended_unix_ms: int = 0
    checked_checkpoints: int = 0
    total_checkpoints: int = 0
    checked_fragments: int = 0
    checked_bytes: int = 0
    bad_fragments: int = 0
    missing_fragments: int = 0
    repaired_fragments: int = 0
    undecided_fragments: int = 0
    unknown_fragments: int = 0
    damaged_checkpoints: int = 0
    problems: list[str] = field(default_factory=list)
    # By an operator, before it was through.
    is_stopped: bool = False

    # Where it is: the last checkpoint that is done, the last shard of the next one, the last node whose list is done.
    stage: Stage = Stage.CHECKPOINTS
    done_key: str = ""
    shard_key: str = ""
    node_id: str = ""
    # Of the checkpoint under way: nothing was undecided or lost so far; and it was counted as damaged.
    is_sound: bool = True
    is_damaged: bool = False
    mending: list[Mending] = field(default_factory=list)

    @property
    def is_under_way(self) -> bool:
        return self.stage is not Stage.DONE

    @property
    def title(self) -> str:
        return f"{self.depth} scrub of " + (f'job "{self.job}"' if self.job else "all checkpoints")

    @property
    def has_findings(self) -> bool:
        return bool(self.bad_fragments or self.missing_fragments)

    def begin_checkpoint(self) -> None:
        self.shard_key, self.is_sound, self.is_damaged = "", True, False

    def end_checkpoint(self, key: str) -> None:
        self.done_key = key
        self.checked_checkpoints += 1
        self.total_checkpoints = max(self.total_checkpoints, self.checked_checkpoints)
        self.begin_checkpoint()

    def note(self, save: Save, problems: Sequence[Problem]) -> None:
        for problem in problems:
            self.bad_fragments += problem.verdict is Verdict.CORRUPT
            self.missing_fragments += problem.verdict is Verdict.MISSING
            self.undecided_fragments += problem.undecided
            self.is_sound &= not problem.undecided and not problem.is_fatal
            where = f" on node {problem.node_id}" if problem.node_id else ""
            located = f"{save.title}, rank {problem.rank}{where}: {problem.text}"
            # A node that is down is told of once: it must not hide what is certain.
            self.tell(problem.text if problem.undecided else located)

    def tell(self, sentence: str) -> None:
        """The first ones; the counts tell of the others."""
        sentence = sentence[:_MAX_PROBLEM_CHARS]
        if len(self.problems) < _MAX_PROBLEMS and sentence not in self.problems:
            self.problems.append(sentence)

    def await_repair(self, mending: Mending) -> None:
        """Of so many at most; the others are mended too, and not waited for."""
        if len(self.mending) < _MAX_MENDING:
            self.mending.append(mending)


@dataclass(slots=True)
class ScrubRecord:
    # Since when this cluster is scrubbed at all.
    since_unix_ms: int
    # The one under way, or else the last one.
    scrub: Scrub | None = None
    # The last that went through all checkpoints, of each depth.
    shallow_done_unix_ms: int = 0
    deep_done_unix_ms: int = 0
    # The last that an operator stopped: the schedule counts from there as well, or it would begin again at once.
    shallow_stopped_unix_ms: int = 0
    deep_stopped_unix_ms: int = 0
