"""What programs read: the cluster's values as JSON objects. Names here are a promise; add, never rename."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sdrs.cli.amounts import format_time
from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.cluster import Disk, Group, Node

if TYPE_CHECKING:
    from sdrs import Event, PoolInfo
    from sdrs.upkeep import NodeDisk
    from sdrs.views import RepairProgress

Record = dict[str, Any]


def node_record(node: Node) -> Record:
    return {
        "id": node.id,
        "address": node.endpoints.grpc,
        "state": node.state.value,
        "domain": node.domain,
        "pid": node.pid,
        "host": node.endpoints.host,
        "data_address": node.endpoints.data,
        "metrics_address": node.endpoints.metrics,
        "version": node.version,
        "last_seen": format_time(node.last_seen_unix_ms),
        "cordoned": node.cordoned,
        "cordoned_because": node.cordoned_because,
        "flapping": node.flapping,
        "draining": node.draining,
        "disks": [disk_record(disk) for disk in node.disks],
        "staging": asdict(node.staging) if node.staging is not None else None,
    }


def disk_record(disk: Disk) -> Record:
    return {
        "id": disk.id,
        "path": disk.path,
        "state": disk.state.value,
        "capacity_bytes": disk.capacity_bytes,
        "used_bytes": disk.used_bytes,
        "fragment_count": disk.fragment_count,
        "detail": disk.detail,
    }


def node_disk_record(found: NodeDisk) -> Record:
    return disk_record(found.disk) | {
        "node": found.node_id,
        "held_count": found.held_count,
        "held_bytes": found.held_bytes,
        "absent": found.is_absent,
    }


def group_record(group: Group) -> Record:
    return {
        "id": group.id,
        "pool": group.pool,
        "epoch": group.epoch,
        "primary": group.primary,
        "members": list(group.members),
        "home": list(group.home),
        "problem": group.problem,
    }


def event_record(event: Event) -> Record:
    return {
        "time": format_time(event.unix_ms),
        "kind": event.kind,
        "group": event.group_id,
        "node": event.node_id,
        "pool": event.pool,
        "epoch": event.epoch,
        "duration_ms": event.duration_ms,
        "text": event.text,
    }


def repair_record(repair: RepairProgress) -> Record:
    return {
        "waiting_blobs": repair.waiting_blobs,
        "waiting_bytes": repair.waiting_bytes,
        "done_blobs": repair.done_blobs,
        "done_bytes": repair.done_bytes,
        "failed_blobs": repair.failed_blobs,
        "awaited_blobs": repair.awaited_blobs,
        "bytes_per_second": repair.bytes_per_second,
        "remaining_seconds": repair.remaining_seconds,
        "moving_blobs": repair.moving_blobs,
        "mirroring_blobs": repair.mirroring_blobs,
        "wave_done_bytes": repair.wave_done_bytes,
    }


def pool_record(info: PoolInfo) -> Record:
    pool = info.pool
    return {
        "name": pool.name,
        "level": str(pool.level),
        "mirrors": pool.mirrors,
        "data_fragments": pool.data_fragments,
        "parity_fragments": pool.parity_fragments,
        "ec": str(pool.code) if pool.code is not None else None,
        "keep_last": pool.retention.keep_last,
        "keep_every_steps": pool.retention.keep_every_steps,
        "max_age_seconds": pool.retention.max_age_seconds,
        "allow_degraded": pool.allow_degraded,
        "read_policy": pool.read_policy.value,
        "checkpoint_count": info.checkpoint_count,
        "used_bytes": info.used_bytes,
        "mirror_pool": pool.mirror_pool or None,
        "mirror_ratio": pool.mirror_ratio,
        "mirrored_count": info.mirrored_count,
        "mirrored_bytes": info.mirrored_bytes,
        # Empty: whatever nodes there are.
        "nodes": list(pool.node_ids),
        "quota_bytes": pool.quota_bytes,
    }


def checkpoint_record(save: Save) -> Record:
    return {
        "job": save.job,
        "step": save.step,
        "state": save.state.value,
        "level": str(save.level),
        "size_bytes": save.size_bytes,
        "stored_bytes": save.stored_bytes,
        "attempt": save.attempt,
        "world_size": save.world_size,
        "held": save.held,
        "degraded": save.degraded,
        "mirror_pool": save.mirror_pool or None,
        # The backup that alone has it; and whose it was, if it came out of one.
        "evicted": save.evicted or None,
        "origin": save.origin or None,
        "damage": save.damage,
        "failed_restores": len(save.failed_restores),
        "restore_failure": save.restore_failure,
        "created": format_time(save.created_unix_ms),
        "committed": format_time(save.committed_unix_ms),
        "ended": format_time(save.ended_unix_ms),
        "pool": save.pool,
        "kind": save.kind.value,
        "note": save.note,
        "save_id": save.save_id,
    }


def shard_record(shard: Shard) -> Record:
    referred = {reference.ordinal for reference in shard.references}
    return {
        "rank": shard.rank,
        "kind": shard.kind.value,
        "size_bytes": shard.size_bytes,
        "content_hash": shard.content_hash,
        "nodes": shard_nodes([shard]),
        "stored_bytes": sum(blob.size_bytes for blob in shard.blobs if blob.ordinal not in referred),
        "blobs": [_blob_record(blob) for blob in shard.blobs],
        # Which of the blobs are stored by an earlier checkpoint.
        "references": [
            {"ordinal": reference.ordinal, "step": reference.home.step, "save_id": reference.home.save_id}
            for reference in shard.references
        ],
        "mirrors": [_blob_record(blob) for blob in shard.mirrors],
    }


def _blob_record(blob: Blob) -> Record:
    return {
        "id": blob.id,
        "ordinal": blob.ordinal,
        "size_bytes": blob.size_bytes,
        "hash": blob.hash,
        "code": blob.code,
        "blake3": blob.blake3 or None,
        # Of what was saved, if that is stored compressed.
        "compression": blob.packing.partition(":")[0] or None,
        "raw_bytes": blob.raw_bytes,
        "holders": [
            {"node": holder.node_id, "disk": holder.disk_id, "fragment_index": holder.fragment_index}
            for holder in blob.holders
            if not holder.dropping
        ],
    }


def shard_nodes(shards: Iterable[Shard]) -> list[str]:
    """The nodes that hold something of these shards."""
    return sorted(
        {holder.node_id for shard in shards for blob in shard.blobs for holder in blob.holders if not holder.dropping}
    )
