"""Messages to core values and back: generated messages stop at the edges."""

from __future__ import annotations

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Blob, ContentKind, Holder, Home, Reference, Save, SaveState, Shard, Verdict
from sdrs_core.cluster import (
    Authority,
    Disk,
    DiskState,
    Endpoints,
    Group,
    Node,
    NodeState,
    Pool,
    ReadPolicy,
    Retention,
    Staging,
)
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import BlobId, ClusterId, DiskId, GroupId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.snapshots import SnapshotId
from sdrs_proto.v1 import checkpoint_pb2, cluster_pb2, membership_pb2, storage_pb2

_SAVE_STATES = {
    SaveState.PENDING: checkpoint_pb2.SAVE_STATE_PENDING,
    SaveState.COMMITTED: checkpoint_pb2.SAVE_STATE_COMMITTED,
    SaveState.SET_ASIDE: checkpoint_pb2.SAVE_STATE_SET_ASIDE,
    SaveState.ABORTED: checkpoint_pb2.SAVE_STATE_ABORTED,
    SaveState.DELETED: checkpoint_pb2.SAVE_STATE_DELETED,
    SaveState.CONDEMNED: checkpoint_pb2.SAVE_STATE_CONDEMNED,
    SaveState.RETIRED: checkpoint_pb2.SAVE_STATE_RETIRED,
}
_SAVE_STATES_BACK = {number: state for state, number in _SAVE_STATES.items()}
_LEVELS = {
    Level.NONE: cluster_pb2.LEVEL_UNSPECIFIED,
    Level.L1: cluster_pb2.LEVEL_L1,
    Level.L2: cluster_pb2.LEVEL_L2,
    Level.L3: cluster_pb2.LEVEL_L3,
}
_KINDS = {ContentKind.STATE: checkpoint_pb2.CONTENT_KIND_STATE, ContentKind.FILES: checkpoint_pb2.CONTENT_KIND_FILES}
_KINDS_BACK = {number: kind for kind, number in _KINDS.items()}
_DISK_STATES = {
    DiskState.OK: cluster_pb2.DISK_STATE_OK,
    DiskState.NEAR_FULL: cluster_pb2.DISK_STATE_NEAR_FULL,
    DiskState.FULL: cluster_pb2.DISK_STATE_FULL,
    DiskState.FAILED: cluster_pb2.DISK_STATE_FAILED,
    DiskState.DRAINING: cluster_pb2.DISK_STATE_DRAINING,
}
_DISK_STATES_BACK = {number: state for state, number in _DISK_STATES.items()}
_NODE_STATES = {NodeState.UP: cluster_pb2.NODE_STATE_UP, NodeState.DOWN: cluster_pb2.NODE_STATE_DOWN}
_NODE_STATES_BACK = {number: state for state, number in _NODE_STATES.items()}
_READ_POLICIES = {
    ReadPolicy.ROUND_ROBIN: cluster_pb2.READ_POLICY_ROUND_ROBIN,
    ReadPolicy.LEAST_RESPONSE_TIME: cluster_pb2.READ_POLICY_LEAST_RESPONSE_TIME,
    ReadPolicy.WEIGHTED_RESPONSE_TIME: cluster_pb2.READ_POLICY_WEIGHTED_RESPONSE_TIME,
}
_READ_POLICIES_BACK = {number: policy for policy, number in _READ_POLICIES.items()}
_VERDICTS = {
    Verdict.OK: storage_pb2.FRAGMENT_VERDICT_OK,
    Verdict.MISSING: storage_pb2.FRAGMENT_VERDICT_MISSING,
    Verdict.CORRUPT: storage_pb2.FRAGMENT_VERDICT_CORRUPT,
}
_VERDICTS_BACK = {number: verdict for verdict, number in _VERDICTS.items()}


def save_state_to(state: SaveState) -> checkpoint_pb2.SaveState:
    return _SAVE_STATES[state]


def save_state_from(number: checkpoint_pb2.SaveState) -> SaveState:
    return _SAVE_STATES_BACK[number]


def kind_to(kind: ContentKind) -> checkpoint_pb2.ContentKind:
    return _KINDS[kind]


def kind_from(number: checkpoint_pb2.ContentKind) -> ContentKind:
    if number not in _KINDS_BACK:
        raise InvalidArgumentError(f"content kind {number} is unknown: state or files is expected")
    return _KINDS_BACK[number]


