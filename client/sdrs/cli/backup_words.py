"""Targets, policies, runs and backups as tables, sentences and JSON.

Names in records are a promise: add, never rename.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sdrs.cli.amounts import format_age, format_bytes, format_duration, format_rate, format_time
from sdrs.cli.output import Column, Listing
from sdrs.cli.records import Record

if TYPE_CHECKING:
    from sdrs.backups import Backup, JobStatus, PolicyStatus, Run, TargetStatus
    from sdrs_core.backup.targets import Keep, Policy, Target


def now_unix_ms() -> int:
    return int(time.time() * 1000)


# Targets


def place(target: Target) -> str:
    """Where a target is, as people write it."""
    path = f"{target.bucket}/{target.prefix}" if target.prefix else target.bucket
    return f"s3://{path}" + (f" at {target.endpoint}" if target.endpoint else "")


def target_record(target: Target) -> Record:
    return {
        "name": target.name,
        "endpoint": target.endpoint or None,
        "bucket": target.bucket,
        "prefix": target.prefix,
        "region": target.region or None,
        "addressing": target.addressing,
        "ca_file": target.ca_file or None,
        "credentials": target.credentials,
        "encrypted": bool(target.encryption_key),
        "encryption_key": target.encryption_key or None,
        "former_keys": list(target.former_keys),
        "max_bytes_per_second": target.max_bytes_per_second,
        "concurrency": target.concurrency,
        "read_only": bool(target.source_cluster_id),
        "source_cluster": target.source_cluster_id or None,
    }


def target_status_record(status: TargetStatus) -> Record:
    return target_record(status.target) | {
        "state": _target_state(status),
        "checkpoint_count": status.checkpoint_count,
        "stored_bytes": status.stored_bytes,
        "object_count": status.object_count,
        "newest": format_time(status.newest_unix_ms),
        "failure": status.failure or None,
        "failing_since": format_time(status.failing_since_unix_ms),
        "run": run_record(status.run) if status.run else None,
    }


def _target_state(status: TargetStatus) -> str:
    if status.failure:
        return "failed"
    if status.run and status.run.is_under_way:
        return str(status.run.kind)
    return "read_only" if status.target.source_cluster_id else "ok"


def target_listing(targets: list[TargetStatus]) -> Listing:
    now = now_unix_ms()
    rows = [
        [
            one.target.name,
            _target_state(one),
            place(one.target),
            str(one.checkpoint_count),
            format_bytes(one.stored_bytes),
            format_age(one.newest_unix_ms, now),
            "yes" if one.target.encryption_key else "no",
        ]
        for one in targets
    ]
    columns = (
        Column("NAME"),
        Column("STATE"),
        Column("PLACE", folds=True),
        Column("CHECKPOINTS", is_number=True),
        Column("STORED", is_number=True),
        Column("NEWEST"),
        Column("ENCRYPTED"),
    )
    return Listing(columns, rows, "no backup targets: `sdrs backup target add NAME --bucket BUCKET` adds one")


# Policies


def when(policy: Policy) -> str:
    found = []
    if policy.every_seconds:
        found.append(f"every {format_duration(policy.every_seconds)}")
    if policy.cron:
        found.append(f"cron {policy.cron}")
    if policy.on_commit:
        found.append("at each commit")
    return ", ".join(found) or "on demand"


def keeps(keep: Keep) -> str:
    rules = (("last", keep.last), ("hourly", keep.hourly), ("daily", keep.daily), ("weekly", keep.weekly))
    return ", ".join(f"{count} {name}" for name, count in rules if count) or "all"


def policy_record(status: PolicyStatus) -> Record:
    policy = status.policy
    return {
        "target": policy.target,
        "pool": policy.pool,
        "job": policy.job or None,
        "every_seconds": policy.every_seconds,
        "cron": policy.cron or None,
        "on_commit": policy.on_commit,
        "keep_last": policy.keep.last,
        "keep_hourly": policy.keep.hourly,
        "keep_daily": policy.keep.daily,
        "keep_weekly": policy.keep.weekly,
        "evict_after_seconds": policy.evict_after_seconds,
        "last": format_time(status.last_unix_ms),
        "next": format_time(status.next_unix_ms),
        "behind": status.behind or None,
    }


def policy_listing(policies: list[PolicyStatus]) -> Listing:
    now = now_unix_ms()
    rows = [
        [
            one.policy.pool,
            one.policy.job or "all",
            one.policy.target,
            when(one.policy),
            keeps(one.policy.keep),
            format_duration(one.policy.evict_after_seconds) if one.policy.evict_after_seconds else "never",
            format_age(one.last_unix_ms, now),
            one.behind or "no",
        ]
        for one in policies
    ]
    columns = (
        *(Column("POOL"), Column("JOB"), Column("TARGET"), Column("WHEN"), Column("KEEPS"), Column("EVICTS")),
        *(Column("LAST"), Column("BEHIND", folds=True)),
    )
    return Listing(
        columns, rows, "no backup policies: set one with `sdrs backup policy set POOL --target NAME --every 15m`"
    )


# Backups


def backup_record(backup: Backup) -> Record:
    return {
        "target": backup.target,
        "cluster": backup.cluster_id,
        "save_id": backup.save_id,
        "job": backup.job,
        "step": backup.step,
        "attempt": backup.attempt,
        "pool": backup.pool,
        "size_bytes": backup.size_bytes,
        "uploaded_bytes": backup.uploaded_bytes,
        "committed": format_time(backup.committed_unix_ms),
        "backed_up": format_time(backup.backed_up_unix_ms),
        "verified": format_time(backup.verified_unix_ms),
        "damage": backup.damage or None,
        "held": backup.held,
        "in_cluster": backup.in_cluster,
    }


def backup_listing(backups: list[Backup]) -> Listing:
    now = now_unix_ms()
    rows = [
        [
            one.job,
            str(one.step),
            one.target,
            "damaged" if one.damage else "ok",
            format_bytes(one.size_bytes),
            format_bytes(one.uploaded_bytes),
            format_age(one.backed_up_unix_ms, now),
            format_age(one.verified_unix_ms, now),
            "yes" if one.held else "no",
            "cluster and backup" if one.in_cluster else "backup only",
        ]
        for one in backups
    ]
    columns = (
        *(Column("JOB"), Column("STEP", is_number=True), Column("TARGET"), Column("STATE")),
        *(Column("SIZE", is_number=True), Column("NEW BYTES", is_number=True)),
        *(Column("BACKED UP"), Column("VERIFIED"), Column("HELD"), Column("IN")),
    )
    return Listing(columns, rows, "nothing is backed up yet")


def job_record(status: JobStatus) -> Record:
    return {
        "job": status.job,
        "pool": status.pool,
        "target": status.target,
        "newest_step": status.newest_step,
        "newest_committed": format_time(status.newest_committed_unix_ms),
        "cluster_committed": format_time(status.cluster_committed_unix_ms),
        "at_risk_seconds": at_risk_seconds(status),
        "waiting_checkpoints": status.waiting_checkpoints,
        "behind": status.behind or None,
    }


def at_risk_seconds(status: JobStatus) -> float | None:
    """How much work would be lost with the cluster: between the newest backup and the newest checkpoint. None: all."""
    if not status.newest_committed_unix_ms:
        return None
    return max(0, status.cluster_committed_unix_ms - status.newest_committed_unix_ms) / 1000


def job_listing(jobs: list[JobStatus]) -> Listing:
    now = now_unix_ms()
    rows = []
    for one in jobs:
        at_risk = at_risk_seconds(one)
        rows.append(
            [
                one.job,
                one.target,
                "-" if one.newest_step is None else str(one.newest_step),
                format_age(one.newest_committed_unix_ms, now),
                "all of it" if at_risk is None else format_duration(at_risk) if at_risk else "nothing",
                str(one.waiting_checkpoints),
                one.behind or "no",
            ]
        )
    columns = (
        *(Column("JOB"), Column("TARGET"), Column("NEWEST STEP", is_number=True), Column("NEWEST")),
        *(Column("AT RISK"), Column("WAITING", is_number=True), Column("BEHIND", folds=True)),
    )
    return Listing(columns, rows, "no job is backed up by a policy")


# Runs


def run_record(run: Run) -> Record:
    selection = run.selection
    return {
        "id": run.id,
        "target": run.target,
        "kind": str(run.kind),
        "trigger": run.trigger,
        "state": "under_way" if run.is_under_way else "failed" if run.failure else "done",
        "pool": selection.pool or None,
        "job": selection.job or None,
        "step": selection.step,
        "full": selection.full,
        "dry_run": selection.dry_run,
        "started": format_time(run.started_unix_ms),
        "ended": format_time(run.ended_unix_ms),
        "done_checkpoints": run.done_checkpoints,
        "total_checkpoints": run.total_checkpoints,
        "skipped_checkpoints": run.skipped_checkpoints,
        "failed_checkpoints": run.failed_checkpoints,
        "done_bytes": run.done_bytes,
        "total_bytes": run.total_bytes,
        "moved_bytes": run.moved_bytes,
        "bytes_per_second": run.bytes_per_second,
        "deleted_checkpoints": run.deleted_checkpoints,
        "deleted_objects": run.deleted_objects,
        "deleted_bytes": run.deleted_bytes,
        "failure": run.failure or None,
        "problems": list(run.problems),
    }


def run_title(run: Run) -> str:
    selection = run.selection
    about = f" of {selection.job}" if selection.job else f' of pool "{selection.pool}"' if selection.pool else ""
    about += f" step {selection.step}" if selection.step is not None else ""
    words = {"backup": "backup to", "verify": "verification of", "prune": "pruning of", "import": "import from"}
    return f"{words[str(run.kind)]} {run.target}{about}"


def run_summary(run: Run) -> str:
    """What a run that ended has done, in a sentence."""
    took = format_duration((run.ended_unix_ms - run.started_unix_ms) / 1000)
    if run.kind == "prune":
        verb = "would be deleted" if run.selection.dry_run else "are deleted"
        amounts = f"{run.deleted_objects} objects, {format_bytes(run.deleted_bytes)}"
        return f"{run_title(run)}: {run.deleted_checkpoints} backups {verb} ({amounts})"
    done = f"{run.done_checkpoints} of {run.total_checkpoints} checkpoints"
    passed = f", {run.skipped_checkpoints} were there already" if run.skipped_checkpoints else ""
    rate = f" at {format_rate(run.bytes_per_second)}" if run.bytes_per_second else ""
    moved = {"backup": "uploaded", "verify": "read", "import": "downloaded"}[str(run.kind)]
    return f"{run_title(run)}: {done}{passed}; {format_bytes(run.moved_bytes)} {moved}{rate} in {took}"


def run_facts(run: Run) -> dict[str, str]:
    now = now_unix_ms()
    if run.is_under_way:
        state = f"under way since {format_duration((now - run.started_unix_ms) / 1000)}"
    else:
        state = f"{'failed' if run.failure else 'done'} {format_age(run.ended_unix_ms, now)}"
    return {
        "run": f"{run_title(run)} (by {run.trigger})",
        "state": state,
        "checkpoints": f"{run.done_checkpoints} of {run.total_checkpoints}",
        "bytes": f"{format_bytes(run.done_bytes)} of {format_bytes(run.total_bytes)}",
        "moved": format_bytes(run.moved_bytes)
        + (f" at {format_rate(run.bytes_per_second)}" if run.bytes_per_second else ""),
        "now": run.current,
        "failure": run.failure,
    }
