"""The loop: look, decide, put on record, act. Thin: what is decided is decided elsewhere, by pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sdrs_core.errors import InternalError, InvalidArgumentError, SdrsError, StaleTermError
from sdrs_scheduler import keys
from sdrs_scheduler.acting import Actor, Means
from sdrs_scheduler.book import Book, Extra
from sdrs_scheduler.entries import Stored, Usage
from sdrs_scheduler.jobs import machine
from sdrs_scheduler.jobs.advice import advise
from sdrs_scheduler.jobs.job import Attempt, Job, JobState, Slot
from sdrs_scheduler.jobs.machine import MachineSettings
from sdrs_scheduler.jobs.sight import Forget, Step
from sdrs_scheduler.jobs.transitions import with_before
from sdrs_scheduler.keeping import Keeper
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.node_book import NodeBook
from sdrs_scheduler.policy.view import Decisions, Preempt, Start, View, Wait
from sdrs_scheduler.usage import used
from sdrs_scheduler.viewing import Scene, view_of

log = get_log("scheduler")

Decide = Callable[[View], Decisions]

# A sentence that only counts down is not worth a write each time. What became of a dependency is told at once.
_WHY_SECONDS = 15.0
# Of a long queue only so many are told at each look why they wait, and each less often: a thousand that count down must
# not be a hundred writes a second.
_MAX_EXPLAINED = 20
_MAX_RETOLD_PER_SECOND = 5.0
_USAGE_SECONDS = 60.0
_ADVICE_SECONDS = 30.0
# Runs that ended so lately may not be forgotten by their executors yet: whoever decided was killed right then.
_FORGET_AGAIN_MS = 3600_000
# How old an answer may be that was found out while the job waited.
_PREFETCH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Desk:
    """Who does what for the loop."""

    book: Book
    means: Means
    nodes: NodeBook
    keeper: Keeper
    decide: Decide
    machine: MachineSettings


class Scheduler:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._actor = Actor(desk.means)
        self._leads = False
        self._alive: list[str] = []
        self._usage = Usage()
        self._usage_written = float("-inf")
        self._waits: dict[str, tuple[str, float]] = {}
        self._advised: dict[str, tuple[float, float]] = {}
        # When a job was given its nodes: from where it goes on must have been looked at since.
        self._placed: dict[str, float] = {}

    @property
    def leads(self) -> bool:
        return self._leads

    def tick(self) -> None:
        """One look at everything. What does not answer now is looked at again at the next one."""
        try:
            self._tick()
        except StaleTermError:
            self._leads = False
        except SdrsError as error:
            log.warning("tick_cut_short", why=error.message)

    def _tick(self) -> None:
        means, book = self._desk.means, self._desk.book
        if not means.leader.lead():
            self._leads = False
            return
        if not self._leads:
            self._take_over()
        means.errands.collect()
        means.resolver.collect()
        book.read()
        # Those that are over and stay so are passed over: there may be many thousands of them.
        self._alive = [job_id for job_id, stored in book.jobs.items() if not _is_done(stored.value)]
        active = self._active()
        means.observer.look(active)
        means.errands.collect()
        for executor, nodes in means.observer.nodes.items():
            self._desk.nodes.see(executor, nodes)
        for job_id in self._alive:
            try:
                self._advance(book.jobs[job_id])
            except (InternalError, InvalidArgumentError) as error:
                # A defect of ours in one job's life, or a record that nobody takes, must not stop the others'.
                log.error("job_stuck", job=job_id, why=error.message)
        self._decide()
        self._desk.nodes.close_struck(means.observer.cordoned, means.observer.cordons_asked)
        self._advise()
        self._forget_those_that_are_over()
        self._desk.keeper.tidy(means.observer.generations)

    def _take_over(self) -> None:
        """What this process knew from before does not count; records and executors do."""
        means, book = self._desk.means, self._desk.book
        book.forget()
        means.observer.forget()
        means.orders.forget()
        self._actor.forget()
        self._waits, self._advised, self._placed = {}, {}, {}
        self._usage = stored.value if (stored := book.ledger.usage()) else Usage(means.clock.unix_ms())
        book.read()
        self._leads = True
        since_ms = means.clock.unix_ms() - _FORGET_AGAIN_MS
        for job in [stored_job.value for stored_job in book.jobs.values()]:
            if job.state.has_nodes or (job.state.is_over and job.ended_unix_ms < since_ms):
                continue
            if (attempt := book.attempt(job)) is not None and attempt.executor in means.executors:
                self._actor.carry_out(job, attempt, Forget())

    def _forget_those_that_are_over(self) -> None:
        """I10: what is known of jobs beside their records ends with them."""
        alive = set(self._alive)
        self._desk.means.resolver.keep_only(alive)
        for known in (self._waits, self._advised, self._placed):
            for job_id in known.keys() - alive:
                known.pop(job_id)

    def _active(self) -> list[tuple[Job, Attempt]]:
        book = self._desk.book
        jobs = [job for job in (book.jobs[job_id].value for job_id in self._alive) if job.state.has_nodes]
        return [(job, attempt) for job in jobs if (attempt := book.attempt(job)) is not None]

    def _advance(self, stored: Stored[Job]) -> None:
        job, means = stored.value, self._desk.means
        attempt = self._desk.book.attempt(job)
        if attempt is not None and job.state.has_nodes and attempt.executor not in means.executors:
            return
        sight = means.observer.sight(job, attempt)
        if job.state is JobState.SCHEDULED:
            since = self._placed.setdefault(job.id, means.clock.monotonic())
            sight = replace(
                sight,
                resumption=means.resolver.answer(job, since),
                blocked_because=means.resolver.blocked_because(job.id),
            )
        elif job.state is JobState.QUEUED and (job.attempt or means.resolver.blocked_because(job.id)):
            means.resolver.request(job, _PREFETCH_SECONDS)
        self._record(stored, attempt, machine.advance(job, attempt, sight, self._desk.machine))

    def _record(self, stored: Stored[Job], attempt: Attempt | None, step: Step, extra: Extra | None = None) -> bool:
        means = self._desk.means
        if extra is None:
            extra = self._desk.nodes.strike(attempt, step.attempt, means.clock.unix_ms())
        if not self._desk.book.commit(stored, attempt, step, extra):
            return False
        if step.job.state is not JobState.SCHEDULED:
            self._placed.pop(step.job.id, None)
        if step.job.state.is_over and not stored.value.state.is_over:
            self._desk.keeper.finish(step.job)
        if step.attempt is not None:
            for instruction in step.instructions:
                self._actor.carry_out(step.job, step.attempt, instruction)
        return True

    def _decide(self) -> None:
        means, book = self._desk.means, self._desk.book
        if not means.observer.nodes:
            return
        jobs = {job_id: stored.value for job_id, stored in book.jobs.items()}
        alive = [jobs[job_id] for job_id in self._alive]
        attempts = {str(job.id): attempt for job in alive if (attempt := self._known_attempt(job)) is not None}
        self._count_usage(alive)
        view, hopeless = view_of(
            Scene(
                means.clock.unix_ms(),
                jobs,
                attempts,
                means.observer.nodes,
                {name: stored.value for name, stored in book.nodes.items()},
                means.observer.cordoned,
                {name: stored.value for name, stored in book.queues.items()},
                self._usage,
                {job.id: share for job, attempt in self._active() if (share := self._utilization(job, attempt))},
                {job_id: why for job_id in self._alive if (why := means.resolver.blocked_because(job_id))},
            )
        )
        if not view.pending and not hopeless:
            return
        decisions = self._desk.decide(view)
        for preempt in decisions.preempts:
            self._preempt(preempt)
        for start in decisions.starts:
            self._start(start)
        waits = {**decisions.waits, **{job_id: Wait("impossible", why) for job_id, why in hopeless.items()}}
        left = _MAX_EXPLAINED
        again_seconds = max(_WHY_SECONDS, len(waits) / _MAX_RETOLD_PER_SECOND)
        for job_id, wait in waits.items():
            left -= self._explain(job_id, wait, again_seconds)
            if not left:
                break

    def _known_attempt(self, job: Job) -> Attempt | None:
        return None if job.state.is_over else self._desk.book.attempt(job)

    def _utilization(self, job: Job, attempt: Attempt) -> float | None:
        return self._desk.means.observer.sight(job, attempt).utilization

    def _start(self, start: Start) -> None:
        stored = self._desk.book.jobs[start.job_id]
        slots = tuple(Slot(node, tuple(gpus)) for node, gpus in start.placement.items())
        step = machine.placed(stored.value, slots, stored.value.spec.executor, self._desk.means.clock.unix_ms())
        before = self._desk.book.attempt(stored.value)
        # What was verified while it waited counts, if that is fresh: nothing was saved since, or it is looked at again.
        self._placed[stored.value.id] = self._desk.means.clock.monotonic()
        self._waits.pop(start.job_id, None)
        self._record(stored, before, step, Extra())

    def _preempt(self, preempt: Preempt) -> None:
        book, means = self._desk.book, self._desk.means
        stored = book.jobs[preempt.job_id]
        attempt = book.attempt(stored.value)
        if attempt is None or stored.value.state is JobState.CHECKPOINTING or attempt.verdict is not None:
            return
        wanted = book.jobs.get(preempt.for_job_id)
        because = f"for {preempt.for_job_id} ({preempt.because})"
        step = machine.warned(stored.value, attempt, because, means.observer.sight(stored.value, attempt))
        extra = Extra()
        if wanted is not None and not wanted.value.is_promised:
            # In the same transaction: what is freed for it is not given to another one.
            extra = Extra({wanted.key: replace(wanted.value, is_promised=True)}, {wanted.key: wanted.revision})
        self._record(stored, attempt, step, extra)

    def _explain(self, job_id: str, wait: Wait, again_seconds: float) -> bool:
        """Whether that was worth a write."""
        stored = self._desk.book.jobs[job_id]
        job, now = stored.value, self._desk.means.clock.monotonic()
        sentence = with_before(wait.sentence, job.last_end)
        reason, at = self._waits.get(job_id, ("", float("-inf")))
        if job.state is not JobState.QUEUED or job.why == sentence:
            return False
        if reason == wait.reason != "dependency" and now - at < again_seconds:
            return False
        self._waits[job_id] = (wait.reason, now)
        return self._record(stored, None, Step(replace(job, why=sentence), None), Extra())

    def _count_usage(self, jobs: Sequence[Job]) -> None:
        means = self._desk.means
        holders = [job for job in jobs if job.state.has_nodes]
        self._usage = used(self._usage, holders, means.clock.unix_ms())
        now = means.clock.monotonic()
        if now - self._usage_written >= _USAGE_SECONDS and (holders or self._usage.by_user):
            self._usage_written = now
            means.leader.commit({}, {keys.USAGE: self._usage})

    def _advise(self) -> None:
        """Jobs with ``interval: auto`` are told how often to save."""
        means, book = self._desk.means, self._desk.book
        now = means.clock.monotonic()
        for job, attempt in self._active():
            if not job.spec.checkpoint.interval_auto or job.state is not JobState.RUNNING:
                continue
            at, interval_seconds = self._advised.get(job.id, (float("-inf"), 0.0))
            if now - at >= _ADVICE_SECONDS:
                attempts = [stored.value for stored in book.ledger.attempts(job.id)]
                generations = means.observer.generations.get(job.id, ())
                advice = advise(attempts, generations, job.spec.resources.nodes, means.clock.unix_ms())
                interval_seconds = advice.interval_seconds if advice else 0.0
                self._advised[job.id] = (now, interval_seconds)
            if interval_seconds:
                means.orders.advise(attempt, interval_seconds)


def _is_done(job: Job) -> bool:
    """Over, and nobody wants it back."""
    return job.state.is_over and not job.wish
