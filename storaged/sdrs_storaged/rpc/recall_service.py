"""The part of the service ``Control`` that brings checkpoints back from backups."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sdrs_core.ids import JobName, SaveId
from sdrs_proto.v1 import backup_pb2 as pb
from sdrs_storaged.control.backup.recall import Recalls


class RecallService:
    def __init__(self, recalls: Recalls) -> None:
        self._recalls = recalls

    async def recall_checkpoint(
        self, request: pb.RecallCheckpointRequest
    ) -> AsyncIterator[pb.RecallCheckpointResponse]:
        async for progress in self._recalls.recall(JobName(request.job), request.step, SaveId(request.save_id)):
            yield pb.RecallCheckpointResponse(
                target=progress.target,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                is_done=progress.is_done,
            )
