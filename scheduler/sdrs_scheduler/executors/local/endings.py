"""How a shepherd ends a run: what it sees, and what it does next. No clock, no process in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto


class Step(Enum):
    GO_ON = auto()
    TERMINATE = auto()  # ask all processes that are left to end
    KILL = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class Sight:
    """Times are seconds of one clock."""

    now: float
    workers_left: int
    processes_left: int
    has_failed: bool = False
    # The executor wants it dead, now.
    is_killed: bool = False
    # Somebody ended the shepherd: the machine goes down, as a rule.
    is_stopped: bool = False
    # When TERMINATE was carried out.
    ending_since: float | None = None
    # How long processes have from there on.
    patience_seconds: float = 5.0
    # When it was warned of a preemption: from there on for the grace, whoever still saves may go on.
    warned_at: float | None = None
    grace_seconds: float = 0.0


def next_step(sight: Sight) -> Step:
    if not sight.workers_left and not sight.processes_left:
        return Step.DONE
    is_over = sight.has_failed or not sight.workers_left
    if not (is_over or sight.is_killed or sight.is_stopped):
        return Step.GO_ON
    if sight.is_killed:
        return Step.KILL
    if sight.ending_since is None:
        return Step.GO_ON if _may_be_saving(sight) else Step.TERMINATE
    return Step.KILL if sight.now >= sight.ending_since + sight.patience_seconds else Step.GO_ON


def _may_be_saving(sight: Sight) -> bool:
    """Nodes do not end their last save in the same moment: the first one's end must not cost the others theirs."""
    if sight.warned_at is None or sight.is_stopped or not sight.workers_left:
        return False
    return sight.now < sight.warned_at + sight.grace_seconds


@dataclass(frozen=True, slots=True)
class WorkerExit:
    node: str
    code: int | None
    signal: int | None
    out_of_memory: bool = False

    @property
    def is_failure(self) -> bool:
        return self.code != 0


def as_told(exits: Sequence[WorkerExit]) -> list[WorkerExit]:
    """The first that failed is told first: the others ended because of it."""
    first = next((exit for exit in exits if exit.is_failure), None)
    return list(exits) if first is None else [first, *(exit for exit in exits if exit is not first)]


def exit_to_record(exit: WorkerExit) -> Mapping[str, object]:
    return {"node": exit.node, "code": exit.code, "signal": exit.signal, "out_of_memory": exit.out_of_memory}
