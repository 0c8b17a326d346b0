"""Backups in buckets: targets, policies, what is there, and the runs that make, check, prune and bring it back.

A run goes on in the cluster whether or not somebody waits for it; ``run_status`` tells how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from sdrs.process import Process
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Keep, Policy, Target, TargetName
from sdrs_core.errors import NotFoundError
from sdrs_core.ids import JobName, SaveId, random_id
from sdrs_proto.backup_convert import (
    RUN_KIND_MESSAGES,
    RUN_KINDS,
    policy_from,
    policy_to,
    selection_from,
    selection_to,
    target_from,
    target_to,
)
from sdrs_proto.v1 import backup_pb2 as messages

__all__ = [
    "Backup",
    "Backups",
    "JobStatus",
    "Keep",
    "Policy",
    "PolicyStatus",
    "ProbeStep",
    "Run",
    "RunKind",
    "Selection",
    "Target",
    "TargetName",
    "TargetStatus",
]

# The controller asks the bucket before it answers, and that may be slow.
_BUCKET_MS = 60_000
_PROBE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """``ended_unix_ms`` is 0 while it goes on. ``failure`` says why it ended early, or what it waits for.

    ``problems`` are sentences about single checkpoints, the first ones of them.
    """

    id: str
    target: str
    kind: RunKind
    trigger: str
    selection: Selection
    started_unix_ms: int
    ended_unix_ms: int
    done_checkpoints: int
    total_checkpoints: int
    skipped_checkpoints: int
    failed_checkpoints: int
    done_bytes: int
    total_bytes: int
    # What went over the wire: what the bucket had already did not.
    moved_bytes: int
    bytes_per_second: int
    failure: str
    problems: tuple[str, ...]
    deleted_checkpoints: int
    deleted_objects: int
    deleted_bytes: int
    current: str

    @property
    def is_under_way(self) -> bool:
        return not self.ended_unix_ms


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """``failure`` says why the last try failed, and since when tries do; empty if it did not."""

    target: Target
    checkpoint_count: int
    stored_bytes: int
    object_count: int
    newest_unix_ms: int
    failure: str
    failing_since_unix_ms: int
    run: Run | None


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """``where``: "controller", or a node's id. ``detail`` tells what is wrong, and what it needs."""

    where: str
    step: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """``behind`` is a sentence, empty if it is not."""

    policy: Policy
    last_unix_ms: int
    next_unix_ms: int
    behind: str


@dataclass(frozen=True, slots=True)
class Backup:
    """One checkpoint in a bucket; ``damage`` is what a verification found wrong."""

    target: str
    cluster_id: str
    save_id: SaveId
    job: JobName
    step: int
    attempt: int
    pool: str
    size_bytes: int
    uploaded_bytes: int
    committed_unix_ms: int
    backed_up_unix_ms: int
    verified_unix_ms: int
    damage: str
    held: bool
    in_cluster: bool


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How much work of a job would be lost with the cluster: what was committed after its newest backup."""

    job: JobName
    pool: str
    target: str
    newest_step: int | None
    newest_committed_unix_ms: int
    cluster_committed_unix_ms: int
    waiting_checkpoints: int
    behind: str


class Backups:
    """``cluster.backups``."""

    def __init__(self, process: Callable[[], Process]) -> None:
        self._process = process

    # Targets

    def add_target(self, target: Target, *, take_over: bool = False) -> Target:
        """Add a target, or change one of that name.

        A prefix that belongs to another cluster is only read (``source_cluster_id`` of the answer), unless
        ``take_over`` says that the other one is gone for good.
        """
        request = messages.AddBackupTargetRequest(request_id=random_id(), target=target_to(target), take_over=take_over)
        return target_from(self._call("add_backup_target", request, wait_ms=_BUCKET_MS).target)

    def targets(self) -> list[TargetStatus]:
        answer = self._call("list_backup_targets", messages.ListBackupTargetsRequest())
        return [_target_status_from(one) for one in answer.targets]

    def target(self, name: str) -> TargetStatus:
        found = next((one for one in self.targets() if one.target.name == name), None)
        if found is None:
            raise NotFoundError(f'there is no backup target "{name}": see `sdrs backup target list`')
        return found

    def test_target(self, name: str) -> Iterator[ProbeStep]:
        """Write, read, list and delete under the target's prefix, from the controller and from each node."""
        request = messages.TestBackupTargetRequest(name=name)
        control = self._process().control
        for one in control.stream("test_backup_target", request, timeout_seconds=_PROBE_SECONDS):
            yield ProbeStep(one.where, one.step, one.ok, one.detail)

    def remove_target(self, name: str, *, accept_data_loss: bool = False) -> None:
        """The cluster forgets it; what is in the bucket stays. Refused while checkpoints are kept there only."""
        request = messages.RemoveBackupTargetRequest(
            request_id=random_id(), name=name, accept_data_loss=accept_data_loss
        )
        self._call("remove_backup_target", request, wait_ms=_BUCKET_MS)

    def rotate_key(self, name: str, encryption_key: str) -> int:
        """Put the target's data keys under another key; how many there are. Objects stay as they are."""
        request = messages.RotateBackupKeyRequest(request_id=random_id(), name=name, encryption_key=encryption_key)
        return int(self._call("rotate_backup_key", request, wait_ms=_BUCKET_MS).rewrapped_keys)

    # Policies

    def set_policy(self, policy: Policy) -> Policy:
        request = messages.SetBackupPolicyRequest(request_id=random_id(), policy=policy_to(policy))
        return policy_from(self._call("set_backup_policy", request).policy)

    def policies(self) -> list[PolicyStatus]:
        answer = self._call("list_backup_policies", messages.ListBackupPoliciesRequest())
        return [
            PolicyStatus(policy_from(one.policy), one.last_unix_ms, one.next_unix_ms, one.behind)
            for one in answer.policies
        ]

    def remove_policy(self, target: str, pool: str, job: str = "") -> None:
        request = messages.RemoveBackupPolicyRequest(request_id=random_id(), target=target, pool=pool, job=job)
        self._call("remove_backup_policy", request)

    # Runs

    def start(self, kind: RunKind, target: str, selection: Selection | None = None) -> Run:
        """One at a time for each target: the same is joined, another one is a ``RefusedError``."""
        request = messages.StartBackupRunRequest(
            request_id=random_id(),
            target=target,
            kind=RUN_KIND_MESSAGES[kind],
            selection=selection_to(selection or Selection()),
        )
        return _run_from(self._call("start_backup_run", request, wait_ms=_BUCKET_MS).run)

    def stop(self, target: str) -> Run:
        """What is done stays done; a later run goes on from there."""
        request = messages.StopBackupRunRequest(target=target)
        return _run_from(self._call("stop_backup_run", request, wait_ms=_BUCKET_MS).run)

    def runs(self, target: str = "") -> list[Run]:
        """Of each target the one under way, or else the last one."""
        answer = self._call("list_backup_runs", messages.ListBackupRunsRequest(target=target))
        return [_run_from(one) for one in answer.runs]

    # What is there

    def hold(self, target: str, job: str, step: int, *, held: bool = True) -> Backup:
        """A held backup is never pruned."""
        request = messages.HoldBackupRequest(request_id=random_id(), target=target, job=job, step=step, held=held)
        return _backup_from(self._call("hold_backup", request).backup)

    def status(self) -> tuple[list[JobStatus], list[str]]:
        """Each job against its newest backup; and what an operator should know, in sentences."""
        answer = self._call("get_backup_status", messages.GetBackupStatusRequest())
        return [_job_status_from(one) for one in answer.jobs], list(answer.warnings)

    def list(self, job: str = "", *, target: str = "", from_bucket: bool = False) -> list[Backup]:
        """By job, newest first; ``from_bucket`` asks the buckets themselves instead of the catalog."""
        is_each = from_bucket and not target
        names = [str(one.target.name) for one in self.targets()] if is_each else [target]
        found: list[Backup] = []
        for name in names:
            request = messages.ListBackupsRequest(target=name, job=job, from_bucket=from_bucket)
            pages = self._process().control.pages("list_backups", request, wait_ms=_BUCKET_MS if from_bucket else 0)
            found += (_backup_from(one) for page in pages for one in page.backups)
        # Pages come by the id of the save, and each target has its own.
        return sorted(found, key=lambda one: (one.job, -one.step, -one.attempt, one.target))

    def _call(self, method: str, request: Message, *, wait_ms: int = 0) -> Any:
        return self._process().control.call(method, request, wait_ms=wait_ms)


