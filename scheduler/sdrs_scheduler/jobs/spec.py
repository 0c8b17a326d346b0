"""What a user asks for: a job file, checked, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_QUEUE = "default"
DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100


class Resume(StrEnum):
    """From which generation of its history a job goes on."""

    # The newest that was read through and found whole; an older one if that one is damaged.
    LATEST_VERIFIED = "latest-verified"
    # The newest that is committed and not marked, without reading it first.
    LATEST = "latest"
    NONE = "none"


class FailureClass(StrEnum):
    """Why an attempt ended. Budgets are kept for each of them."""

    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    STORAGE = "storage"
    HANG = "hang"
    OUT_OF_MEMORY = "oom"
    GPU = "gpu"
    NOT_A_NUMBER = "nan"
    CRASH = "crash"
    KILLED = "killed"
    TRANSIENT = "transient"  # exit 200
    PERMANENT = "permanent"  # exit 210
    REQUEUED = "requeued"  # exit 75, or a user's word
    NEVER_RESTART = "never_restart"  # exit 93
    NOT_STARTED = "not_started"  # the executor could not start it


class Action(StrEnum):
    """What a failure policy of the job file does with an attempt that it matches."""

    RESTART = "restart"
    REQUEUE = "requeue"  # as restart, and no retry is charged
    EXCLUDE_NODE = "exclude_node"
    ROLL_BACK = "roll_back"  # restart from one generation earlier
    FAIL = "fail"


class Launch(StrEnum):
    # The command is started once on each node: plain Python, torchrun.
    PER_NODE = "per_node"
    # Once, on the first node, with the list of all in SDRS_HOSTFILE: mpirun and its like.
    ONCE = "once"


@dataclass(frozen=True, slots=True)
class Resources:
    """``nodes`` times ``gpus_per_node``, all of them or none (a gang). Zero or empty: no wish, or no limit."""

    nodes: int = 1
    gpus_per_node: int = 1
    exclusive: bool = False
    gpu_type: str = ""
    node_group: str = ""
    cpus_per_node: int = 0
    memory_bytes_per_node: int = 0

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class CheckpointWish:
    # Whose history it is, as ``cluster.checkpoints(history)`` names it; empty: the job's name.
    history: str = ""
    pool: str = ""
    level: str = ""
    # How many generations the scheduler leaves; 0: as the pool's retention says.
    keep: int = 0
    # From the warning of a preemption until it is killed, if its checkpoint is not durable earlier.
    grace_seconds: float = 60.0
    # How it is warned: TERM or USR1.
    signal: str = "TERM"
    resume: Resume = Resume.LATEST_VERIFIED
    # Between two saves; 0: the job's own business, or advice that nobody applies.
    interval_seconds: float = 0.0
    interval_auto: bool = False


@dataclass(frozen=True, slots=True)
class Backoff:
    initial_seconds: float = 10.0
    max_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Retry:
    max: int = 3
    free_on: tuple[FailureClass, ...] = (FailureClass.PREEMPTED, FailureClass.NODE_LOST, FailureClass.STORAGE)
    backoff: Backoff = field(default_factory=Backoff)
    # So many attempts in a row without a new durable step, for whatever reason, and it has failed; 0: no limit.
    no_progress_limit: int = 3
    # Of single classes, where they differ from ``max``.
    budgets: Mapping[FailureClass, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """Tried in the order of the file, before our own rules."""

    name: str
    action: Action
    # A regular expression, looked for in the last lines of the logs; empty: any.
    match: str = ""
    exit_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HangWatch:
    """Zero turns one off. Both wait for the first beat: a job that never beats is not watched."""

    heartbeat_seconds: float = 30.0
    progress_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class JobSpec:
    name: str
    # For bash, or the words of a command.
    command: str | tuple[str, ...]
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    # When it should be done, in Unix time; 0: no deadline. Urgency rises towards it.
    deadline_unix: float = 0.0
    # How long it may run in all, as the user guesses: backfill goes by it, nothing is ended by it; 0: unknown.
    estimate_seconds: float = 0.0
    # Ends it as failed; 0: never.
    time_limit_seconds: float = 0.0
    resources: Resources = field(default_factory=Resources)
    checkpoint: CheckpointWish = field(default_factory=CheckpointWish)
    retry: Retry = field(default_factory=Retry)
    failure_policies: tuple[FailurePolicy, ...] = ()
    hang: HangWatch = field(default_factory=HangWatch)
    # Names or ids as the user wrote them.
    depends_on: tuple[str, ...] = ()
    executor: str = "local"
    launch: Launch = Launch.PER_NODE
    workdir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    preemptible: bool = True
    tenant: str = ""

    @property
    def history(self) -> str:
        return self.checkpoint.history or self.name
