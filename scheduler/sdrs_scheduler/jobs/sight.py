"""What the machine sees of a job at one moment, and what it asks for: immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sdrs_scheduler.executors.executor import RunFacts
from sdrs_scheduler.jobs.classify import Evidence
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.resume import Generation, Resumption


@dataclass(frozen=True, slots=True)
class Sight:
    """None means that nobody knows now: nothing is concluded from it."""

    now_unix_ms: int
    run: RunFacts | None = None
    # From where it goes on, once that is decided and verified.
    resumption: Resumption | None = None
    # Why that cannot be said for now; empty: it can, or is being found out.
    blocked_because: str = ""
    # Gathered after its end.
    evidence: Evidence | None = None
    # The highest step that a rank told, and a step at which the loss was not a number.
    step: int | None = None
    nan_step: int | None = None
    utilization: float | None = None
    # Why it is believed to hang; empty: it is not.
    hang: str = ""
    # The newest committed generation of its history, and whether it is as durable as the job wants.
    newest: Generation | None = None
    is_newest_durable: bool = False
    # Why the executor will never start it; empty: nothing known.
    launch_error: str = ""
    # Nodes of its slots that are down.
    down_nodes: Mapping[str, str] = field(default_factory=dict)
    # Of the executor that it is seen through.
    home: str = ""
    # Why the last try to launch it came to nothing; it is tried again.
    launch_problem: str = ""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find out from where it goes on."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Open the attempt at the control plane, which fences the older one, then launch."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell it that it is to save: by its signal, and by the orders that its SDK asks for."""

    deadline_unix_ms: int


@dataclass(frozen=True, slots=True)
class DumpStacks:
    pass


@dataclass(frozen=True, slots=True)
class Kill:
    pass


@dataclass(frozen=True, slots=True)
class Gather:
    """It has ended: look for what tells why."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Its end is on record."""


Instruction = Resolve | Begin | Warn | DumpStacks | Kill | Gather | Forget


@dataclass(frozen=True, slots=True)
class Step:
    """The records as they are to be, and what to do once they are."""

    job: Job
    attempt: Attempt | None
    instructions: tuple[Instruction, ...] = ()
