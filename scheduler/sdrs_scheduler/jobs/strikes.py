"""What is held against a node: failures that it was blamed for, within a window; too many, and it gets no more work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sdrs_scheduler.entries import NodeRecord, Strike
from sdrs_scheduler.jobs.spec import FailureClass

# A record has a limit.
_MAX_STRIKES = 50


def _weights() -> Mapping[FailureClass, float]:
    # A GPU that broke breaks again; a worker that was killed may have been killed by anybody.
    return {
        FailureClass.GPU: 1.5,
        FailureClass.NODE_LOST: 1.0,
        FailureClass.HANG: 1.0,
        FailureClass.NOT_STARTED: 1.0,
        FailureClass.KILLED: 0.5,
    }


@dataclass(frozen=True, slots=True)
class StrikeSettings:
    limit: float = 3.0
    window_seconds: float = 24 * 3600.0
    weights: Mapping[FailureClass, float] = field(default_factory=_weights)
    # Strikes of one and the same job count only so far: it may be the job.
    max_per_job: float = 2.0
    # A node that goes down takes all its jobs with it: what it loses within so long is one outage, and one strike.
    outage_seconds: float = 300.0


def fresh(record: NodeRecord, now_unix_ms: int, settings: StrikeSettings) -> NodeRecord:
    """Without the strikes that are older than the window. A cordon stays until somebody clears it."""
    since = now_unix_ms - int(settings.window_seconds * 1000)
    strikes = tuple(strike for strike in record.strikes if strike.unix_ms > since)
    return record if strikes == record.strikes else replace(record, strikes=strikes)


def weight_of(record: NodeRecord, settings: StrikeSettings) -> float:
    by_job: dict[str, float] = {}
    for strike in record.strikes:
        by_job[strike.job_id] = by_job.get(strike.job_id, 0.0) + settings.weights.get(strike.failure, 0.0)
    return sum(min(weight, settings.max_per_job) for weight in by_job.values())


def _is_same_outage(record: NodeRecord, strike: Strike, settings: StrikeSettings) -> bool:
    since = strike.unix_ms - int(settings.outage_seconds * 1000)
    return any(known.failure is FailureClass.NODE_LOST and known.unix_ms > since for known in record.strikes)


def with_strike(record: NodeRecord, strike: Strike, settings: StrikeSettings) -> NodeRecord:
    """``record`` after one more failure; cordoned, with the reason, if that was one too many."""
    if not settings.weights.get(strike.failure):
        return record
    record = fresh(record, strike.unix_ms, settings)
    if strike.failure is FailureClass.NODE_LOST and _is_same_outage(record, strike, settings):
        return record
    record = replace(record, strikes=(*record.strikes, strike)[-_MAX_STRIKES:])
    if record.cordoned_because or weight_of(record, settings) < settings.limit:
        return record
    counts: dict[FailureClass, int] = {}
    for known in record.strikes:
        counts[known.failure] = counts.get(known.failure, 0) + 1
    told = ", ".join(f"{count}× {failure}" for failure, count in sorted(counts.items()))
    hours = settings.window_seconds / 3600
    failures = "1 failure" if len(record.strikes) == 1 else f"{len(record.strikes)} failures"
    because = f"{failures} within {hours:g} h ({told}); the last one: {strike.sentence}"
    return replace(record, cordoned_because=because, cordoned_unix_ms=strike.unix_ms)
