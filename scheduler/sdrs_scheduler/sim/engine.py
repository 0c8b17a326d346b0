"""The simulation: events in virtual time, and between them the production policy.

Everything that happens at one instant (or, with a tick, before the next one) is seen before the policy is asked.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random

from sdrs_core.errors import InternalError, InvalidArgumentError
from sdrs_scheduler.jobs.spec import DEFAULT_QUEUE, Backoff
from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.view import Placement, Queue, View
from sdrs_scheduler.sim.cluster import SimCluster
from sdrs_scheduler.sim.failures import NodeFailures
from sdrs_scheduler.sim.generations import Generation, choose_resume, is_torn, place_holders
from sdrs_scheduler.sim.intervals import interval_of
from sdrs_scheduler.sim.jobs import EPOCH_UNIX, Phase, SimJob, make_job, see_pending, see_running
from sdrs_scheduler.sim.orders import policy_settings
from sdrs_scheduler.sim.settings import Preemption, Restart, SimSettings
from sdrs_scheduler.sim.shares import UserShares
from sdrs_scheduler.sim.timeline import Timeline
from sdrs_scheduler.sim.traces import TraceJob

Progress = Callable[[int, int], None]

# After a failure, before it may start again.
_BACKOFF_SECONDS = Backoff().initial_seconds
# Jobs that wait are looked at again after so long even if nothing happened: aging and hysteresis go by time alone.
_REVIEW_SECONDS = 300.0
# A job that fails faster than it gets on would run for ever: the simulation ends at so many times what it should take.
_HORIZON_FACTOR = 20.0
_PROGRESS_EVERY = 100


class _Kind(IntEnum):
    """In the order in which events of one instant are seen: who is done at that instant is not hit by a failure."""

    END = 0
    LEFT = 1
    NODE_BACK = 2
    NODE_LOST = 3
    SUBMIT = 4
    ELIGIBLE = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    settings: SimSettings
    jobs: tuple[SimJob, ...]
    # When the last job was done, or the simulation was given up.
    ended: float
    node_failure_count: int
    decision_count: int


def simulate(trace: Sequence[TraceJob], settings: SimSettings, progress: Progress | None = None) -> Outcome:
    return Simulation(trace, settings, progress).run()


class Simulation:
    def __init__(self, trace: Sequence[TraceJob], settings: SimSettings, progress: Progress | None = None) -> None:
        self._settings = settings
        self._policy = policy_settings(settings)
        self._progress = progress or (lambda done, total: None)
        can_preempt = settings.preemption is not Preemption.NONE
        self._jobs: dict[str, SimJob] = {}
        for one in trace:
            nodes = -(-one.gpus // settings.gpus_per_node)
            self._jobs[one.id] = make_job(one, settings.gpus_per_node, interval_of(settings, nodes), can_preempt)
        self._check_that_all_fit()
        self._waiting: dict[str, SimJob] = {}
        self._stranded: dict[str, SimJob] = {}
        self._running: dict[str, SimJob] = {}
        self._done_count = 0

        self._cluster = SimCluster(settings.nodes, settings.gpus_per_node)
        self._failures = NodeFailures(settings.seed, settings.nodes, settings.mtbf_seconds, settings.repair_seconds)
        self._node_failure_count = 0
        self._random = Random(f"{settings.seed}/holders")

        self._shares = UserShares()
        self._queues = {DEFAULT_QUEUE: Queue(DEFAULT_QUEUE)}
        self._events: list[tuple[float, int, int, str, int]] = []
        self._event_count = 0
        self._decide_at = math.inf
        self._decision_count = 0

    def run(self) -> Outcome:
        for job in self._jobs.values():
            self._push(job.trace.submit_seconds, _Kind.SUBMIT, job.trace.id)
        for number in range(self._settings.nodes):
            self._push(self._failures.next_failure(number, 0.0), _Kind.NODE_LOST, number=number)
        horizon = self._horizon()
        now = 0.0
        while self._done_count < len(self._jobs) and now < horizon:
            if self._events and self._events[0][0] <= self._decide_at:
                now, kind, _order, job_id, number = heapq.heappop(self._events)
                self._happen(now, _Kind(kind), job_id, number)
            else:
                now = self._decide_at
                self._decide(now)
        for job in self._running.values():  # only if it was given up
            self._account(job, now)
        self._progress(self._done_count, len(self._jobs))
        return Outcome(self._settings, tuple(self._jobs.values()), now, self._node_failure_count, self._decision_count)

    def _check_that_all_fit(self) -> None:
        largest = max(self._jobs.values(), key=lambda job: job.nodes)
        if largest.nodes > self._settings.nodes:
            raise InvalidArgumentError(
                f'job "{largest.trace.id}" needs {largest.nodes} nodes of {self._settings.gpus_per_node} GPUs, '
                f"there are {self._settings.nodes}: simulate more nodes, or cut it from the trace"
            )

    def _horizon(self) -> float:
        jobs = self._jobs.values()
        gpus = self._settings.nodes * self._settings.gpus_per_node
        work = sum(job.gpus * job.trace.duration_seconds for job in jobs) / gpus
        longest = max(job.trace.duration_seconds for job in jobs)
        return _HORIZON_FACTOR * (max(job.trace.submit_seconds for job in jobs) + work + longest)

    # What happens

    def _push(self, at: float, kind: _Kind, job_id: str = "", number: int = 0) -> None:
        if math.isfinite(at):
            self._event_count += 1
            heapq.heappush(self._events, (at, kind, self._event_count, job_id, number))

    def _happen(self, now: float, kind: _Kind, job_id: str, number: int) -> None:
        if kind is _Kind.NODE_LOST:
            self._lose_node(now, number)
        elif kind is _Kind.NODE_BACK:
            self._return_node(now, number)
        elif kind is _Kind.SUBMIT:
            self._wait(self._jobs[job_id], now, now)
        elif kind is _Kind.ELIGIBLE:
            self._wake(now)
        else:
            job = self._jobs[job_id]
            # The number is the attempt's: it may have ended otherwise since.
            if job.attempt != number or job.trace.id not in self._running:
                return
            if kind is _Kind.LEFT:
                self._stop(job, now)
                self._requeue(job, now, 0.0)
            elif job.loads_torn:
                self._stop(job, now)
                job.failure_count += 1
                job.generations.pop()
                self._requeue(job, now, _BACKOFF_SECONDS)
            else:
                self._finish(job, now)

    def _lose_node(self, now: float, number: int) -> None:
        self._node_failure_count += 1
        self._push(now + self._failures.repair_seconds, _Kind.NODE_BACK, number=number)
        for job in self._cluster.lose(number):
            self._stop(job, now)
            job.failure_count += 1
            self._requeue(job, now, _BACKOFF_SECONDS)

    def _return_node(self, now: float, number: int) -> None:
        self._cluster.bring_back(number)
        self._push(self._failures.next_failure(number, now), _Kind.NODE_LOST, number=number)
        for job in list(self._stranded.values()):
            if not choose_resume(job.generations, self._settings.restart, self._cluster.down).is_waiting:
                del self._stranded[job.trace.id]
                self._wait(job, now, job.waiting_since)
        self._wake(now)

    def _finish(self, job: SimJob, now: float) -> None:
        self._account(job, now)
        self._release(job, now)
        job.phase = Phase.DONE
        job.ended = now
        job.generations.clear()
        self._done_count += 1
        if self._done_count % _PROGRESS_EVERY == 0:
            self._progress(self._done_count, len(self._jobs))
        self._wake(now)

    # From waiting to running and back

    def _wait(self, job: SimJob, now: float, since: float) -> None:
        job.phase = Phase.WAITING
        job.waiting_since = since
        job.is_promised = False
        job.pending = None
        self._waiting[job.trace.id] = job
        if job.eligible > now:
            self._push(job.eligible, _Kind.ELIGIBLE)
        self._wake(now)

    def _requeue(self, job: SimJob, now: float, backoff_seconds: float) -> None:
        resume = choose_resume(job.generations, self._settings.restart, self._cluster.down)
        # What is verified is read while the job waits, but it does not start before.
        job.eligible = now + max(backoff_seconds, resume.verified_count * self._settings.restore_seconds)
        if resume.is_waiting:
            self._strand(job, now)
        else:
            self._wait(job, now, now)

    def _strand(self, job: SimJob, since: float) -> None:
        job.phase = Phase.STRANDED
        job.waiting_since = since
        self._stranded[job.trace.id] = job

    def _start(self, job: SimJob, placement: Placement, now: float) -> None:
        resume = choose_resume(job.generations, self._settings.restart, self._cluster.down)
        if resume.is_waiting:  # a node went down while it waited
            del self._waiting[job.trace.id]
            self._strand(job, job.waiting_since)
            return
        from_work = 0.0
        if resume.generation is None:
            job.generations.clear()
        else:
            # It goes on from here: what was saved later is of a past that did not happen.
            del job.generations[job.generations.index(resume.generation) + 1 :]
            from_work = resume.generation.work
        job.loads_torn = resume.generation is not None and resume.generation.is_torn
        job.timeline = Timeline(
            began=now,
            restore_seconds=self._settings.restore_seconds if resume.generation is not None else 0.0,
            from_work=from_work,
            whole_work=from_work if job.loads_torn else job.trace.duration_seconds,
            interval_seconds=job.interval_seconds,
            save_seconds=self._settings.save_seconds,
        )
        job.attempt += 1
        job.running = None
        job.phase = Phase.RUNNING
        job.warned = math.inf
        job.waited_seconds += now - job.waiting_since
        del self._waiting[job.trace.id]
        self._running[job.trace.id] = job
        self._cluster.take(job, placement)
        self._shares.hold(job.trace.user, job.gpus, now)
        self._push(job.timeline.ends, _Kind.END, job.trace.id, job.attempt)

    def _preempt(self, job: SimJob, now: float) -> bool:
        """Whether it is free at once."""
        timeline = job.timeline
        assert timeline is not None
        job.preemption_count += 1
        keeps = self._settings.preemption is Preemption.CHECKPOINT and self._settings.restart is not Restart.SCRATCH
        if not keeps or timeline.unsaved_at(now) <= 0:
            self._stop(job, now)
            self._requeue(job, now, 0.0)
            return True
        job.phase = Phase.LEAVING
        job.warned = now
        self._push(now + timeline.saving_left_at(now), _Kind.LEFT, job.trace.id, job.attempt)
        return False

    def _stop(self, job: SimJob, now: float) -> None:
        """Off its GPUs, without being done; what it saved is there."""
        self._account(job, now)
        timeline = job.timeline
        assert timeline is not None
        works_until = min(now, job.warned)
        works = [timeline.from_work + (i + 1) * job.interval_seconds for i in range(timeline.saves_at(works_until))]
        if job.phase is Phase.LEAVING and now >= job.warned + timeline.saving_left_at(job.warned):
            works.append(timeline.worked_at(job.warned))
        if works:
            numbers = self._cluster.numbers_of(job.placement)
            holders = place_holders(self._settings.level, numbers, self._settings.nodes, self._random.randrange)
            for work in works:
                job.save_count += 1
                torn = is_torn(self._settings.seed, job.trace.id, job.save_count, self._settings.torn)
                job.remember(Generation(work, holders, torn))
        self._release(job, now)

    def _account(self, job: SimJob, now: float) -> None:
        timeline = job.timeline
        assert timeline is not None
        spent = timeline.spent_at(min(now, job.warned))
        job.restoring_seconds += spent.restoring
        job.working_seconds += spent.working
        # From the warning on it only saves.
        job.saving_seconds += spent.saving + max(0.0, now - job.warned)

    def _release(self, job: SimJob, now: float) -> None:
        self._cluster.release(job)
        self._shares.hold(job.trace.user, -job.gpus, now)
        del self._running[job.trace.id]

    # Decisions

    def _wake(self, now: float) -> None:
        tick = self._settings.tick_seconds
        self._decide_at = min(self._decide_at, math.ceil(now / tick) * tick if tick else now)

    def _decide(self, now: float) -> None:
        self._decide_at = math.inf
        # Who is killed frees its place within the same instant: then the policy is asked again, once for each of them
        # at most, as it starts or kills fewer every time.
        while self._waiting and self._carry_out_decisions(now):
            pass
        if self._waiting:
            if not self._running and not self._events:
                raise InternalError(f"the policy leaves {len(self._waiting)} jobs waiting on an idle cluster")
            self._decide_at = now + max(_REVIEW_SECONDS, self._settings.tick_seconds)

    def _carry_out_decisions(self, now: float) -> bool:
        """Whether somebody was killed, so that there is more to decide."""
        view = View(
            now_unix=EPOCH_UNIX + now,
            nodes=self._cluster.nodes,
            pending=[see_pending(job, self._settings) for job in self._waiting.values()],
            running=[see_running(job, now) for job in self._running.values()],
            queues=self._queues,
            user_usage=self._shares.used_at(now),
        )
        decisions = decide(view, self._policy)
        self._decision_count += 1
        for start in decisions.starts:
            self._start(self._jobs[start.job_id], start.placement, now)
        is_free = False
        for preempt in decisions.preempts:
            is_free |= self._preempt(self._jobs[preempt.job_id], now)
            favoured = self._jobs[preempt.for_job_id]
            favoured.is_promised = True
            favoured.pending = None
        return is_free
