"""What Prometheus sees at /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sdrs_scheduler.jobs.goodput import Goodput, cluster_goodput, job_goodput
from sdrs_scheduler.jobs.job import Attempt, Job, JobState

_SILENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the figures are made of."""

    now_unix_ms: int
    # Whether this scheduler decides.
    decides: bool
    jobs: list[tuple[Job, list[Attempt]]]
    # Of all nodes that are up.
    gpus: int


class SchedulerMetrics(Collector):
    """``read`` is called when somebody looks."""

    def __init__(self, read: Callable[[], Seen]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        seen = self._read()
        jobs, now_unix_ms = seen.jobs, seen.now_unix_ms
        yield GaugeMetricFamily("sdrs_scheduler_decides", "1 if this scheduler decides", value=float(seen.decides))
        yield GaugeMetricFamily("sdrs_gpus", "GPUs of nodes that are up", value=seen.gpus)
        taken = sum(len(slot.gpus) for job, _ in jobs for slot in job.slots)
        yield GaugeMetricFamily("sdrs_gpus_taken", "GPUs that jobs hold", value=taken)
        by_state = GaugeMetricFamily("sdrs_jobs", "Jobs on record", labels=["state"])
        counts = dict.fromkeys(JobState, 0)
        for job, _ in jobs:
            counts[job.state] += 1
        for state, count in counts.items():
            by_state.add_metric([str(state)], count)
        yield by_state
        measured = [(job, job_goodput(job, attempts, now_unix_ms)) for job, attempts in jobs]
        yield from _goodput_metrics(cluster_goodput(measured))
        # Of those under way only: their number is bounded by the cluster, that of all on record is not.
        yield from _metrics_by_job((job, of_job) for job, of_job in measured if not job.state.is_over)


def _goodput_metrics(total: Goodput) -> Iterable[Metric]:
    times = GaugeMetricFamily("sdrs_jobs_gpu_seconds", "What became of the GPU time of jobs", labels=["what"])
    times.add_metric(["effective"], total.effective_seconds)
    times.add_metric(["lost"], total.lost_seconds)
    times.add_metric(["loading"], total.loading_seconds)
    times.add_metric(["queueing"], total.queueing_seconds)
    yield times
    if total.ratio is not None:
        yield GaugeMetricFamily(
            "sdrs_jobs_goodput_ratio", "Effective of all GPU time that jobs held", value=total.ratio
        )
    if total.utilization is not None:
        yield GaugeMetricFamily("sdrs_jobs_gpu_utilization", "Of GPUs that jobs held", value=total.utilization)
    spans = GaugeMetricFamily("sdrs_jobs_recovery_seconds", "What recoveries waited for, in all", labels=["part"])
    spans.add_metric(["detect"], total.recovery.detect_seconds)
    spans.add_metric(["decide"], total.recovery.decide_seconds)
    spans.add_metric(["queue"], total.recovery.queue_seconds)
    spans.add_metric(["load"], total.recovery.load_seconds)
    yield spans
    recoveries = CounterMetricFamily("sdrs_jobs_recoveries", "Attempts that followed a failure", labels=["failure"])
    for failure, count in total.recoveries.items():
        recoveries.add_metric([str(failure)], count)
    yield recoveries


def _metrics_by_job(measured: Iterable[tuple[Job, Goodput]]) -> Iterable[Metric]:
    times = GaugeMetricFamily("sdrs_job_seconds", "What became of a job's time so far", labels=["job", "what"])
    ratios = GaugeMetricFamily("sdrs_job_goodput_ratio", "Effective of the time that it had nodes", labels=["job"])
    recoveries = CounterMetricFamily("sdrs_job_recoveries", "Attempts that followed a failure", labels=["job"])
    for job, of_job in measured:
        for what, seconds in (
            ("effective", of_job.effective_seconds),
            ("lost", of_job.lost_seconds),
            ("loading", of_job.loading_seconds),
            ("queueing", of_job.queueing_seconds),
            ("recovering", of_job.recovery.total_seconds),
        ):
            times.add_metric([job.id, what], seconds)
        if of_job.ratio is not None:
            ratios.add_metric([job.id], of_job.ratio)
        recoveries.add_metric([job.id], sum(of_job.recoveries.values()))
    yield from (times, ratios, recoveries)


def serve_metrics(source: Collector, address: str) -> tuple[str, Callable[[], None]]:
    """The address taken, and how to stop."""
    registry = CollectorRegistry()
    for collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, source):
        registry.register(collector)
    host, _, port = address.rpartition(":")
    server, _ = start_http_server(int(port), host, registry)
    # Each connection has a thread: whoever says nothing is left after a while, and that is no error.
    server.RequestHandlerClass.timeout = _SILENCE_SECONDS  # type: ignore[attr-defined]
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return f"{host}:{server.server_port}", stop
