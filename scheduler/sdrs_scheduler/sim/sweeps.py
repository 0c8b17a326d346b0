"""Several simulations of one trace that differ in one thing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sdrs_scheduler.sim.engine import Progress, simulate
from sdrs_scheduler.sim.report import Report, completion_times, make_report
from sdrs_scheduler.sim.settings import LEAST_NODES, PolicyName, Preemption, Restart, SimSettings
from sdrs_scheduler.sim.traces import TraceJob

# From far too often to hardly ever, for saves of seconds and nodes that fail once in weeks; None: by Young and Daly.
_INTERVALS_SECONDS = (60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, None)


class Sweep(StrEnum):
    INTERVAL = "interval"
    LEVEL = "level"
    POLICY = "policy"
    RESTART = "restart"
    PREEMPT = "preempt"


@dataclass(frozen=True, slots=True)
class Variant:
    label: str
    settings: SimSettings


@dataclass(frozen=True, slots=True)
class Result:
    variant: Variant
    report: Report
    # Of the jobs that were done, the shortest first.
    completion_seconds: tuple[float, ...]


def run_variant(trace: Sequence[TraceJob], variant: Variant, progress: Progress | None = None) -> Result:
    outcome = simulate(trace, variant.settings, progress)
    return Result(variant, make_report(outcome), tuple(completion_times(outcome.jobs)))


def variants(settings: SimSettings, sweep: Sweep | None) -> Sequence[Variant]:
    match sweep:
        case None:
            return [Variant(settings.policy.value, settings)]
        case Sweep.INTERVAL:
            return [Variant(interval_label(one), replace(settings, interval_seconds=one)) for one in _INTERVALS_SECONDS]
        case Sweep.LEVEL:
            return [Variant(str(level), replace(settings, level=level)) for level in LEAST_NODES]
        case Sweep.POLICY:
            return [Variant(policy.value, replace(settings, policy=policy)) for policy in PolicyName]
        case Sweep.RESTART:
            return [Variant(restart.value, replace(settings, restart=restart)) for restart in Restart]
        case Sweep.PREEMPT:
            return [Variant(one.value, replace(settings, preemption=one)) for one in Preemption]


def interval_label(seconds: float | None) -> str:
    if seconds is None:
        return "auto"
    return f"{seconds / 60:g}m" if seconds < 3600 else f"{seconds / 3600:g}h"
