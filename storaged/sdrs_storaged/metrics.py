"""What Prometheus sees at /metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    CollectorRegistry,
    Counter,
    Gauge,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector as MetricSource

from sdrs_core.ids import NodeId
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.store.engine import FragmentStore

_SILENCE_SECONDS = 5.0


def new_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    for collector in (GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR):
        registry.register(collector)
    return registry


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> tuple[str, Callable[[], None]]:
    """The address taken, and how to stop."""
    server, _ = start_http_server(port, host, registry)
    # Each connection has a thread: whoever says nothing is left after a while, and that is no error (I10).
    server.RequestHandlerClass.timeout = _SILENCE_SECONDS  # type: ignore[attr-defined]
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return f"{host}:{server.server_port}", stop


class NodeMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.received_bytes = Counter(
            "sdrs_received_bytes", "Bytes of blobs made durable by this node", registry=registry
        )
        self.sent_bytes = Counter("sdrs_sent_bytes", "Bytes of blobs sent to readers by this node", registry=registry)
        self.relayed_bytes = Counter(
            "sdrs_relayed_bytes", "Bytes of blobs that this node sent to members of its groups", registry=registry
        )
        self.relays_failed = Counter(
            "sdrs_relays_failed", "Copies that a member did not take while their blob came in", registry=registry
        )
        self.pulled_bytes = Counter(
            "sdrs_pulled_bytes", "Bytes of fragments that this node fetched from others", registry=registry
        )
        self.uploaded_bytes = Counter(
            "sdrs_uploaded_bytes", "Bytes that this node sent to buckets, for backups", registry=registry
        )


class StagingMetrics:
    """What is not counted up is asked for when somebody looks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.saves_staged = Counter(
            "sdrs_staged_saves", "Shards that processes of this host sealed here", registry=registry
        )
        self.staged_bytes = Counter("sdrs_staged_bytes", "Bytes of these shards", registry=registry)
        self.saves_failed = Counter(
            "sdrs_staged_saves_failed", "Sealed shards that could not be brought in", registry=registry
        )
        self.taken_bytes = Gauge("sdrs_staging_taken_bytes", "Bytes of segments that are handed out", registry=registry)
        self.budget_bytes = Gauge("sdrs_staging_budget_bytes", "Bytes of segments at most", registry=registry)
        self.kept_bytes = Gauge(
            "sdrs_staging_kept_bytes", "Of these, what processes that are gone left to be read", registry=registry
        )
        self.waiting_count = Gauge("sdrs_staged_saves_waiting", "Sealed shards that are not in yet", registry=registry)
        self.oldest_waiting_seconds = Gauge(
            "sdrs_staged_oldest_waiting_seconds", "For how long the oldest of them is sealed", registry=registry
        )
        self.reads = Counter(
            "sdrs_staged_reads", "Ranges of blobs that readers got from staging instead of disks", registry=registry
        )


class GroupMetrics(MetricSource):
    """The groups that this node is a member of."""

    def __init__(self, groups: Groups, node_id: NodeId) -> None:
        self._groups = groups
        self._node_id = node_id

    def collect(self) -> list[GaugeMetricFamily]:
        epoch = GaugeMetricFamily("sdrs_group_epoch", "The epoch of a group of this node", labels=["group"])
        primary = GaugeMetricFamily(
            "sdrs_group_is_primary", "1 if this node is the primary of the group", labels=["group"]
        )
        for group in self._groups.all():
            epoch.add_metric([group.id], group.epoch)
            primary.add_metric([group.id], group.primary == self._node_id)
        return [epoch, primary]


class DiskMetrics(MetricSource):
    def __init__(self, store: FragmentStore, transfers: Callable[[], dict[str, int]]) -> None:
        self._store = store
        self._transfers = transfers

    def collect(self) -> list[GaugeMetricFamily]:
        labels = ["disk", "path"]
        capacity = GaugeMetricFamily("sdrs_disk_capacity_bytes", "Capacity of a disk", labels=labels)
        used = GaugeMetricFamily("sdrs_disk_used_bytes", "Space in use on a disk", labels=labels)
        count = GaugeMetricFamily("sdrs_disk_fragments", "Fragments on a disk", labels=labels)
        state = GaugeMetricFamily("sdrs_disk_state", "1 for the state that a disk is in", labels=[*labels, "state"])
        for disk in self._store.disks():
            values = [disk.id, disk.path]
            capacity.add_metric(values, disk.capacity_bytes)
            used.add_metric(values, disk.used_bytes)
            count.add_metric(values, disk.fragment_count)
            state.add_metric([*values, str(disk.state)], 1)
        transfers = GaugeMetricFamily("sdrs_transfers", "Transfers under way", labels=["kind"])
        for kind, number in self._transfers().items():
            transfers.add_metric([kind], number)
        return [capacity, used, count, state, transfers]