def verdict_to(verdict: Verdict) -> storage_pb2.FragmentVerdict:
    return _VERDICTS[verdict]


def verdict_from(number: storage_pb2.FragmentVerdict) -> Verdict | None:
    """None: there is no verdict yet."""
    return _VERDICTS_BACK.get(number)


def level_to(level: Level) -> cluster_pb2.Level:
    return _LEVELS[level]


def level_from(number: int) -> Level:
    if number not in tuple(Level):
        raise InvalidArgumentError(f"level {number} is unknown: L1, L2 or L3 is expected")
    return Level(number)


def read_policy_to(policy: ReadPolicy) -> cluster_pb2.ReadPolicy:
    return _READ_POLICIES[policy]


def read_policy_from(number: cluster_pb2.ReadPolicy) -> ReadPolicy:
    return _READ_POLICIES_BACK.get(number, ReadPolicy.ROUND_ROBIN)


def attempt_to(attempt: Attempt) -> checkpoint_pb2.Attempt:
    return checkpoint_pb2.Attempt(run=attempt.run, ordinal=attempt.ordinal, owner=attempt.owner)


def attempt_from(message: checkpoint_pb2.Attempt) -> Attempt:
    if not 1 <= len(message.run) <= 256:
        raise InvalidArgumentError(
            "an attempt needs a run name of 1 to 256 characters: set SDRS_ATTEMPT or pass attempt="
        )
    return Attempt(message.run, message.ordinal, message.owner[:256])


def authority_to(authority: Authority) -> membership_pb2.Authority:
    return membership_pb2.Authority(
        incarnation=authority.incarnation,
        term=authority.term,
        revision=authority.revision,
        term_id=authority.term_id,
    )


def authority_from(message: membership_pb2.Authority) -> Authority:
    return Authority(message.incarnation, message.term, message.revision, message.term_id)


def disk_to(disk: Disk) -> cluster_pb2.Disk:
    return cluster_pb2.Disk(
        id=disk.id,
        path=disk.path,
        state=_DISK_STATES[disk.state],
        capacity_bytes=disk.capacity_bytes,
        used_bytes=disk.used_bytes,
        fragment_count=disk.fragment_count,
        detail=disk.detail,
    )


def disk_from(message: cluster_pb2.Disk) -> Disk:
    return Disk(
        id=DiskId(message.id),
        path=message.path,
        state=_DISK_STATES_BACK.get(message.state, DiskState.FAILED),
        capacity_bytes=message.capacity_bytes,
        used_bytes=message.used_bytes,
        fragment_count=message.fragment_count,
        detail=message.detail,
    )


def node_to(node: Node) -> cluster_pb2.Node:
    return cluster_pb2.Node(
        id=node.id,
        endpoints=cluster_pb2.Endpoints(
            grpc=node.endpoints.grpc,
            data=node.endpoints.data,
            unix=node.endpoints.unix,
            metrics=node.endpoints.metrics,
            host=node.endpoints.host,
        ),
        domain=node.domain,
        state=_NODE_STATES[node.state],
        pid=node.pid,
        version=node.version,
        disks=[disk_to(disk) for disk in node.disks],
        last_seen_unix_ms=node.last_seen_unix_ms,
        cordoned=node.cordoned,
        cordoned_because=node.cordoned_because,
        flapping=node.flapping,
        draining=node.draining,
        staging=staging_to(node.staging),
    )


def node_from(message: cluster_pb2.Node) -> Node:
    ends = message.endpoints
    return Node(
        id=NodeId(message.id),
        endpoints=Endpoints(grpc=ends.grpc, data=ends.data, unix=ends.unix, metrics=ends.metrics, host=ends.host),
        domain=message.domain,
        pid=message.pid,
        version=message.version,
        state=_NODE_STATES_BACK.get(message.state, NodeState.DOWN),
        disks=tuple(disk_from(disk) for disk in message.disks),
        last_seen_unix_ms=message.last_seen_unix_ms,
        cordoned=message.cordoned,
        cordoned_because=message.cordoned_because,
        flapping=message.flapping,
        draining=message.draining,
        staging=staging_from(message.staging) if message.HasField("staging") else None,
    )


