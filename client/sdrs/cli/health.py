"""How a cluster is: what ``sdrs status`` shows, and whether it counts as degraded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdrs.cli.amounts import format_time
from sdrs.cli.records import Record, checkpoint_record, node_record, pool_record
from sdrs_core.checkpoints import Save
from sdrs_core.cluster import DiskState, Node, NodeState, Pool
from sdrs_core.errors import NotFoundError

if TYPE_CHECKING:
    from sdrs import Cluster, ClusterInfo


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
    pools: list[Pool]
    jobs: list[JobHealth]
    damaged: list[Save]


def collect(cluster: Cluster, url: str) -> Health:
    info = cluster.info()
    jobs, damaged = [], []
    for job in cluster.jobs():
        checkpoints = cluster.checkpoints(job.name)
        try:
            newest = checkpoints.latest()
        except NotFoundError:
            newest = None
        jobs.append(JobHealth(job.name, job.attempt, newest))
        # Histories are long and damage is rare: they are read only when the controller knows of some.
        if info.damaged_count:
            damaged += [save for save in checkpoints.list(all_states=True) if save.damage and save.state.is_readable]
    jobs.sort(key=lambda job: job.newest.committed_unix_ms if job.newest is not None else 0, reverse=True)
    return Health(url, info, cluster.nodes(), cluster.pools(), jobs, damaged)


def problems(health: Health) -> list[str]:
    """What makes the cluster degraded, in words; empty when it is healthy."""
    found = [f"node {node.id} is down" for node in health.nodes if node.state is not NodeState.UP]
    if not health.nodes:
        found.append("no node has joined: nothing can be saved")
    for node in health.nodes:
        for disk in node.disks:
            if disk.state is DiskState.FAILED:
                found.append(f"disk {disk.path} of {node.id} has failed: {disk.detail or 'see its log'}")
            elif disk.state is DiskState.FULL:
                found.append(f"disk {disk.path} of {node.id} is full: it takes no writes until space is freed")
    found += [f"{save.title} is damaged: {save.damage}" for save in health.damaged]
    return found


def warnings(health: Health) -> list[str]:
    """What works, and should be looked at before it does not."""
    near_full = [
        f"disk {disk.path} of {node.id} is nearly full"
        for node in health.nodes
        for disk in node.disks
        if disk.state is DiskState.NEAR_FULL
    ]
    return [*near_full, *health.info.warnings]


def health_record(health: Health) -> Record:
    found = problems(health)
    return {
        "cluster_id": health.info.cluster_id,
        "url": health.url,
        "version": health.info.version,
        "state": "degraded" if found else "healthy",
        "controller_pid": health.info.controller_pid,
        "term": health.info.term,
        "nodes": [node_record(node) for node in health.nodes],
        "pools": [pool_record(pool) for pool in health.pools],
        "jobs": [_job_record(job) for job in health.jobs],
        "pending_save_count": health.info.pending_save_count,
        "trash_count": health.info.trash_count,
        "damaged": [checkpoint_record(save) for save in health.damaged],
        "problems": found,
        "warnings": warnings(health),
    }


def _job_record(job: JobHealth) -> Record:
    newest = job.newest
    return {
        "job": job.name,
        "attempt": job.attempt,
        "newest_step": newest.step if newest is not None else None,
        "newest_level": str(newest.level) if newest is not None else None,
        "newest_size_bytes": newest.size_bytes if newest is not None else None,
        "newest_committed": format_time(newest.committed_unix_ms) if newest is not None else None,
    }
