"""The service ``Control``: users and operators."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable

from sdrs_core.checkpoints import Save, Shard
from sdrs_core.cluster import DEFAULT_POOL, Group
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import BlobId, JobName, NodeId, PoolName, SaveId
from sdrs_proto import convert
from sdrs_proto.limits import MAX_WAIT_MS
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control import keys
from sdrs_storaged.control.archives import Archives
from sdrs_storaged.control.catalog_reader import CatalogReader
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.rounds import Outcome
from sdrs_storaged.control.saves import SaveRequest
from sdrs_storaged.control.verifier import Progress
from sdrs_storaged.rpc.backup_service import BackupService
from sdrs_storaged.rpc.edge import page_size
from sdrs_storaged.rpc.meta_service import MetaService
from sdrs_storaged.rpc.operations_service import OperationsService
from sdrs_storaged.rpc.pool_service import PoolService
from sdrs_storaged.rpc.recall_service import RecallService
from sdrs_storaged.rpc.schedule_service import ScheduleService
from sdrs_storaged.rpc.scrub_service import ScrubService
from sdrs_storaged.rpc.upkeep_service import UpkeepService
from sdrs_storaged.version import VERSION

_MAX_RESTORE_ID_CHARS = 1000
_OUTCOMES = {
    Outcome.OPEN: pb.ROUND_OUTCOME_OPEN,
    Outcome.DONE: pb.ROUND_OUTCOME_DONE,
    Outcome.NEXT: pb.ROUND_OUTCOME_NEXT,
}


class ControlService(
    OperationsService,
    PoolService,
    UpkeepService,
    MetaService,
    ScrubService,
    BackupService,
    RecallService,
    ScheduleService,
):
    def __init__(self, controller: Controller, archives: Archives, metrics_endpoint: Callable[[], str]) -> None:
        OperationsService.__init__(self, controller)
        PoolService.__init__(self, controller)
        UpkeepService.__init__(self, controller)
        MetaService.__init__(self, archives.exporter, archives.importer, archives.rebuilder)
        ScrubService.__init__(self, controller.scrubber)
        RecallService.__init__(self, controller.recovery.recalls)
        BackupService.__init__(self, controller.backups)
        ScheduleService.__init__(self, controller)
        self._saves = controller.saves
        self._catalog = controller.catalog
        self._metrics_endpoint = metrics_endpoint

    async def get_cluster(self, request: pb.GetClusterRequest) -> pb.GetClusterResponse:
        controller = self._controller
        return pb.GetClusterResponse(
            cluster_id=self._members.cluster.id,
            incarnation=self._members.cluster.incarnation,
            term=controller.records.term.number,
            version=VERSION,
            revision=controller.records.revision,
            controller_pid=os.getpid(),
            pending_save_count=len(controller.commits),
            trash_count=await controller.trash_count(),
            damaged_count=len(controller.tally.damaged),
            warnings=controller.warnings(),
            save_ttl_seconds=int(controller.config.save_ttl_seconds),
            grace_seconds=int(controller.config.grace_seconds),
            metrics_endpoint=self._metrics_endpoint(),
            paused_because=self._members.paused_because(),
            degraded_group_count=sum(bool(group.problem) for group in self._problems()),
            degraded_blob_count=controller.repairer.totals.degraded_blobs,
            unavailable_count=controller.repairer.totals.unavailable_count,
            repair=self._repair_progress(),
            store=controller.config.store,
            frozen_because=controller.records.frozen_because,
        )

    def _problems(self) -> list[Group]:
        return self._members.with_problems(self._members.groups())

    # Nodes

    async def list_nodes(self, request: pb.ListNodesRequest) -> pb.ListNodesResponse:
        nodes = [
            node
            for node in self._members.nodes()
            if node.id > request.page_token and request.host in ("", node.endpoints.host)
        ]
        page = nodes[: page_size(request.page_size)]
        token = page[-1].id if len(page) < len(nodes) else ""
        return pb.ListNodesResponse(nodes=[convert.node_to(node) for node in page], next_page_token=token)

    # Saves

    async def begin_save(self, request: pb.BeginSaveRequest) -> pb.BeginSaveResponse:
        begun = await self._saves.begin(
            SaveRequest(
                job=JobName(request.job),
                step=request.step,
                rank=request.rank,
                world_size=request.world_size,
                attempt=convert.attempt_from(request.attempt),
                pool=PoolName(request.pool or DEFAULT_POOL),
                level=convert.level_from(request.level),
                kind=convert.kind_from(request.kind),
                host=request.host,
                avoid=frozenset(NodeId(node_id) for node_id in request.avoid_node_ids),
                size_bytes=request.size_bytes,
                may_refer=request.may_refer,
                prefer=NodeId(request.prefer_node_id) if request.prefer_node_id else None,
            )
        )
        response = pb.BeginSaveResponse(
            save_id=begun.save.save_id,
            attempt=begun.save.attempt,
            capability=begun.capability,
            state=convert.save_state_to(begun.save.state),
            shard_registered=begun.registered is not None,
            shard_content_hash=begun.registered.content_hash if begun.registered else "",
            offers=[convert.reference_to(offer) for offer in begun.offers],
            counted_bytes=begun.counted_bytes,
            takes_packed=True,
        )
        if begun.group:
            response.group.CopyFrom(convert.group_to(begun.group))
            response.primary.CopyFrom(convert.node_to(self._members.node(begun.group.primary)))
        return response

    async def wait_save(self, request: pb.WaitSaveRequest) -> pb.WaitSaveResponse:
        wait_ms = min(request.wait_ms, MAX_WAIT_MS)
        save, shard_count = await self._controller.commits.wait(
            SaveId(request.save_id), JobName(request.job), request.step, wait_ms
        )
        return pb.WaitSaveResponse(checkpoint=convert.save_to(save), shards_registered=shard_count)

    async def abort_save(self, request: pb.AbortSaveRequest) -> pb.AbortSaveResponse:
        await self._controller.commits.abort(SaveId(request.save_id), request.capability, request.reason)
        return pb.AbortSaveResponse()

    # Checkpoints

    async def list_jobs(self, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        jobs, more = await self._controller.jobs(after=request.page_token, limit=page_size(request.page_size))
        return pb.ListJobsResponse(
            jobs=[pb.JobSummary(job=job.name, attempt=job.attempt, attempt_owner=job.owner) for job in jobs],
            next_page_token=keys.job(jobs[-1].name) if more else "",
        )

    async def list_checkpoints(self, request: pb.ListCheckpointsRequest) -> pb.ListCheckpointsResponse:
        job = JobName(request.job)
        limit = page_size(request.page_size)

        async def read(catalog: CatalogReader) -> tuple[list[Save], str]:
            saves, token = await catalog.page(job, all_states=request.all_states, after=request.page_token, limit=limit)
            if request.all_states and not token:
                saves = [*saves, *await catalog.trash_of(job)]
            return saves, token

        (saves, token), is_stale = await self._controller.stale_reads.read(read)
        return pb.ListCheckpointsResponse(
            checkpoints=[convert.save_to(save) for save in saves], next_page_token=token, stale=is_stale
        )

    async def get_checkpoint(self, request: pb.GetCheckpointRequest) -> pb.GetCheckpointResponse:
        stored, is_stale = await self._controller.stale_reads.read(
            lambda catalog: catalog.get(JobName(request.job), request.step)
        )
        return pb.GetCheckpointResponse(checkpoint=convert.save_to(stored.value), stale=is_stale)

    async def list_shards(self, request: pb.ListShardsRequest) -> pb.ListShardsResponse:
        save_id = SaveId(request.save_id)

        async def read(catalog: CatalogReader) -> tuple[list[Shard], str]:
            if request.HasField("rank"):
                return [await catalog.homes.resolved(await catalog.shard(save_id, request.rank))], ""
            limit = page_size(request.page_size)
            found, more = await catalog.shards(save_id, after=request.page_token, limit=limit)
            homes = await catalog.homes.of_page([stored.value for stored in found])
            shards = [await catalog.homes.resolved(stored.value, homes) for stored in found]
            return shards, (found[-1].key if more else "")

        # Of a checkpoint that is known, which never changes; only who holds it does, and readers try them all.
        (shards, token), _ = await self._controller.stale_reads.read(read)
        holders = {holder.node_id for shard in shards for blob in shard.all_blobs for holder in blob.holders}
        # A node that was removed is still on record until repair has come around to it.
        known = sorted(holders.intersection(self._members.node_ids()))
        return pb.ListShardsResponse(
            shards=[convert.shard_to(shard) for shard in shards],
            nodes=[convert.node_to(self._members.node(node_id)) for node_id in known],
            next_page_token=token,
            read_policy=convert.read_policy_to(self._members.pool(request.pool).read_policy) if request.pool else None,
        )

    async def delete_checkpoint(self, request: pb.DeleteCheckpointRequest) -> pb.DeleteCheckpointResponse:
        save = await self._catalog.delete(JobName(request.job), request.step, why="by request")
        return pb.DeleteCheckpointResponse(checkpoint=convert.save_to(save))

    async def undelete_checkpoint(self, request: pb.UndeleteCheckpointRequest) -> pb.UndeleteCheckpointResponse:
        save = await self._catalog.undelete(JobName(request.job), request.step)
        return pb.UndeleteCheckpointResponse(checkpoint=convert.save_to(save))

    async def hold_checkpoint(self, request: pb.HoldCheckpointRequest) -> pb.HoldCheckpointResponse:
        save = await self._catalog.hold(JobName(request.job), request.step, held=True)
        return pb.HoldCheckpointResponse(checkpoint=convert.save_to(save))

    async def release_checkpoint(self, request: pb.ReleaseCheckpointRequest) -> pb.ReleaseCheckpointResponse:
        save = await self._catalog.hold(JobName(request.job), request.step, held=False)
        return pb.ReleaseCheckpointResponse(checkpoint=convert.save_to(save))

    async def verify_checkpoint(
        self, request: pb.VerifyCheckpointRequest
    ) -> AsyncIterator[pb.VerifyCheckpointResponse]:
        async for progress in self._controller.verifier.verify(JobName(request.job), request.step):
            yield _verify_response(progress)

    async def report_damage(self, request: pb.ReportDamageRequest) -> pb.ReportDamageResponse:
        save = await self._controller.verifier.check_reported(
            JobName(request.job),
            request.step,
            SaveId(request.save_id),
            request.rank,
            BlobId(request.blob_id),
            request.node_id,
        )
        return pb.ReportDamageResponse(checkpoint=convert.save_to(save))

    async def report_failed_restore(self, request: pb.ReportFailedRestoreRequest) -> pb.ReportFailedRestoreResponse:
        if not request.restore_id or len(request.restore_id) > _MAX_RESTORE_ID_CHARS:
            raise InvalidArgumentError("a failed restore is reported without an id of its own, or with one too long")
        save = await self._catalog.note_failed_restore(
            JobName(request.job),
            request.step,
            SaveId(request.save_id),
            request.restore_id,
            f"rank {request.rank}: {request.failure}",
        )
        return pb.ReportFailedRestoreResponse(checkpoint=convert.save_to(save))

    # Rounds

    async def join_round(self, request: pb.JoinRoundRequest) -> pb.JoinRoundResponse:
        current, save = await self._controller.rounds.join(
            JobName(request.job),
            convert.attempt_from(request.attempt),
            request.rank,
            request.world_size,
            step=request.step if request.HasField("step") else None,
            resume=request.resume,
            up_to_step=request.up_to_step if request.HasField("up_to_step") else None,
        )
        return pb.JoinRoundResponse(round=current.number, checkpoint=convert.save_to(save))

    async def report_round(self, request: pb.ReportRoundRequest) -> pb.ReportRoundResponse:
        outcome, failure = await self._controller.rounds.report(
            JobName(request.job),
            convert.attempt_from(request.attempt),
            request.round,
            request.rank,
            request.failure,
            min(request.wait_ms, MAX_WAIT_MS),
        )
        return pb.ReportRoundResponse(outcome=_OUTCOMES[outcome], failure=failure)


def _verify_response(progress: Progress) -> pb.VerifyCheckpointResponse:
    response = pb.VerifyCheckpointResponse(
        checked_bytes=progress.checked_bytes,
        total_bytes=progress.total_bytes,
        checked_blobs=progress.checked_blobs,
        problems=[
            pb.BlobProblem(
                blob_id=problem.blob_id,
                rank=problem.rank,
                node_id=problem.node_id,
                problem=problem.text,
                undecided=problem.undecided,
            )
            for problem in progress.problems
        ],
        done=progress.checkpoint is not None,
    )
    if progress.checkpoint:
        response.checkpoint.CopyFrom(convert.save_to(progress.checkpoint))
    return response
