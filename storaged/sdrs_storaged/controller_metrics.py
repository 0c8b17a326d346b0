"""What Prometheus sees of the active controller: nodes, pools, groups, failover, repair, scrubs, backups."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource

from sdrs_core.cluster import NodeState
from sdrs_core.scrub import Depth
from sdrs_storaged.backup_metrics import backup_metrics
from sdrs_storaged.control.controller import Controller


class ControllerMetrics(MetricSource):
    """Counters begin again with each term; Prometheus knows what to make of that."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from self._nodes_and_pools()
        yield from self._groups()
        yield from self._scrubs()
        yield from self._repair()
        yield from backup_metrics(self._controller.backups)
        controller = self._controller
        totals = controller.repairer.totals
        gauges = {
            "sdrs_pending_saves": ("Saves that wait for ranks", len(controller.commits)),
            "sdrs_damaged_checkpoints": ("Checkpoints known to be damaged", len(controller.tally.damaged)),
            "sdrs_unavailable_checkpoints": ("Checkpoints with a blob in nobody's reach", totals.unavailable_count),
            "sdrs_degraded_blobs": ("Blobs with fewer live copies than their pool wants", totals.degraded_blobs),
            "sdrs_automatic_failover": ("1, or 0 while it is paused", int(not controller.members.paused_because())),
            "sdrs_term": ("The term of the active controller", controller.records.term.number),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        groups = controller.groups
        counters = {
            "sdrs_commits": ("Checkpoints committed", controller.tally.commits_total),
            "sdrs_dropped_fragments": ("Fragments collected", controller.collector.dropped_total),
            "sdrs_repaired_blobs": ("Copies made by repair", totals.done_blobs),
            "sdrs_repaired_bytes": ("Bytes copied by repair", totals.done_bytes),
            "sdrs_group_reforms": ("Groups re-formed by themselves", groups.reforms_total),
            "sdrs_failovers": ("Primaries replaced by themselves", groups.promotions_total),
            "sdrs_failover_seconds": (
                "Time from the first sign of trouble to the new primary, summed",
                groups.promotion_seconds_total,
            ),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(name, text, value=count)

    def _nodes_and_pools(self) -> Iterator[Metric]:
        members, tally = self._controller.members, self._controller.tally
        nodes = members.nodes()
        by_state = GaugeMetricFamily("sdrs_nodes", "Nodes by state", labels=["state"])
        for state in NodeState:
            by_state.add_metric([str(state)], sum(node.state is state for node in nodes))
        draining = sum(node.draining for node in nodes)
        yield GaugeMetricFamily("sdrs_draining_nodes", "Nodes whose data moves to others", value=draining)
        pools = GaugeMetricFamily("sdrs_pool_checkpoints", "Checkpoints and pending saves of a pool", labels=["pool"])
        used = GaugeMetricFamily("sdrs_pool_used_bytes", "Bytes of the checkpoints of a pool", labels=["pool"])
        quota = GaugeMetricFamily("sdrs_pool_quota_bytes", "Most bytes of checkpoints; 0: no limit", labels=["pool"])
        mirrored = GaugeMetricFamily(
            "sdrs_pool_mirrored_bytes", "Bytes of checkpoints that another pool has a whole mirror of", labels=["pool"]
        )
        for pool in members.pools():
            pools.add_metric([pool.name], tally.saves_by_pool[pool.name])
            used.add_metric([pool.name], tally.bytes_by_pool[pool.name])
            quota.add_metric([pool.name], pool.quota_bytes)
            mirrored.add_metric([pool.name], tally.mirrored_bytes[pool.name])
        yield from (by_state, pools, used, quota, mirrored)

    def _repair(self) -> Iterator[Metric]:
        progress = self._controller.repairer.progress()
        gauges = {
            "sdrs_repair_waiting_blobs": ("Blobs that wait for something to be made", progress.waiting_blobs),
            "sdrs_repair_waiting_bytes": ("Bytes that wait to be made", progress.waiting_bytes),
            "sdrs_repair_moving_blobs": ("Of the waiting ones, those that only move", progress.moving_blobs),
            "sdrs_repair_mirroring_blobs": ("Of the waiting ones, those to be mirrored", progress.mirroring_blobs),
            "sdrs_repair_failed_blobs": ("Blobs whose repair failed of late", progress.failed_blobs),
            "sdrs_repair_bytes_per_second": ("How fast repair is; 0 while it rests", progress.bytes_per_second),
            "sdrs_repair_remaining_seconds": ("Until all that waits is made; 0: not known", progress.remaining_seconds),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value)

    def _scrubs(self) -> Iterator[Metric]:
        record, totals = self._controller.scrubber.record, self._controller.scrubber.totals
        scrub = record.scrub if record and record.scrub and record.scrub.is_under_way else None
        under_way = GaugeMetricFamily("sdrs_scrub_under_way", "1 while one is under way", labels=["depth"])
        done = GaugeMetricFamily(
            "sdrs_scrub_done_unix_seconds", "When the last one went through; 0: never", labels=["depth"]
        )
        for depth in Depth:
            under_way.add_metric([str(depth)], int(scrub is not None and scrub.depth is depth))
        if record:
            done.add_metric([str(Depth.SHALLOW)], record.shallow_done_unix_ms / 1000)
            done.add_metric([str(Depth.DEEP)], record.deep_done_unix_ms / 1000)
        yield from (under_way, done)
        gauges = {
            "sdrs_scrub_checked_checkpoints": ("Checkpoints done", scrub.checked_checkpoints if scrub else 0),
            "sdrs_scrub_total_checkpoints": ("Checkpoints to be looked at", scrub.total_checkpoints if scrub else 0),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, f"{text}, of the scrub under way", value=value)
        counters = {
            "checked_fragments": "Fragments looked at",
            "checked_bytes": "Bytes read",
            "bad_fragments": "Fragments found bad",
            "missing_fragments": "Fragments found missing",
            "repaired_fragments": "Fragments made again after they were found bad or missing",
        }
        for name, text in counters.items():
            yield CounterMetricFamily(f"sdrs_scrub_{name}", f"{text}, by scrubs", value=totals[name])

    def _groups(self) -> Iterator[Metric]:
        labels = ["pool", "group"]
        epoch = GaugeMetricFamily("sdrs_controller_group_epoch", "Epoch of a group", labels=labels)
        role = GaugeMetricFamily("sdrs_controller_group_primary", "1 for the primary", labels=[*labels, "node"])
        count = GaugeMetricFamily("sdrs_controller_group_members", "Members of a group", labels=labels)
        lag = GaugeMetricFamily("sdrs_controller_group_lag", "Members that have not confirmed its epoch", labels=labels)
        degraded = GaugeMetricFamily(
            "sdrs_controller_group_degraded", "1 if it takes no saves, or not at full level", labels=labels
        )
        detector = self._controller.detector
        for group in self._controller.members.with_problems(self._controller.members.groups()):
            values = [group.pool, group.id]
            epoch.add_metric(values, group.epoch)
            role.add_metric([*values, group.primary], 1)
            count.add_metric(values, len(group.members))
            lag.add_metric(values, sum(detector.epoch_of(member, group.id) < group.epoch for member in group.members))
            degraded.add_metric(values, int(bool(group.problem)))
        yield from (epoch, role, count, lag, degraded)