def staging_to(staging: Staging | None) -> cluster_pb2.Staging | None:
    if staging is None:
        return None
    return cluster_pb2.Staging(
        budget_bytes=staging.budget_bytes,
        taken_bytes=staging.taken_bytes,
        kept_bytes=staging.kept_bytes,
        waiting_count=staging.waiting_count,
        oldest_waiting_ms=staging.oldest_waiting_ms,
    )


def staging_from(message: cluster_pb2.Staging) -> Staging:
    return Staging(
        message.budget_bytes,
        message.taken_bytes,
        message.kept_bytes,
        message.waiting_count,
        message.oldest_waiting_ms,
    )


def pool_to(
    pool: Pool,
    *,
    layout: int = 0,
    checkpoint_count: int = 0,
    used_bytes: int = 0,
    mirrored_count: int = 0,
    mirrored_bytes: int = 0,
) -> cluster_pb2.Pool:
    return cluster_pb2.Pool(
        name=pool.name,
        level=level_to(pool.level),
        mirrors=pool.mirrors,
        data_fragments=pool.data_fragments,
        parity_fragments=pool.parity_fragments,
        retention=cluster_pb2.Retention(
            keep_last=pool.retention.keep_last,
            keep_every_steps=pool.retention.keep_every_steps,
            max_age_seconds=pool.retention.max_age_seconds,
        ),
        allow_degraded=pool.allow_degraded,
        read_policy=read_policy_to(pool.read_policy),
        layout=layout,
        checkpoint_count=checkpoint_count,
        used_bytes=used_bytes,
        mirror_pool=pool.mirror_pool,
        mirror_ratio=pool.mirror_ratio,
        node_ids=pool.node_ids,
        quota_bytes=pool.quota_bytes,
        mirrored_count=mirrored_count,
        mirrored_bytes=mirrored_bytes,
    )


def pool_from(message: cluster_pb2.Pool) -> Pool:
    kept = message.retention
    return Pool(
        name=PoolName(message.name),
        level=level_from(message.level),
        mirrors=message.mirrors or 1,
        data_fragments=message.data_fragments or 1,
        parity_fragments=message.parity_fragments,
        retention=Retention(kept.keep_last, kept.keep_every_steps, kept.max_age_seconds),
        allow_degraded=message.allow_degraded,
        read_policy=read_policy_from(message.read_policy),
        mirror_pool=message.mirror_pool,
        mirror_ratio=message.mirror_ratio,
        node_ids=tuple(NodeId(node_id) for node_id in message.node_ids),
        quota_bytes=message.quota_bytes,
    )


def group_to(group: Group) -> cluster_pb2.Group:
    return cluster_pb2.Group(
        id=group.id,
        pool=group.pool,
        epoch=group.epoch,
        members=list(group.members),
        primary=group.primary,
        home=list(group.home),
        problem=group.problem,
    )


def group_from(message: cluster_pb2.Group) -> Group:
    return Group(
        id=GroupId(message.id),
        pool=PoolName(message.pool),
        epoch=message.epoch,
        members=tuple(NodeId(member) for member in message.members),
        primary=NodeId(message.primary),
        home=tuple(NodeId(member) for member in message.home),
        problem=message.problem,
    )


def blob_to(blob: Blob) -> checkpoint_pb2.Blob:
    holders = [
        checkpoint_pb2.Holder(
            node_id=holder.node_id,
            disk_id=holder.disk_id,
            fragment_index=holder.fragment_index,
            fragment_hash=holder.fragment_hash,
            dropping=holder.dropping,
        )
        for holder in blob.holders
    ]
    return checkpoint_pb2.Blob(
        id=blob.id,
        ordinal=blob.ordinal,
        size_bytes=blob.size_bytes,
        hash=blob.hash,
        code=blob.code,
        holders=holders,
        blake3=blob.blake3,
        packing=blob.packing,
    )


def blob_from(message: checkpoint_pb2.Blob) -> Blob:
    holders = tuple(
        Holder(NodeId(h.node_id), DiskId(h.disk_id), h.fragment_index, h.fragment_hash, h.dropping)
        for h in message.holders
    )
    return Blob(
        id=BlobId(message.id),
        ordinal=message.ordinal,
        size_bytes=message.size_bytes,
        hash=message.hash,
        code=message.code,
        holders=holders,
        blake3=message.blake3,
        packing=message.packing,
    )


