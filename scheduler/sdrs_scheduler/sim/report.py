"""What a simulation comes to, in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sdrs_scheduler.sim.engine import Outcome
from sdrs_scheduler.sim.jobs import Phase, SimJob


@dataclass(frozen=True, slots=True)
class Report:
    """Times are seconds, from a job's submission. Shares are of 1."""

    job_count: int
    done_count: int
    average_completion: float
    median_completion: float
    p99_completion: float
    # Without GPUs, from the submission to the end, all waits together.
    average_wait: float
    makespan: float
    # Allocated, of all GPUs from the first submission to the last end.
    utilization: float
    # Work that counts, of what was allocated.
    goodput: float
    allocated_gpu_hours: float
    useful_gpu_hours: float
    lost_gpu_hours: float
    saving_gpu_hours: float
    restoring_gpu_hours: float
    node_failure_count: int
    restart_count: int
    preemption_count: int


def make_report(outcome: Outcome) -> Report:
    jobs = outcome.jobs
    done = [job for job in jobs if job.phase is Phase.DONE]
    times = completion_times(jobs)
    gpus = outcome.settings.nodes * outcome.settings.gpus_per_node
    allocated = sum(job.gpus * job.allocated_seconds for job in jobs)
    useful = sum(job.gpus * job.kept_work for job in jobs)
    makespan = outcome.ended - min(job.trace.submit_seconds for job in jobs)
    return Report(
        job_count=len(jobs),
        done_count=len(done),
        average_completion=_mean(times),
        median_completion=percentile(times, 0.5),
        p99_completion=percentile(times, 0.99),
        average_wait=_mean([job.waited_seconds for job in done]),
        makespan=makespan,
        utilization=allocated / (gpus * makespan) if makespan else 0.0,
        goodput=useful / allocated if allocated else 0.0,
        allocated_gpu_hours=allocated / 3600,
        useful_gpu_hours=useful / 3600,
        lost_gpu_hours=_gpu_hours(jobs, [job.lost_seconds for job in jobs]),
        saving_gpu_hours=_gpu_hours(jobs, [job.saving_seconds for job in jobs]),
        restoring_gpu_hours=_gpu_hours(jobs, [job.restoring_seconds for job in jobs]),
        node_failure_count=outcome.node_failure_count,
        restart_count=sum(job.failure_count for job in jobs),
        preemption_count=sum(job.preemption_count for job in jobs),
    )


def completion_times(jobs: Sequence[SimJob]) -> list[float]:
    """From submission to end, of the jobs that are done, the shortest first."""
    return sorted(job.ended - job.trace.submit_seconds for job in jobs if job.phase is Phase.DONE)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest rank: a value that occurred. NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _gpu_hours(jobs: Sequence[SimJob], seconds: Sequence[float]) -> float:
    return sum(job.gpus * one for job, one in zip(jobs, seconds, strict=True)) / 3600