def _run_from(message: messages.BackupRun) -> Run:
    return Run(
        id=message.id,
        target=message.target,
        kind=RUN_KINDS[message.kind],
        trigger=message.trigger,
        selection=selection_from(message.selection),
        started_unix_ms=message.started_unix_ms,
        ended_unix_ms=message.ended_unix_ms,
        done_checkpoints=message.done_checkpoints,
        total_checkpoints=message.total_checkpoints,
        skipped_checkpoints=message.skipped_checkpoints,
        failed_checkpoints=message.failed_checkpoints,
        done_bytes=message.done_bytes,
        total_bytes=message.total_bytes,
        moved_bytes=message.moved_bytes,
        bytes_per_second=message.bytes_per_second,
        failure=message.failure,
        problems=tuple(message.problems),
        deleted_checkpoints=message.deleted_checkpoints,
        deleted_objects=message.deleted_objects,
        deleted_bytes=message.deleted_bytes,
        current=message.current,
    )


def _target_status_from(message: messages.BackupTargetStatus) -> TargetStatus:
    return TargetStatus(
        target=target_from(message.target),
        checkpoint_count=message.checkpoints,
        stored_bytes=message.stored_bytes,
        object_count=message.objects,
        newest_unix_ms=message.newest_unix_ms,
        failure=message.failure,
        failing_since_unix_ms=message.failing_since_unix_ms,
        run=_run_from(message.run) if message.HasField("run") else None,
    )


def _backup_from(message: messages.Backup) -> Backup:
    return Backup(
        target=message.target,
        cluster_id=message.cluster_id,
        save_id=SaveId(message.save_id),
        job=JobName(message.job),
        step=message.step,
        attempt=message.attempt,
        pool=message.pool,
        size_bytes=message.size_bytes,
        uploaded_bytes=message.uploaded_bytes,
        committed_unix_ms=message.committed_unix_ms,
        backed_up_unix_ms=message.backed_up_unix_ms,
        verified_unix_ms=message.verified_unix_ms,
        damage=message.damage,
        held=message.held,
        in_cluster=message.in_cluster,
    )


def _job_status_from(message: messages.JobBackupStatus) -> JobStatus:
    return JobStatus(
        job=JobName(message.job),
        pool=message.pool,
        target=message.target,
        newest_step=message.newest_step if message.newest_committed_unix_ms else None,
        newest_committed_unix_ms=message.newest_committed_unix_ms,
        cluster_committed_unix_ms=message.cluster_committed_unix_ms,
        waiting_checkpoints=message.waiting_checkpoints,
        behind=message.behind,
    )