def reference_to(reference: Reference) -> checkpoint_pb2.BlobReference:
    return checkpoint_pb2.BlobReference(
        ordinal=reference.ordinal,
        size_bytes=reference.size_bytes,
        hash=reference.hash,
        blake3=reference.blake3,
        home_save_id=reference.home.save_id,
        home_step=reference.home.step,
        home_ordinal=reference.home.ordinal,
    )


def reference_from(message: checkpoint_pb2.BlobReference) -> Reference:
    return Reference(
        ordinal=message.ordinal,
        size_bytes=message.size_bytes,
        hash=message.hash,
        blake3=message.blake3,
        home=Home(SaveId(message.home_save_id), message.home_step, message.home_ordinal),
    )


def shard_to(shard: Shard) -> checkpoint_pb2.Shard:
    return checkpoint_pb2.Shard(
        save_id=shard.save_id,
        rank=shard.rank,
        kind=kind_to(shard.kind),
        size_bytes=shard.size_bytes,
        content_hash=shard.content_hash,
        blobs=[blob_to(blob) for blob in shard.blobs],
        mirrors=[blob_to(blob) for blob in shard.mirrors],
        references=[reference_to(reference) for reference in shard.references],
    )


def shard_from(message: checkpoint_pb2.Shard) -> Shard:
    return Shard(
        save_id=SaveId(message.save_id),
        rank=message.rank,
        kind=kind_from(message.kind),
        size_bytes=message.size_bytes,
        content_hash=message.content_hash,
        blobs=tuple(blob_from(blob) for blob in message.blobs),
        mirrors=tuple(blob_from(blob) for blob in message.mirrors),
        references=tuple(reference_from(reference) for reference in message.references),
    )


def save_to(save: Save) -> checkpoint_pb2.Checkpoint:
    return checkpoint_pb2.Checkpoint(
        save_id=save.save_id,
        job=save.job,
        step=save.step,
        attempt=save.attempt,
        world_size=save.world_size,
        pool=save.pool,
        kind=kind_to(save.kind),
        state=save_state_to(save.state),
        level=level_to(save.level),
        size_bytes=save.size_bytes,
        created_unix_ms=save.created_unix_ms,
        committed_unix_ms=save.committed_unix_ms,
        held=save.held,
        damage=save.damage,
        note=save.note,
        ended_unix_ms=save.ended_unix_ms,
        degraded=save.degraded,
        mirror_pool=save.mirror_pool,
        failed_restores=save.failed_restores,
        restore_failure=save.restore_failure,
        referenced_bytes=save.referenced_bytes,
        evicted=save.evicted,
        origin=save.origin,
        spared_bytes=save.spared_bytes,
    )


def save_from(message: checkpoint_pb2.Checkpoint) -> Save:
    """Without what never leaves the controller: its layout, what it was before it was deleted, who refers to it."""
    return Save(
        save_id=SaveId(message.save_id),
        job=JobName(message.job),
        step=message.step,
        attempt=message.attempt,
        world_size=message.world_size,
        pool=PoolName(message.pool),
        kind=kind_from(message.kind),
        state=save_state_from(message.state),
        level=level_from(message.level),
        size_bytes=message.size_bytes,
        created_unix_ms=message.created_unix_ms,
        committed_unix_ms=message.committed_unix_ms,
        held=message.held,
        damage=message.damage,
        note=message.note,
        ended_unix_ms=message.ended_unix_ms,
        degraded=message.degraded,
        mirror_pool=message.mirror_pool,
        failed_restores=tuple(message.failed_restores),
        restore_failure=message.restore_failure,
        referenced_bytes=message.referenced_bytes,
        evicted=message.evicted,
        origin=message.origin,
        spared_bytes=message.spared_bytes,
    )


def snapshot_id_to(snapshot: SnapshotId) -> storage_pb2.SnapshotId:
    return storage_pb2.SnapshotId(
        cluster_id=snapshot.cluster_id,
        incarnation=snapshot.incarnation,
        term=snapshot.term,
        revision=snapshot.revision,
        created_unix_ms=snapshot.created_unix_ms,
        size_bytes=snapshot.size_bytes,
        hash=snapshot.hash,
    )


def snapshot_id_from(message: storage_pb2.SnapshotId) -> SnapshotId:
    return SnapshotId(
        cluster_id=ClusterId(message.cluster_id),
        incarnation=message.incarnation,
        term=message.term,
        revision=message.revision,
        created_unix_ms=message.created_unix_ms,
        size_bytes=message.size_bytes,
        hash=message.hash,
    )
