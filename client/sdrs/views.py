"""What a cluster tells about itself, as immutable values; nodes, groups, pools and checkpoints are ``sdrs_core``'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.cluster import Group, Pool
from sdrs_core.ids import BlobId, ClusterId, JobName, NodeId
from sdrs_proto.convert import group_from, pool_from
from sdrs_proto.v1 import cluster_pb2, control_pb2

# Told the bytes that are done and those in total, while something goes on.
Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    id: ClusterId
    version: str
    incarnation: int
    term: int
    revision: int
    controller_pid: int
    pending_save_count: int
    trash_count: int
    damaged_count: int
    warnings: tuple[str, ...]
    save_ttl_seconds: int
    grace_seconds: int
    metrics_endpoint: str


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """``groups`` are given by ``pool(name)`` alone, not in lists."""

    pool: Pool
    layout: int
    checkpoint_count: int
    used_bytes: int
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True, slots=True)
class JobInfo:
    name: JobName
    attempt: int
    attempt_owner: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one blob on one node; ``undecided``: the node did not answer, the bytes may be fine."""

    blob_id: BlobId
    rank: int
    node_id: NodeId
    problem: str
    undecided: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """True if every byte of the checkpoint was found and matched."""

    ok: bool
    checkpoint: Checkpoint
    checked_bytes: int
    checked_blobs: int
    problems: tuple[Problem, ...]

    def __bool__(self) -> bool:
        return self.ok


def cluster_info_from(message: control_pb2.GetClusterResponse) -> ClusterInfo:
    return ClusterInfo(
        id=ClusterId(message.cluster_id),
        version=message.version,
        incarnation=message.incarnation,
        term=message.term,
        revision=message.revision,
        controller_pid=message.controller_pid,
        pending_save_count=message.pending_save_count,
        trash_count=message.trash_count,
        damaged_count=message.damaged_count,
        warnings=tuple(message.warnings),
        save_ttl_seconds=message.save_ttl_seconds,
        grace_seconds=message.grace_seconds,
        metrics_endpoint=message.metrics_endpoint,
    )


def pool_info_from(message: cluster_pb2.Pool, groups: list[cluster_pb2.Group] | None = None) -> PoolInfo:
    return PoolInfo(
        pool=pool_from(message),
        layout=message.layout,
        checkpoint_count=message.checkpoint_count,
        used_bytes=message.used_bytes,
        groups=tuple(group_from(group) for group in groups or ()),
    )


def problem_from(message: control_pb2.BlobProblem) -> Problem:
    return Problem(
        blob_id=BlobId(message.blob_id),
        rank=message.rank,
        node_id=NodeId(message.node_id),
        problem=message.problem,
        undecided=message.undecided,
    )
