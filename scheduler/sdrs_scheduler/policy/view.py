"""What the policy sees, and what it says: immutable values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Gpus = tuple[int, ...]
# The GPUs that a job has, or would have, on each node.
Placement = Mapping[str, Gpus]


@dataclass(frozen=True, slots=True)
class PolicyNode:
    name: str
    gpus: int
    gpu_type: str = ""
    groups: frozenset[str] = frozenset()
    executor: str = "local"
    # Up, and not cordoned: takes new jobs.
    is_open: bool = True
    # Why not; for people.
    closed_because: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is common to jobs that wait and jobs that run."""

    id: str
    name: str
    queue: str
    user: str
    tenant: str
    priority: int
    submitted_unix: float
    nodes: int
    gpus_per_node: int
    exclusive: bool = False
    gpu_type: str = ""
    node_group: str = ""
    executor: str = "local"
    excluded_nodes: frozenset[str] = frozenset()
    # How long it needs yet, if anybody knows; None: unknown, which backfill takes as for ever.
    left_seconds: float | None = None
    deadline_unix: float = 0.0
    preemptible: bool = True


@dataclass(frozen=True, slots=True)
class Pending:
    ask: Ask
    # Not before; the backoff after a failure.
    eligible_unix: float = 0.0
    # The names of jobs that it waits for, each with what keeps it: "prep (running)".
    waits_for: tuple[str, ...] = ()
    # When it last began to wait: submitted, preempted, or failed. Aging counts from here.
    waiting_since_unix: float = 0.0
    # Somebody was preempted for it since it began to wait: it is served before all others, so that no one else
    # takes what was freed for it.
    is_promised: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    ask: Ask
    placement: Placement
    started_unix: float
    # Work that would be lost if it ended now: since its last durable checkpoint.
    unsaved_seconds: float = 0.0
    # Its warning was sent: its GPUs come free by themselves.
    is_leaving: bool = False
    # Of its GPUs, lately, 0 to 1; None: nobody measured it.
    utilization: float | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """``gpus`` is what the queue may always have (its quota); idle capacity beyond it is lent, and taken back."""

    name: str
    gpus: int | None = None  # None: no quota of its own, it lives on what is idle
    # At most so many, also when others are idle; None: all.
    max_gpus: int | None = None
    weight: float = 1.0
    # Whether its jobs may take back by preemption what it has lent.
    reclaims: bool = True
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class View:
    now_unix: float
    nodes: Sequence[PolicyNode]
    pending: Sequence[Pending]
    running: Sequence[Running]
    queues: Mapping[str, Queue]
    # GPU-seconds of late, decayed, by user and by tenant: fair share.
    user_usage: Mapping[str, float] = field(default_factory=dict)
    tenant_usage: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Start:
    job_id: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class Preempt:
    """Warn ``job_id``, so that ``for_job_id`` can have its place once it is free."""

    job_id: str
    for_job_id: str
    because: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job does not run now; ``sentence`` is what `sdrs job why` tells."""

    reason: str  # stable: dependency, backoff, quota, capacity, impossible, behind, queue_closed, reserved, preempting
    sentence: str


@dataclass(frozen=True, slots=True)
class Decisions:
    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    waits: Mapping[str, Wait] = field(default_factory=dict)
