"""What became of a job's time: work that counts, work that was lost, and what each recovery waited for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.jobs.spec import FailureClass


@dataclass(frozen=True, slots=True)
class Recovery:
    """Between two attempts, in seconds: until the end was noticed, until it could run again (verdict and backoff),
    until it had nodes, until it had loaded its state.
    """

    detect_seconds: float = 0.0
    decide_seconds: float = 0.0
    queue_seconds: float = 0.0
    load_seconds: float = 0.0

    @property
    def total_seconds(self) -> float:
        return self.detect_seconds + self.decide_seconds + self.queue_seconds + self.load_seconds


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of one job in seconds, of a cluster in GPU-seconds: sums of its jobs, each by its GPUs."""

    effective_seconds: float = 0.0
    lost_seconds: float = 0.0
    # It had nodes, and loaded or started.
    loading_seconds: float = 0.0
    queueing_seconds: float = 0.0
    recovery: Recovery = field(default_factory=Recovery)
    recoveries: Mapping[FailureClass, int] = field(default_factory=dict)
    # Of the GPUs while it ran, 0 to 1; None: nobody measured it.
    utilization: float | None = None

    @property
    def held_seconds(self) -> float:
        """Time in which it had nodes."""
        return self.effective_seconds + self.lost_seconds + self.loading_seconds

    @property
    def ratio(self) -> float | None:
        """Effective of held time; None before it had any."""
        return self.effective_seconds / self.held_seconds if self.held_seconds else None


def job_goodput(job: Job, attempts: Sequence[Attempt], now_unix_ms: int) -> Goodput:
    """Of attempts in their order; the last one may still run."""
    effective = lost = loading = queueing = 0.0
    recoveries: dict[FailureClass, int] = {}
    spans = Recovery()
    measured: list[tuple[float, float]] = []
    previous: Attempt | None = None
    for attempt in attempts:
        queueing += _seconds(attempt.eligible_unix_ms, attempt.scheduled_unix_ms)
        if attempt.eligible_unix_ms and not attempt.scheduled_unix_ms:
            queueing += _seconds(attempt.eligible_unix_ms, now_unix_ms)
        end_ms = attempt.ended_unix_ms or now_unix_ms
        if attempt.scheduled_unix_ms:
            ready_ms = min(attempt.running_unix_ms or end_ms, end_ms)
            loading += _seconds(attempt.scheduled_unix_ms, ready_ms)
            kept_ms = end_ms if _keeps_all(attempt) else min(max(attempt.durable_unix_ms, ready_ms), end_ms)
            effective += _seconds(ready_ms, kept_ms)
            lost += _seconds(kept_ms, end_ms)
            if attempt.utilization is not None:
                measured.append((attempt.utilization, _seconds(ready_ms, end_ms)))
        if previous is not None:
            spans = _add(spans, _recovery(previous, attempt))
            if previous.verdict and previous.verdict.failure:
                recoveries[previous.verdict.failure] = recoveries.get(previous.verdict.failure, 0) + 1
        previous = attempt
    if previous is None and not job.state.is_over:
        queueing += _seconds(max(job.submitted_unix_ms, job.eligible_unix_ms), now_unix_ms)
    weight = sum(seconds for _, seconds in measured)
    utilization = sum(share * seconds for share, seconds in measured) / weight if weight else None
    return Goodput(effective, lost, loading, queueing, spans, recoveries, utilization)


def cluster_goodput(jobs: Iterable[tuple[Job, Goodput]]) -> Goodput:
    """Of all jobs, each by the GPUs that it has; recoveries and their spans are plain sums."""
    total = Goodput()
    measured: list[tuple[float, float]] = []
    for job, goodput in jobs:
        gpus = max(1, job.spec.resources.gpus)
        recoveries = dict(total.recoveries)
        for failure, count in goodput.recoveries.items():
            recoveries[failure] = recoveries.get(failure, 0) + count
        total = Goodput(
            total.effective_seconds + goodput.effective_seconds * gpus,
            total.lost_seconds + goodput.lost_seconds * gpus,
            total.loading_seconds + goodput.loading_seconds * gpus,
            total.queueing_seconds + goodput.queueing_seconds * gpus,
            _add(total.recovery, goodput.recovery),
            recoveries,
        )
        if goodput.utilization is not None:
            measured.append((goodput.utilization, goodput.held_seconds * gpus))
    weight = sum(seconds for _, seconds in measured)
    utilization = sum(share * seconds for share, seconds in measured) / weight if weight else None
    return Goodput(
        total.effective_seconds,
        total.lost_seconds,
        total.loading_seconds,
        total.queueing_seconds,
        total.recovery,
        total.recoveries,
        utilization,
    )


def _keeps_all(attempt: Attempt) -> bool:
    """One that runs or succeeded has lost nothing (yet)."""
    return not attempt.ended_unix_ms or (attempt.verdict is not None and attempt.verdict.failure is None)


def _recovery(ended: Attempt, begun: Attempt) -> Recovery:
    ready_ms = begun.running_unix_ms or begun.ended_unix_ms
    return Recovery(
        _seconds(ended.ended_unix_ms, ended.detected_unix_ms),
        _seconds(ended.detected_unix_ms, begun.eligible_unix_ms),
        _seconds(begun.eligible_unix_ms, begun.scheduled_unix_ms),
        _seconds(begun.scheduled_unix_ms, ready_ms),
    )


def _seconds(begin_ms: int, end_ms: int) -> float:
    return max(0, end_ms - begin_ms) / 1000 if begin_ms and end_ms else 0.0


def _add(left: Recovery, right: Recovery) -> Recovery:
    return Recovery(*(getattr(left, item.name) + getattr(right, item.name) for item in fields(Recovery)))
