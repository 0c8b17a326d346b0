"""Carrying out what the machine asks for. It asks again and again: what was done a moment ago is not done twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sdrs_core.errors import InvalidArgumentError, SdrsError, StaleAttemptError, StaleTermError
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.errands import Errands, Outcome
from sdrs_scheduler.executors.executor import Executor
from sdrs_scheduler.fault_points import reach
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.sight import Begin, DumpStacks, Forget, Gather, Instruction, Kill, Resolve, Warn
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.observing import Observer
from sdrs_scheduler.ordering import Orders
from sdrs_scheduler.resuming import Resolver
from sdrs_scheduler.starting import launch_order
from sdrs_scheduler.storage import Storage

log = get_log("acting")

_AGAIN_SECONDS = 1.0
_RESOLVED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Means:
    """What instructions are carried out with."""

    executors: Mapping[str, Executor]
    storage: Storage
    observer: Observer
    resolver: Resolver
    orders: Orders
    leader: Leader
    errands: Errands
    clock: Clock
    # Where jobs reach the storage.
    url: str


class Actor:
    def __init__(self, means: Means) -> None:
        self._means = means
        self._done_at: dict[tuple[str, type[Instruction]], float] = {}

    def forget(self) -> None:
        self._done_at = {}

    def carry_out(self, job: Job, attempt: Attempt, instruction: Instruction) -> None:
        means, run = self._means, attempt.run
        executor = means.executors[attempt.executor]
        match instruction:
            case Resolve():
                means.resolver.request(job, _RESOLVED_SECONDS)
            case Gather():
                means.observer.gather(job, attempt)
            case Begin():
                if self._is_due(run, instruction, _AGAIN_SECONDS):
                    self._do("launch", job, attempt, lambda: self._begin(job, attempt, executor))
            case Warn():
                means.orders.warn(job, attempt, instruction.deadline_unix_ms)
                if self._is_due(run, instruction, float("inf")):
                    self._do("warn", job, attempt, lambda: executor.warn(run, job.spec.checkpoint.signal))
            case DumpStacks():
                if self._is_due(run, instruction, float("inf")):
                    self._do("dump_stacks", job, attempt, lambda: executor.dump_stacks(run))
            case Kill():
                if self._is_due(run, instruction, _AGAIN_SECONDS):
                    self._do("kill", job, attempt, lambda: executor.kill(run))
            case Forget():
                means.observer.drop(job, attempt)
                means.resolver.drop(job.id)
                means.orders.drop(attempt)
                self._done_at = {key: at for key, at in self._done_at.items() if key[0] != run}
                self._do("forget", job, attempt, lambda: executor.forget(run))

    def _is_due(self, run: str, instruction: Instruction, seconds: float) -> bool:
        key, now = (run, type(instruction)), self._means.clock.monotonic()
        last = self._done_at.get(key)
        if self._means.errands.is_busy(f"run:{run}") or (last is not None and now - last < seconds):
            return False
        self._done_at[key] = now
        return True

    def _begin(self, job: Job, attempt: Attempt, executor: Executor) -> None:
        # One that was frozen since it decided this must not start what another one has ended by now.
        if not self._means.leader.still_leads():
            raise StaleTermError("another scheduler took over")
        self._means.storage.open_attempt(job.spec.history, job.id, attempt.number)
        reach("attempt.opened")
        executor.launch(launch_order(job, attempt, self._means.url))
        reach("attempt.launched")

    def _do(self, what: str, job: Job, attempt: Attempt, work: Callable[[], None]) -> None:
        run = attempt.run

        def done(outcome: Outcome[None]) -> None:
            error = outcome.error
            if what != "forget":
                self._means.observer.acted_on(run)
            if error is None:
                log.info("done", what=what, run=run)
            elif what == "launch" and isinstance(error, InvalidArgumentError | StaleAttemptError):
                self._means.observer.launch_errors[run] = error.message
            elif isinstance(error, SdrsError):
                if what == "launch":
                    self._means.observer.launch_problems[run] = error.message
                log.warning("not_done", what=what, run=run, why=error.message)
            else:
                log.error("not_done", what=what, run=run, exc_info=error)

        self._means.errands.run(f"run:{run}", work, done)
