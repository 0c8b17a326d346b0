"""What Prometheus sees of the active controller: nodes, pools, groups, failover, repair."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricSource

from sdrs_core.cluster import NodeState
from sdrs_storaged.control.controller import Controller


class ControllerMetrics(MetricSource):
    """Counters begin again with each term; Prometheus knows what to make of that."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from self._nodes_and_pools()
        yield from self._groups()
        controller = self._controller
        totals = controller.repairer.totals
        gauges = {
            "sdrs_pending_saves": ("Saves that wait for ranks", len(controller.commits)),
            "sdrs_damaged_checkpoints": ("Checkpoints known to be damaged", len(controller.tally.damaged)),
            "sdrs_unavailable_checkpoints": ("Checkpoints with a blob in nobody's reach", totals.unavailable_count),
            "sdrs_degraded_blobs": ("Blobs with fewer live copies than their pool wants", totals.degraded_blobs),
            "sdrs_repair_waiting_blobs": ("Blobs that wait for a copy", totals.waiting_blobs),
            "sdrs_repair_waiting_bytes": ("Bytes that wait to be copied", totals.waiting_bytes),
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
        pools = GaugeMetricFamily("sdrs_pool_checkpoints", "Checkpoints and pending saves of a pool", labels=["pool"])
        used = GaugeMetricFamily("sdrs_pool_used_bytes", "Bytes of the checkpoints of a pool", labels=["pool"])
        for pool in members.pools():
            pools.add_metric([pool.name], tally.saves_by_pool[pool.name])
            used.add_metric([pool.name], tally.bytes_by_pool[pool.name])
        yield from (by_state, pools, used)

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
