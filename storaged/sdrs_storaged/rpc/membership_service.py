"""The service ``Membership``: nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sdrs_core.errors import RefusedError, SdrsError
from sdrs_core.ids import GroupId, JobName, NodeId
from sdrs_proto import convert
from sdrs_proto.status import to_status
from sdrs_proto.v1 import membership_pb2 as pb
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.receipts import Receipt


class MembershipService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._members = controller.members

    async def register_node(self, request: pb.RegisterNodeRequest) -> pb.RegisterNodeResponse:
        cluster_id = self._members.cluster.id
        if request.cluster_id != cluster_id:
            raise RefusedError(
                f"node {request.node.id} belongs to cluster {request.cluster_id}, this is cluster {cluster_id}: "
                "point it at its own controller, or give it an empty data_dir"
            )
        await self._members.register(
            convert.node_from(request.node),
            request.node_key,
            incarnation=request.incarnation,
            revision=request.revision,
        )
        # Several beats fit into the time after which silence counts.
        interval_ms = int(self._controller.config.suspect_after_seconds * 1000 / 4)
        return pb.RegisterNodeResponse(
            cluster_id=cluster_id,
            authority=convert.authority_to(await self._members.authority()),
            heartbeat_interval_ms=max(50, interval_ms),
        )

    async def heartbeat(self, requests: AsyncIterator[pb.HeartbeatRequest]) -> AsyncIterator[pb.HeartbeatResponse]:
        stream = object()
        node_id = NodeId("")
        try:
            async for request in requests:
                node_id = NodeId(request.node_id)
                self._members.authenticate(node_id, request.node_key)
                self._members.beat(node_id, tuple(convert.disk_from(disk) for disk in request.disks), stream)
                yield pb.HeartbeatResponse(authority=convert.authority_to(await self._members.authority()))
        finally:
            self._members.stream_ended(node_id, stream)

    async def register_receipts(self, request: pb.RegisterReceiptsRequest) -> pb.RegisterReceiptsResponse:
        node_id = NodeId(request.node_id)
        self._members.authenticate(node_id, request.node_key)
        receipts = [
            Receipt(
                capability=receipt.capability,
                job=JobName(receipt.job),
                step=receipt.step,
                attempt=receipt.attempt,
                group_id=GroupId(receipt.group_id),
                epoch=receipt.epoch,
                shard=convert.shard_from(receipt.shard),
            )
            for receipt in request.receipts
        ]
        outcomes = await self._controller.receipts.register(node_id, receipts)
        return pb.RegisterReceiptsResponse(
            outcomes=[
                pb.ReceiptOutcome(status=to_status(outcome).SerializeToString())
                if isinstance(outcome, SdrsError)
                else pb.ReceiptOutcome(state=convert.save_state_to(outcome))
                for outcome in outcomes
            ]
        )
