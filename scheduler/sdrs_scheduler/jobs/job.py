"""A job and its attempts as they are on record (``schedule/job/ID``, ``schedule/attempt/ID/NUMBER``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from sdrs_scheduler.jobs.spec import Action, FailureClass, JobSpec

JobId = NewType("JobId", str)

MAX_STORY_LINES = 50


class JobState(StrEnum):
    """::

    submitted → queued → scheduled → starting → running → succeeded | failed
                  ↑                               ↓
                  └──────── preempted ← checkpointing        any but the last ones → cancelled | held → queued
    """

    SUBMITTED = "submitted"
    QUEUED = "queued"
    SCHEDULED = "scheduled"  # nodes are chosen, and from where it goes on
    STARTING = "starting"  # handed to the executor
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"  # warned; its last checkpoint is waited for
    PREEMPTED = "preempted"  # free of its nodes, on its way back to the queue
    HELD = "held"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_over(self) -> bool:
        return self in _OVER

    @property
    def has_nodes(self) -> bool:
        return self in _WITH_NODES


# Made once: of thousands of jobs they are asked at each look.
_OVER = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_WITH_NODES = (JobState.SCHEDULED, JobState.STARTING, JobState.RUNNING, JobState.CHECKPOINTING)


class Wish(StrEnum):
    """What somebody asked for and the scheduler has not carried out yet."""

    NONE = ""
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    PREEMPT = "preempt"


@dataclass(frozen=True, slots=True)
class Slot:
    """What an attempt has on one node: these GPUs, by index."""

    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence of a job's story."""

    unix_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an attempt ended and what comes of it; ``sentence`` is for people."""

    failure: FailureClass | None  # None: it succeeded, or was cancelled
    sentence: str
    action: Action = Action.RESTART
    charged: bool = False
    blamed_node: str = ""
    # The failure policy of the job file that decided, if one did.
    policy: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job. Times are Unix milliseconds, 0 while it has not come to that."""

    job_id: JobId
    number: int
    slots: tuple[Slot, ...]
    executor: str
    # None: from the beginning.
    resume_step: int | None = None
    # Why it is this generation and not a newer one; empty: it is the newest.
    resume_note: str = ""
    # The newest commit of its history when it began, by the controller's clock: what is later is its own work.
    fresh_after_unix_ms: int = 0
    # From when on it could have run: submitted, or its forerunner ended and the backoff was over.
    eligible_unix_ms: int = 0
    scheduled_unix_ms: int = 0
    started_unix_ms: int = 0
    # The first beat, or the first sign of life: what it loaded is there.
    running_unix_ms: int = 0
    warned_unix_ms: int = 0
    # Why it was warned: "for llm-7b-1f2e (priority 90)".
    warned_because: str = ""
    # The commit of the newest generation at that time, by the controller's clock: a later one answers the warning.
    warned_after_unix_ms: int = 0
    ended_unix_ms: int = 0
    # When the scheduler noticed the end; how long detection took is the difference.
    detected_unix_ms: int = 0
    last_step: int | None = None
    durable_step: int | None = None
    durable_unix_ms: int = 0
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    log_files: tuple[str, ...] = ()
    # Of its GPUs while it ran, 0 to 1, as the job told; None: it did not.
    utilization: float | None = None
    # Set before it ended: it is being killed for this.
    verdict: Verdict | None = None
    # Where its run is known, as ``Executor.home`` has it; empty: nothing is launched yet, or everywhere.
    home: str = ""

    @property
    def run(self) -> str:
        return run_name(self.job_id, self.number)


def run_name(job_id: str, number: int) -> str:
    """What executors call an attempt."""
    return f"{job_id}.{number}"


@dataclass(frozen=True, slots=True)
class Job:
    id: JobId
    spec: JobSpec
    user: str
    submitted_unix_ms: int
    state: JobState = JobState.SUBMITTED
    wish: Wish = Wish.NONE
    # Who wished it, and why, in their words.
    wish_note: str = ""
    # The number of the newest attempt; 0: none yet. The next one is begun by a compare-and-swap on this record (P22).
    attempt: int = 0
    slots: tuple[Slot, ...] = ()
    # Not before; the backoff after a failure.
    eligible_unix_ms: int = 0
    # What was spent since the last progress.
    spent: Mapping[FailureClass, int] = field(default_factory=dict)
    no_progress_count: int = 0
    # The newest durable step that the budgets know of.
    progress_step: int | None = None
    # How many generations to go back further at the next start.
    roll_back: int = 0
    # Where the last roll back led, until something new came of it: never further than this step (-1: the beginning).
    resume_at_most: int | None = None
    excluded_nodes: tuple[str, ...] = ()
    # The ids of the jobs that must have succeeded first.
    depends_on: tuple[JobId, ...] = ()
    # What happened and what was decided, in a sentence.
    why: str = ""
    story: tuple[Line, ...] = ()
    ended_unix_ms: int = 0
    # How its last attempt ended, in a sentence.
    last_end: str = ""
    # How long its attempts that are over ran in all.
    ran_ms: int = 0
    # Somebody was preempted for it since it began to wait.
    is_promised: bool = False
