"""What Prometheus sees of backups: how old the newest ones are, what fails, what the run under way does."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sdrs_storaged.control.backup.assembly import Backups


def backup_metrics(backups: Backups) -> Iterator[Metric]:
    yield from _targets(backups)
    yield from _jobs(backups)
    yield from _runs(backups)


def _targets(backups: Backups) -> Iterator[Metric]:
    labels = ["target"]
    checkpoints = GaugeMetricFamily("sdrs_backup_checkpoints", "Backed-up checkpoints", labels=labels)
    objects = GaugeMetricFamily("sdrs_backup_objects", "Objects with content in the bucket", labels=labels)
    stored = GaugeMetricFamily("sdrs_backup_stored_bytes", "Bytes of content in the bucket", labels=labels)
    damaged = GaugeMetricFamily("sdrs_backup_damaged", "Backups that a verification found damaged", labels=labels)
    failing = GaugeMetricFamily("sdrs_backup_failing", "1 if the last run with the target failed", labels=labels)
    for record in backups.targets.all():
        values, standing = [record.target.name], backups.standing.of(record.target.name)
        checkpoints.add_metric(values, standing.checkpoints)
        objects.add_metric(values, standing.objects)
        stored.add_metric(values, standing.stored_bytes)
        damaged.add_metric(values, standing.damaged_count)
        failing.add_metric(values, int(bool(record.failure)))
    yield from (checkpoints, objects, stored, damaged, failing)


def _jobs(backups: Backups) -> Iterator[Metric]:
    labels = ["target", "pool", "job"]
    newest = GaugeMetricFamily(
        "sdrs_backup_newest_unix_seconds",
        "When the newest backed-up checkpoint of a job was committed: what came since would be lost with the cluster",
        labels=labels,
    )
    for record in backups.targets.all():
        for (pool, job), unix_ms in list(backups.standing.of(record.target.name).newest_by_job.items()):
            newest.add_metric([record.target.name, pool, job], unix_ms / 1000)
    behind = GaugeMetricFamily("sdrs_backup_behind", "1 for a policy that is behind", labels=labels)
    for known in backups.policies.all():
        policy = known.policy
        behind.add_metric([policy.target, policy.pool, policy.job], int(bool(backups.policies.behind(known))))
    yield from (newest, behind)


def _runs(backups: Backups) -> Iterator[Metric]:
    labels = ["target", "kind"]
    done = GaugeMetricFamily("sdrs_backup_run_done_bytes", "Bytes that the run under way has dealt with", labels=labels)
    total = GaugeMetricFamily("sdrs_backup_run_total_bytes", "Bytes that the run under way is about", labels=labels)
    for run in backups.runs.all():
        if run.is_under_way:
            done.add_metric([run.target, str(run.kind)], run.done_bytes)
            total.add_metric([run.target, str(run.kind)], run.total_bytes)
    ended = CounterMetricFamily("sdrs_backup_runs", "Runs that ended", labels=[*labels, "outcome"])
    for (target, kind, outcome), count in list(backups.runs.ended.items()):
        ended.add_metric([target, str(kind), outcome], count)
    moved = CounterMetricFamily("sdrs_backup_moved_bytes", "Bytes that went to a bucket or came from it", labels=labels)
    for (target, kind), moved_bytes in list(backups.runs.moved_bytes.items()):
        moved.add_metric([target, str(kind)], moved_bytes)
    yield from (done, total, ended, moved)
