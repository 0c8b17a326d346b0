"""What a cluster tells about itself, as immutable values; nodes, groups, pools and checkpoints are ``sdrs_core``'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.cluster import Group, Node, Pool
from sdrs_core.ids import BlobId, ClusterId, GroupId, JobName, NodeId, PoolName
from sdrs_proto.convert import group_from, node_from, pool_from, save_from
from sdrs_proto.v1 import cluster_pb2, control_pb2

# Told the bytes that are done and those in total, while something goes on.
Report = Callable[[int, int], None]
# Told the stage that is under way, what is done of it and what there is in total.
StageReport = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RepairProgress:
    """What is still to be copied, and what was since the controller became the active one."""

    waiting_blobs: int = 0
    waiting_bytes: int = 0
    done_blobs: int = 0
    done_bytes: int = 0
    failed_blobs: int = 0
    # With too little redundancy, while the node that has more is waited for.
    awaited_blobs: int = 0
    # Measured of late; 0 while nothing is made.
    bytes_per_second: int = 0
    # Until all that waits is made, at that rate; 0: not known.
    remaining_seconds: int = 0
    # Of the waiting ones: those that only move, to another node or into another form; and those that are mirrored.
    moving_blobs: int = 0
    mirroring_blobs: int = 0
    # Made since there was last nothing to do.
    wave_done_bytes: int = 0

    @property
    def rebuilding_blobs(self) -> int:
        """Those that wait because they have too little redundancy."""
        return max(0, self.waiting_blobs - self.moving_blobs - self.mirroring_blobs)


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
    # Why an operator paused automatic failover; empty: it is not paused.
    paused_because: str = ""
    degraded_group_count: int = 0
    # Blobs with fewer live copies than their pool asks for.
    degraded_blob_count: int = 0
    # Checkpoints of which some blob has no live copy left.
    unavailable_count: int = 0
    repair: RepairProgress = field(default_factory=RepairProgress)
    store: str = ""
    # Why nothing may be changed until an operator has acted; empty: it may.
    frozen_because: str = ""


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """``groups`` are given by ``pool(name)`` alone, not in lists."""

    pool: Pool
    layout: int
    checkpoint_count: int
    used_bytes: int
    groups: tuple[Group, ...] = ()
    # What another pool has a whole mirror of.
    mirrored_count: int = 0
    mirrored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the cluster's history. ``duration_ms`` is from the first sign of trouble to the change."""

    id: str
    unix_ms: int
    kind: str
    text: str
    pool: PoolName | None = None
    group_id: GroupId | None = None
    node_id: NodeId | None = None
    epoch: int = 0
    duration_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """``member_epochs`` are those that the members are known to have persisted, in the order of the members."""

    group: Group
    nodes: tuple[Node, ...]
    member_epochs: tuple[int, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class FailoverOutcome:
    """``lost`` are the checkpoints that were given up, in so many words."""

    group: Group
    lost: tuple[Checkpoint, ...]


@dataclass(frozen=True, slots=True)
class MetaImport:
    cluster_id: ClusterId
    incarnation: int
    record_count: int


@dataclass(frozen=True, slots=True)
class MetaRebuild:
    """``problems`` say in sentences what could not be brought back."""

    checkpoint_count: int
    problems: tuple[str, ...]


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
        paused_because=message.paused_because,
        degraded_group_count=message.degraded_group_count,
        degraded_blob_count=message.degraded_blob_count,
        unavailable_count=message.unavailable_count,
        repair=repair_progress_from(message.repair),
        store=message.store,
        frozen_because=message.frozen_because,
    )


def repair_progress_from(message: control_pb2.RepairProgress) -> RepairProgress:
    return RepairProgress(
        waiting_blobs=message.waiting_blobs,
        waiting_bytes=message.waiting_bytes,
        done_blobs=message.done_blobs,
        done_bytes=message.done_bytes,
        failed_blobs=message.failed_blobs,
        awaited_blobs=message.awaited_blobs,
        bytes_per_second=message.bytes_per_second,
        remaining_seconds=message.remaining_seconds,
        moving_blobs=message.moving_blobs,
        mirroring_blobs=message.mirroring_blobs,
        wave_done_bytes=message.wave_done_bytes,
    )


def pool_info_from(message: cluster_pb2.Pool, groups: list[cluster_pb2.Group] | None = None) -> PoolInfo:
    return PoolInfo(
        pool=pool_from(message),
        layout=message.layout,
        checkpoint_count=message.checkpoint_count,
        used_bytes=message.used_bytes,
        groups=tuple(group_from(group) for group in groups or ()),
        mirrored_count=message.mirrored_count,
        mirrored_bytes=message.mirrored_bytes,
    )


def problem_from(message: control_pb2.BlobProblem) -> Problem:
    return Problem(
        blob_id=BlobId(message.blob_id),
        rank=message.rank,
        node_id=NodeId(message.node_id),
        problem=message.problem,
        undecided=message.undecided,
    )


def event_from(message: control_pb2.ClusterEvent) -> Event:
    return Event(
        id=message.id,
        unix_ms=message.unix_ms,
        kind=message.kind,
        text=message.text,
        pool=PoolName(message.pool) if message.pool else None,
        group_id=GroupId(message.group_id) if message.group_id else None,
        node_id=NodeId(message.node_id) if message.node_id else None,
        epoch=message.epoch,
        duration_ms=message.duration_ms,
    )


def group_info_from(message: control_pb2.GetGroupResponse) -> GroupInfo:
    return GroupInfo(
        group=group_from(message.group),
        nodes=tuple(node_from(node) for node in message.nodes),
        member_epochs=tuple(message.member_epochs),
        events=tuple(event_from(event) for event in message.events),
    )


def failover_outcome_from(message: control_pb2.FailoverResponse) -> FailoverOutcome:
    return FailoverOutcome(group_from(message.group), tuple(save_from(save) for save in message.lost))
