"""How a cluster is: what ``sdrs status`` shows, and whether it counts as degraded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from sdrs.address import listens, parse_url
from sdrs.cli.amounts import format_bytes, format_time
from sdrs.cli.job_states import job_states
from sdrs.cli.records import (
    Record,
    checkpoint_record,
    event_record,
    group_record,
    node_record,
    pool_record,
    repair_record,
)
from sdrs_core.checkpoints import Save
from sdrs_core.cluster import DiskState, Group, Node, NodeState
from sdrs_core.pools import quota_warning

if TYPE_CHECKING:
    from sdrs import Cluster, ClusterInfo, Event, PoolInfo
    from sdrs.scrubs import ScrubState
    from sdrs.upkeep import NodeStatus

# Enough to see a failover as it happens: the loss, the promotion, the repair.
EVENTS_SHOWN = 5


class State(StrEnum):
    HEALTHY = "healthy"
    # Redundancy is lost, and being rebuilt; all else works.
    REPAIRING = "repairing"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class JobHealth:
    name: str
    attempt: int
    newest: Save | None


@dataclass(frozen=True, slots=True)
class Health:
    url: str
    info: ClusterInfo
    nodes: list[Node]
    pools: list[PoolInfo]
    jobs: list[JobHealth]
    damaged: list[Save]
    # Addresses of the URL at which no controller listens: the next takeover would find one less.
    silent_controllers: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    draining: list[NodeStatus] = field(default_factory=list)
    scrub: ScrubState | None = None
    # How many jobs a scheduler has in each state.
    job_states: dict[str, int] = field(default_factory=dict)

    @property
    def troubled_groups(self) -> list[Group]:
        return [group for group in self.groups if group.problem]

    @property
    def moved_groups(self) -> list[Group]:
        """Those whose primary is not where it belongs when all is well."""
        return [group for group in self.groups if group.home and group.primary != group.home[0]]


def collect(cluster: Cluster, url: str) -> Health:
    info = cluster.info()
    jobs, damaged = [], []
    for job in cluster.jobs():
        checkpoints = cluster.checkpoints(job.name)
        jobs.append(JobHealth(job.name, job.attempt, checkpoints.latest()))
        # Histories are long and damage is rare: they are read only when the controller knows of some.
        if info.damaged_count:
            damaged += [save for save in checkpoints.list(all_states=True) if save.damage and save.state.is_readable]
    nodes = cluster.nodes()
    jobs.sort(key=lambda job: job.newest.committed_unix_ms if job.newest is not None else 0, reverse=True)
    return Health(
        url,
        info,
        nodes,
        cluster.pools(),
        jobs,
        damaged,
        silent_controllers=[address for address in parse_url(url) if not listens(address)],
        groups=cluster.groups(),
        events=cluster.history(limit=EVENTS_SHOWN),
        draining=[cluster.node_status(node.id) for node in nodes if node.draining],
        scrub=cluster.scrub_status(),
        job_states=job_states(cluster),
    )


def warnings(health: Health) -> list[str]:
    """What an operator should know, in sentences: mostly the controller's own."""
    why = health.info.paused_because
    pause = [f"automatic failover is paused ({why}): `sdrs resume` when that is over"] if why else []
    return [*pause, *_leaving(health), *_quotas(health, full=False), *_troubles(health)]


def _leaving(health: Health) -> list[str]:
    """What an operator takes out of use works, and is no trouble."""
    nodes = [
        f"node {status.node.id} is being drained: {status.held_count} fragments, {format_bytes(status.held_bytes)} left"
        if status.held_count
        else f"node {status.node.id} is drained: `sdrs node remove {status.node.id}` takes it off"
        for status in health.draining
    ]
    disks = [
        f"disk {disk.id[:12]} of node {node.id} is being drained: `sdrs disk list` tells how far it is"
        for node in health.nodes
        for disk in node.disks
        if disk.state is DiskState.DRAINING
    ]
    return [*nodes, *disks]


def _quotas(health: Health, *, full: bool) -> list[str]:
    found = [
        quota_warning(info.pool, info.used_bytes)
        for info in health.pools
        if (info.used_bytes >= info.pool.quota_bytes) is full
    ]
    return [warning for warning in found if warning]


def _troubles(health: Health) -> list[str]:
    joined = [] if health.nodes else ["no node has joined: nothing can be saved"]
    silent = [f"the controller at {address} does not answer: start it again" for address in health.silent_controllers]
    return [*joined, *silent, *_quotas(health, full=True), *health.info.warnings]


def is_degraded(health: Health) -> bool:
    """Whether something does not work. Of all that is warned of, a pause and a disk that is nearly full still do."""
    harmless_count = sum(disk.state is DiskState.NEAR_FULL for node in health.nodes for disk in node.disks)
    return (
        len(_troubles(health)) > harmless_count
        or bool(health.damaged)
        or bool(health.troubled_groups)
        or health.info.degraded_group_count > 0
        or health.info.degraded_blob_count > 0
        or health.info.unavailable_count > 0
        or any(node.state is not NodeState.UP for node in health.nodes)
    )


def state_of(health: Health) -> State:
    """Degraded is what somebody has to look at; repairing is what mends itself."""
    if not is_degraded(health):
        return State.HEALTHY
    info = health.info
    # What moves may be moving into the form that its pool asks for.
    is_mending = info.degraded_blob_count > 0 and info.repair.rebuilding_blobs + info.repair.moving_blobs > 0
    is_worse = info.unavailable_count or health.damaged or health.troubled_groups or info.frozen_because
    return State.REPAIRING if is_mending and not is_worse else State.DEGRADED


def health_record(health: Health) -> Record:
    return {
        "cluster_id": health.info.id,
        "url": health.url,
        "version": health.info.version,
        "state": state_of(health).value,
        "controller_pid": health.info.controller_pid,
        "term": health.info.term,
        "nodes": [node_record(node) for node in health.nodes],
        "pools": [pool_record(pool) for pool in health.pools],
        "jobs": [_job_record(job) for job in health.jobs],
        "job_states": health.job_states,
        "pending_save_count": health.info.pending_save_count,
        "trash_count": health.info.trash_count,
        "groups": [group_record(group) for group in health.troubled_groups],
        "group_count": len(health.groups),
        "paused": health.info.paused_because or None,
        "repair": repair_record(health.info.repair),
        "degraded_blob_count": health.info.degraded_blob_count,
        "unavailable_count": health.info.unavailable_count,
        "store": health.info.store,
        "events": [event_record(event) for event in health.events],
        "damaged": [checkpoint_record(save) for save in health.damaged],
        "draining": [
            {"id": s.node.id, "held_count": s.held_count, "held_bytes": s.held_bytes} for s in health.draining
        ],
        "scrub": _scrub_record(health.scrub) if health.scrub is not None else None,
        "warnings": warnings(health),
    }


def _scrub_record(scrub: ScrubState) -> Record:
    return {
        "under_way": scrub.scrub is not None and scrub.scrub.is_under_way,
        "shallow_done": format_time(scrub.shallow_done_unix_ms),
        "deep_done": format_time(scrub.deep_done_unix_ms),
    }


def _job_record(job: JobHealth) -> Record:
    newest = job.newest
    return {
        "job": job.name,
        "attempt": job.attempt,
        "newest_step": newest.step if newest is not None else None,
        "newest_level": str(newest.level) if newest is not None else None,
        "newest_degraded": newest.degraded if newest is not None else None,
        "newest_size_bytes": newest.size_bytes if newest is not None else None,
        "newest_committed": format_time(newest.committed_unix_ms) if newest is not None else None,
    }
