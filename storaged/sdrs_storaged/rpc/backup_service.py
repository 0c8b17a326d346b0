"""The part of the service ``Control`` that is about backups: targets, policies, runs, and what the buckets have."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from sdrs_core.backup import layout
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import JobName, SaveId
from sdrs_proto import backup_convert
from sdrs_proto.v1 import backup_pb2 as pb
from sdrs_storaged.control.backup.assembly import Backups
from sdrs_storaged.control.backup.listing import FromBucket
from sdrs_storaged.control.backup.records import Copy, Run, TargetRecord
from sdrs_storaged.rpc.edge import page_size


class BackupService:
    def __init__(self, backups: Backups) -> None:
        self._backups = backups

    # Targets

    async def add_backup_target(self, request: pb.AddBackupTargetRequest) -> pb.AddBackupTargetResponse:
        target = await self._backups.targets.add(
            backup_convert.target_from(request.target), take_over=request.take_over, request_id=request.request_id
        )
        return pb.AddBackupTargetResponse(target=backup_convert.target_to(target))

    async def list_backup_targets(self, request: pb.ListBackupTargetsRequest) -> pb.ListBackupTargetsResponse:
        return pb.ListBackupTargetsResponse(
            targets=[self._target_status(record) for record in self._backups.targets.all()]
        )

    def _target_status(self, record: TargetRecord) -> pb.BackupTargetStatus:
        standing, run = self._backups.standing.of(record.target.name), self._backups.runs.get(record.target.name)
        return pb.BackupTargetStatus(
            target=backup_convert.target_to(record.target),
            checkpoints=standing.checkpoints,
            stored_bytes=standing.stored_bytes,
            objects=standing.objects,
            newest_unix_ms=standing.newest_unix_ms,
            failure=record.failure,
            failing_since_unix_ms=record.failing_since_unix_ms,
            run=self._run(run) if run else None,
        )

    async def test_backup_target(
        self, request: pb.TestBackupTargetRequest
    ) -> AsyncIterator[pb.TestBackupTargetResponse]:
        async for where, step in self._backups.test_target(request.name):
            yield pb.TestBackupTargetResponse(where=where, step=step.name, ok=step.ok, detail=step.detail)

    async def remove_backup_target(self, request: pb.RemoveBackupTargetRequest) -> pb.RemoveBackupTargetResponse:
        await self._backups.remove_target(request.name, accept_data_loss=request.accept_data_loss)
        return pb.RemoveBackupTargetResponse()

    async def rotate_backup_key(self, request: pb.RotateBackupKeyRequest) -> pb.RotateBackupKeyResponse:
        count = await self._backups.targets.rotate(request.name, request.encryption_key)
        return pb.RotateBackupKeyResponse(rewrapped_keys=count)

    # Policies

    async def set_backup_policy(self, request: pb.SetBackupPolicyRequest) -> pb.SetBackupPolicyResponse:
        policy = await self._backups.policies.set(backup_convert.policy_from(request.policy))
        self._backups.runs.wake()
        return pb.SetBackupPolicyResponse(policy=backup_convert.policy_to(policy))

    async def remove_backup_policy(self, request: pb.RemoveBackupPolicyRequest) -> pb.RemoveBackupPolicyResponse:
        await self._backups.policies.remove(request.target, request.pool, request.job)
        return pb.RemoveBackupPolicyResponse()

    async def list_backup_policies(self, request: pb.ListBackupPoliciesRequest) -> pb.ListBackupPoliciesResponse:
        policies = self._backups.policies
        return pb.ListBackupPoliciesResponse(
            policies=[
                pb.BackupPolicyStatus(
                    policy=backup_convert.policy_to(record.policy),
                    last_unix_ms=record.done_unix_ms,
                    next_unix_ms=policies.next_unix_ms(record),
                    behind=policies.behind(record),
                )
                for record in policies.all()
            ]
        )

    # Runs

    async def start_backup_run(self, request: pb.StartBackupRunRequest) -> pb.StartBackupRunResponse:
        if request.kind not in backup_convert.RUN_KINDS:
            raise InvalidArgumentError("a run backs up, verifies, prunes or imports: say which")
        run = await self._backups.start(
            backup_convert.RUN_KINDS[request.kind],
            request.target,
            backup_convert.selection_from(request.selection),
            request.request_id,
        )
        return pb.StartBackupRunResponse(run=self._run(run))

    async def stop_backup_run(self, request: pb.StopBackupRunRequest) -> pb.StopBackupRunResponse:
        return pb.StopBackupRunResponse(run=self._run(await self._backups.runs.stop(request.target)))

    async def list_backup_runs(self, request: pb.ListBackupRunsRequest) -> pb.ListBackupRunsResponse:
        if request.target:
            self._backups.targets.get(request.target)
        return pb.ListBackupRunsResponse(
            runs=[self._run(run) for run in self._backups.runs.all() if request.target in ("", run.target)]
        )

    def _run(self, run: Run) -> pb.BackupRun:
        return pb.BackupRun(
            id=run.id,
            target=run.target,
            kind=backup_convert.RUN_KIND_MESSAGES[run.kind],
            trigger=run.trigger,
            selection=backup_convert.selection_to(run.selection),
            started_unix_ms=run.started_unix_ms,
            ended_unix_ms=run.ended_unix_ms,
            done_checkpoints=run.done_checkpoints,
            total_checkpoints=run.total_checkpoints,
            done_bytes=run.done_bytes,
            total_bytes=run.total_bytes,
            moved_bytes=run.moved_bytes,
            bytes_per_second=self._backups.runs.bytes_per_second(run),
            failure=run.failure,
            problems=run.problems,
            skipped_checkpoints=run.skipped_checkpoints,
            failed_checkpoints=run.failed_checkpoints,
            deleted_checkpoints=run.deleted_checkpoints,
            deleted_objects=run.deleted_objects,
            deleted_bytes=run.deleted_bytes,
            current=run.current,
        )

    # Backups

    async def list_backups(self, request: pb.ListBackupsRequest) -> pb.ListBackupsResponse:
        limit = page_size(request.page_size)
        if request.from_bucket:
            if not request.target:
                raise InvalidArgumentError("a bucket's own list is that of one target: name it")
            found, token = await self._backups.listing.from_bucket(
                request.target, job=request.job, after=request.page_token, limit=limit
            )
            here = await self._backups.listing.in_cluster([one.record for one in found if one.record])
            return pb.ListBackupsResponse(
                backups=[_listed(request.target, one, here) for one in found], next_page_token=token
            )
        copies, token = await self._backups.listing.page(
            request.target, job=request.job, after=request.page_token, limit=limit
        )
        in_cluster = await self._backups.listing.in_cluster(copies)
        return pb.ListBackupsResponse(
            backups=[_backup(copy, copy.save_id in in_cluster) for copy in copies], next_page_token=token
        )

    async def hold_backup(self, request: pb.HoldBackupRequest) -> pb.HoldBackupResponse:
        target = self._backups.targets.get(request.target).name
        copy = await self._backups.copies.hold(target, JobName(request.job), request.step, held=request.held)
        in_cluster = await self._backups.listing.in_cluster([copy])
        return pb.HoldBackupResponse(backup=_backup(copy, copy.save_id in in_cluster))

    async def get_backup_status(self, request: pb.GetBackupStatusRequest) -> pb.GetBackupStatusResponse:
        jobs = await self._backups.status.jobs()
        return pb.GetBackupStatusResponse(
            jobs=[
                pb.JobBackupStatus(
                    job=job.job,
                    pool=job.pool,
                    target=job.target,
                    newest_step=job.newest_step,
                    newest_committed_unix_ms=job.newest_committed_unix_ms,
                    cluster_committed_unix_ms=job.cluster_committed_unix_ms,
                    waiting_checkpoints=job.waiting_checkpoints,
                    behind=job.behind,
                )
                for job in jobs
            ],
            warnings=self._backups.warnings(),
        )


def _backup(copy: Copy, in_cluster: bool) -> pb.Backup:
    return pb.Backup(
        target=copy.target,
        cluster_id=copy.cluster_id,
        save_id=copy.save_id,
        job=copy.job,
        step=copy.step,
        attempt=copy.attempt,
        pool=copy.pool,
        size_bytes=copy.size_bytes,
        uploaded_bytes=copy.uploaded_bytes,
        committed_unix_ms=copy.committed_unix_ms,
        backed_up_unix_ms=copy.backed_up_unix_ms,
        verified_unix_ms=copy.verified_unix_ms,
        damage=copy.damage,
        held=copy.held,
        in_cluster=in_cluster,
    )


def _listed(target: str, found: FromBucket, here: Collection[SaveId]) -> pb.Backup:
    record = found.record
    if record is None:
        cluster_id, job, step, save_id = layout.parse_checkpoint(found.key)
        return pb.Backup(target=target, cluster_id=cluster_id, save_id=save_id, job=job, step=step, damage=found.damage)
    return pb.Backup(
        target=target,
        cluster_id=record.cluster_id,
        save_id=record.save_id,
        job=record.job,
        step=record.step,
        attempt=record.attempt,
        pool=record.pool,
        size_bytes=record.size_bytes,
        committed_unix_ms=record.committed_unix_ms,
        backed_up_unix_ms=record.backed_up_unix_ms,
        in_cluster=record.save_id in here,
    )
