"""Targets, policies and runs of backups, to messages and back."""

from __future__ import annotations

from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Keep, Policy, Target, TargetName
from sdrs_core.ids import PoolName
from sdrs_proto.v1 import backup_pb2 as pb

RUN_KINDS = {
    pb.BACKUP_RUN_KIND_BACKUP: RunKind.BACKUP,
    pb.BACKUP_RUN_KIND_VERIFY: RunKind.VERIFY,
    pb.BACKUP_RUN_KIND_PRUNE: RunKind.PRUNE,
    pb.BACKUP_RUN_KIND_IMPORT: RunKind.IMPORT,
}
RUN_KIND_MESSAGES = {kind: message for message, kind in RUN_KINDS.items()}


def target_to(target: Target) -> pb.BackupTarget:
    return pb.BackupTarget(
        name=target.name,
        endpoint=target.endpoint,
        bucket=target.bucket,
        prefix=target.prefix,
        region=target.region,
        addressing=target.addressing,
        ca_file=target.ca_file,
        credentials=target.credentials,
        encryption_key=target.encryption_key,
        former_keys=target.former_keys,
        max_bytes_per_second=target.max_bytes_per_second,
        concurrency=target.concurrency,
        source_cluster_id=target.source_cluster_id,
    )


def target_from(message: pb.BackupTarget) -> Target:
    return Target(
        name=TargetName(message.name),
        bucket=message.bucket,
        prefix=message.prefix,
        endpoint=message.endpoint,
        region=message.region,
        addressing=message.addressing or "auto",
        ca_file=message.ca_file,
        credentials=message.credentials or "chain",
        encryption_key=message.encryption_key,
        former_keys=tuple(message.former_keys),
        max_bytes_per_second=message.max_bytes_per_second,
        concurrency=message.concurrency or 4,
        source_cluster_id=message.source_cluster_id,
    )


def policy_to(policy: Policy) -> pb.BackupPolicy:
    return pb.BackupPolicy(
        target=policy.target,
        pool=policy.pool,
        job=policy.job,
        every_seconds=policy.every_seconds,
        cron=policy.cron,
        on_commit=policy.on_commit,
        keep_last=policy.keep.last,
        keep_hourly=policy.keep.hourly,
        keep_daily=policy.keep.daily,
        keep_weekly=policy.keep.weekly,
        evict_after_seconds=policy.evict_after_seconds,
    )


def policy_from(message: pb.BackupPolicy) -> Policy:
    return Policy(
        target=TargetName(message.target),
        pool=PoolName(message.pool),
        job=message.job,
        every_seconds=message.every_seconds,
        cron=message.cron,
        on_commit=message.on_commit,
        keep=Keep(message.keep_last, message.keep_hourly, message.keep_daily, message.keep_weekly),
        evict_after_seconds=message.evict_after_seconds,
    )


def selection_to(selection: Selection) -> pb.BackupSelection:
    return pb.BackupSelection(
        pool=selection.pool,
        job=selection.job,
        step=selection.step,
        full=selection.full,
        dry_run=selection.dry_run,
        into_pool=selection.into_pool,
        lazy=selection.lazy,
        missing_only=selection.missing_only,
    )


def selection_from(message: pb.BackupSelection) -> Selection:
    return Selection(
        pool=message.pool,
        job=message.job,
        step=message.step if message.HasField("step") else None,
        full=message.full,
        dry_run=message.dry_run,
        into_pool=message.into_pool,
        lazy=message.lazy,
        missing_only=message.missing_only,
    )
