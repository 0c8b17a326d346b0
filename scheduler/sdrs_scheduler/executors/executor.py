"""The contract of an executor: where attempts run, and what can be seen and done there.

The order in which the scheduler calls:

1. ``nodes`` again and again: what there is, and how it is.
2. ``launch`` once the attempt is on record as starting. It may be called again for the same run, by a scheduler that
   was killed in between: then nothing is started twice.
3. ``poll`` for all runs that it believes to be there.
4. ``warn`` before a preemption, ``dump_stacks`` before a hanging run is killed, ``kill`` to end it.
5. ``forget`` when the end of the run is on record: what is kept of it besides the logs may go.

Every call returns soon (seconds), or raises UnavailableError when the machinery behind it does not answer: then
nothing is known, and nothing is concluded. Runs outlive the scheduler, and are found again by their names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from sdrs_scheduler.jobs.job import Slot
from sdrs_scheduler.jobs.spec import Launch


@dataclass(frozen=True, slots=True)
class NodeFacts:
    name: str
    gpus: int
    gpu_type: str = ""
    groups: frozenset[str] = frozenset()
    is_up: bool = True
    # Why it is down or takes nothing, or what is wrong with it all the same; for people.
    problem: str = ""
    # Found by NVML or its stand-in: Xid, ECC, temperature, off the bus. Those GPUs get no work.
    bad_gpus: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """``run`` names one attempt: ``JOB_ID.NUMBER``. It names folders and Slurm jobs."""

    run: str
    command: str | tuple[str, ...]
    slots: tuple[Slot, ...]
    launch: Launch
    workdir: str
    # The contract with the job is in here already (SDRS_JOB_ID, ...); what differs by node the executor adds:
    # SDRS_NODE, SDRS_NODE_RANK, SDRS_NODE_COUNT, SDRS_HOSTFILE, MASTER_ADDR, MASTER_PORT, torchrun's PET_NNODES, ...
    environment: Mapping[str, str]
    grace_seconds: float
    cpus_per_node: int = 0
    memory_bytes_per_node: int = 0
    exclusive: bool = False
    time_limit_seconds: float = 0.0
    # Nodes that it must not get, where the executor (Slurm) has a say of its own.
    excluded_nodes: tuple[str, ...] = ()
    signal: str = "TERM"
    # Which GPUs of a node with several types; empty: any.
    gpu_type: str = ""


class RunState(StrEnum):
    WAITING = "waiting"  # the executor has it, but it does not run yet
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"  # no trace of it: never launched, or its node is gone with everything


@dataclass(frozen=True, slots=True)
class Exit:
    """How the command ended on one node: a code of 0 or more, or the signal that killed it."""

    code: int | None = None
    signal: int | None = None
    # The kernel, or a cgroup, killed it for memory.
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class RunFacts:
    state: RunState
    started_unix_ms: int = 0
    ended_unix_ms: int = 0
    # By node. One that failed first is listed first: the others were ended because of it.
    exits: Mapping[str, Exit] = field(default_factory=dict)
    lost_nodes: tuple[str, ...] = ()
    # Where it really runs, if the executor chose (Slurm).
    nodes: tuple[str, ...] = ()
    log_files: tuple[str, ...] = ()
    # In the executor's words: why it waits or how it ended.
    detail: str = ""
    # The executor itself took its nodes away for somebody else (Slurm's preemption): no fault of the run.
    preempted: bool = False


class Executor(ABC):
    name: ClassVar[str]
    # Where its runs are known: an executor of another home knows nothing of them, and cannot tell that they are gone.
    # Empty: every executor of this name knows them.
    home: str = ""

    @abstractmethod
    def nodes(self) -> tuple[NodeFacts, ...]:
        """The nodes as they are now."""

    @abstractmethod
    def launch(self, order: LaunchOrder) -> None:
        """Start a run. InvalidArgumentError: it can never start like this."""

    @abstractmethod
    def poll(self, runs: Sequence[str]) -> Mapping[str, RunFacts]:
        """Each of ``runs`` as it is now; those nobody knows are UNKNOWN."""

    @abstractmethod
    def warn(self, run: str, signal: str) -> None:
        """Send ``signal`` (TERM or USR1) to every process of the command; a run that ended is left alone."""

    @abstractmethod
    def dump_stacks(self, run: str) -> None:
        """Have every process write its stacks to its log, as far as that is possible; also of stopped processes."""

    @abstractmethod
    def kill(self, run: str) -> None:
        """End every process of the run, stopped ones too; ``poll`` then tells ENDED. Repeating it is harmless."""

    @abstractmethod
    def log_tail(self, run: str, max_bytes: int) -> str:
        """The last of what the run has written, of all its nodes; failure policies look through it."""

    @abstractmethod
    def forget(self, run: str) -> None:
        """The end is on record. Logs stay."""

    @abstractmethod
    def erase(self, run: str) -> None:
        """Its job is no longer on record: logs go as well. Only of runs that ended; repeating it is harmless."""
