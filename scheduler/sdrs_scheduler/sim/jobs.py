"""One job of a simulation: what it has, what it has done, and what became of its time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from sdrs_scheduler.jobs.spec import DEFAULT_QUEUE
from sdrs_scheduler.policy.view import Ask, Pending, Placement, Running
from sdrs_scheduler.sim.generations import KEPT_GENERATIONS, Generation, Holders
from sdrs_scheduler.sim.settings import SimSettings
from sdrs_scheduler.sim.timeline import Timeline, working_seconds
from sdrs_scheduler.sim.traces import TraceJob

# Virtual time begins here: a Unix time of 0 would mean "none" to the policy.
EPOCH_UNIX = 1_700_000_000.0


class Phase(Enum):
    AHEAD = auto()  # not submitted yet
    WAITING = auto()
    STRANDED = auto()  # all its checkpoints lie on nodes that are down: it waits for those
    RUNNING = auto()
    LEAVING = auto()  # warned; its checkpoint is on the way
    DONE = auto()


@dataclass(slots=True)
class SimJob:
    trace: TraceJob
    nodes: int
    gpus_per_node: int
    ask: Ask
    interval_seconds: float
    phase: Phase = Phase.AHEAD
    # Counts starts, and names them: an event of an older attempt means nothing.
    attempt: int = 0
    timeline: Timeline | None = None
    placement: Placement = field(default_factory=dict)
    holders: Holders | None = None
    generations: list[Generation] = field(default_factory=list)
    save_count: int = 0
    eligible: float = 0.0
    waiting_since: float = 0.0
    # What the attempt under way loads is torn: it shows when it is loaded.
    loads_torn: bool = False
    # When it was told to leave: from then on it saves, and works no more.
    warned: float = math.inf
    # Others were told to leave for it.
    is_promised: bool = False
    pending: Pending | None = None
    running: Running | None = None

    waited_seconds: float = 0.0
    restoring_seconds: float = 0.0
    working_seconds: float = 0.0
    saving_seconds: float = 0.0
    failure_count: int = 0
    preemption_count: int = 0
    ended: float = math.inf

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def allocated_seconds(self) -> float:
        return self.restoring_seconds + self.working_seconds + self.saving_seconds

    @property
    def kept_work(self) -> float:
        """Work that counts: all of it once it is done, until then what the newest checkpoint holds."""
        if self.phase is Phase.DONE:
            return self.trace.duration_seconds
        return self.generations[-1].work if self.generations else 0.0

    @property
    def lost_seconds(self) -> float:
        """Work that was done, and had to be done again or still has."""
        return max(0.0, self.working_seconds - self.kept_work)

    def remember(self, generation: Generation) -> None:
        self.generations.append(generation)
        del self.generations[:-KEPT_GENERATIONS]


def make_job(trace: TraceJob, gpus_per_node: int, interval_seconds: float, can_preempt: bool) -> SimJob:
    """Gangs take as few nodes as they can, the same number of GPUs on each."""
    nodes = -(-trace.gpus // gpus_per_node)
    share = -(-trace.gpus // nodes)
    ask = Ask(
        id=trace.id,
        name=trace.id,
        queue=DEFAULT_QUEUE,
        user=trace.user,
        tenant="",
        priority=trace.priority,
        submitted_unix=EPOCH_UNIX + trace.submit_seconds,
        nodes=nodes,
        gpus_per_node=share,
        left_seconds=trace.duration_seconds,
        preemptible=can_preempt,
    )
    return SimJob(trace, nodes, share, ask, interval_seconds)


def see_pending(job: SimJob, settings: SimSettings) -> Pending:
    """It changes only when the job begins to wait or is promised a place, so it is made once for each of these."""
    if job.pending is None:
        work = job.trace.duration_seconds - (job.generations[-1].work if job.generations else 0.0)
        # Counted as for one that runs, and with what a start costs: if waiting made a job look shorter, two could
        # preempt each other for ever.
        left = working_seconds(work, job.interval_seconds, settings.save_seconds)
        job.pending = Pending(
            replace(job.ask, left_seconds=left + (settings.restore_seconds if job.generations else 0.0)),
            eligible_unix=EPOCH_UNIX + job.eligible,
            waiting_since_unix=EPOCH_UNIX + job.waiting_since,
            is_promised=job.is_promised,
        )
    return job.pending


def see_running(job: SimJob, now: float) -> Running:
    """What changes with time is set in place, in values that are immutable for everybody else.

    A view lives for one decision, and the policy keeps nothing of it. To make new values of all that runs, thousands of
    times, took more time than the decisions.
    """
    timeline = job.timeline
    assert timeline is not None
    seen = job.running
    if seen is None:
        seen = Running(replace(job.ask), job.placement, EPOCH_UNIX + timeline.began)
        job.running = seen
    set_field = object.__setattr__
    set_field(seen.ask, "left_seconds", timeline.ends - now)
    set_field(seen, "unsaved_seconds", timeline.unsaved_at(now))
    set_field(seen, "is_leaving", job.phase is Phase.LEAVING)
    return seen
