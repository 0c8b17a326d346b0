"""The service ``Membership``: nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from sdrs_core.cluster import Authority, Group, Node, NodeState
from sdrs_core.errors import RefusedError, SdrsError
from sdrs_core.ids import DiskId, GroupId, JobName, NodeId
from sdrs_proto import convert
from sdrs_proto.status import to_status
from sdrs_proto.v1 import membership_pb2 as pb
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.receipts import Receipt


class MembershipService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._members = controller.members
        self._sorted: dict[NodeId, list[Group]] = {}
        self._sorted_at = 0

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
            seen=Authority(request.incarnation, request.term, request.revision, request.term_id),
        )
        interval_seconds = self._controller.detector.interval_seconds(len(self._members.nodes()))
        return pb.RegisterNodeResponse(
            cluster_id=cluster_id,
            authority=convert.authority_to(self._members.authority()),
            heartbeat_interval_ms=int(1000 * interval_seconds),
        )

    async def heartbeat(self, requests: AsyncIterator[pb.HeartbeatRequest]) -> AsyncIterator[pb.HeartbeatResponse]:
        """Beats come in; answers go out for each, and without being asked as soon as the map moves: a node that waits
        for its next beat would accept writes of an epoch that is over.
        """
        stream = object()
        node_id = NodeId("")
        told = b""
        beat = asyncio.ensure_future(_next(requests))
        moved: asyncio.Future[int] | None = None
        try:
            while True:
                waiting: list[asyncio.Future[Any]] = [beat, moved] if moved else [beat]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if beat.done():
                    request = beat.result()
                    if request is None:
                        return
                    self._members.authenticate(NodeId(request.node_id), request.node_key)
                    node_id = NodeId(request.node_id)
                    self._take(request, node_id, stream)
                    beat = asyncio.ensure_future(_next(requests))
                if moved is None or moved.done():
                    moved = asyncio.ensure_future(self._controller.map.beyond(self._controller.map.number))
                response = pb.HeartbeatResponse(authority=convert.authority_to(self._members.authority()))
                assignments = self._assignments(node_id)
                serialized = assignments.SerializeToString(deterministic=True)
                if serialized != told or not told:
                    response.assignments.CopyFrom(assignments)
                    told = serialized or b"none"
                yield response
        finally:
            for future in (beat, moved):
                if future:
                    future.cancel()
            if node_id:
                self._members.stream_ended(node_id, stream)

    def _take(self, request: pb.HeartbeatRequest, node_id: NodeId, stream: object) -> None:
        disks = tuple(convert.disk_from(disk) for disk in request.disks)
        epochs = {GroupId(held.group_id): held.epoch for held in request.epochs}
        staging = convert.staging_from(request.staging) if request.HasField("staging") else None
        self._members.beat(node_id, disks, stream, epochs, staging)

    def _assignments(self, node_id: NodeId) -> pb.Assignments:
        groups = self._groups_by_node().get(node_id, [])
        named = {member for group in groups for member in group.members}
        return pb.Assignments(
            groups=[convert.group_to(group) for group in groups],
            nodes=[convert.node_to(self._addressed(member)) for member in sorted(named)],
            pools=[convert.pool_to(self._members.pool(name)) for name in sorted({group.pool for group in groups})],
            draining_disk_ids=self._closed_disks(node_id) if node_id else [],
        )

    def _closed_disks(self, node_id: NodeId) -> list[DiskId]:
        """Those that take nothing new; also one that was given up, should it come back after all."""
        return sorted({*self._members.draining_disks(node_id), *self._members.retired_disks(node_id)})

    def _groups_by_node(self) -> dict[NodeId, list[Group]]:
        """Made once for each change of the map, however many nodes follow it (P20)."""
        number = self._controller.map.number
        if self._sorted_at != number:
            self._sorted = {}
            for group in self._members.groups():
                for member in group.members:
                    self._sorted.setdefault(member, []).append(group)
            self._sorted_at = number
        return self._sorted

    def _addressed(self, node_id: NodeId) -> Node:
        """A node as its peers need to know it: where it is. How full it is changes all the time, and is not their
        business.
        """
        known = replace(self._members.node(node_id), disks=(), staging=None)
        return replace(known, last_seen_unix_ms=0, state=NodeState.DOWN, flapping=False)

    async def report_member(self, request: pb.ReportMemberRequest) -> pb.ReportMemberResponse:
        node_id = NodeId(request.node_id)
        self._members.authenticate(node_id, request.node_key)
        self._controller.failover.report(
            node_id,
            GroupId(request.group_id),
            request.epoch,
            NodeId(request.member_id),
            slow=request.trouble == pb.MEMBER_TROUBLE_SLOW,
            why=request.detail[:500],
        )
        return pb.ReportMemberResponse()

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


async def _next(requests: AsyncIterator[pb.HeartbeatRequest]) -> pb.HeartbeatRequest | None:
    """None at the end."""
    return await anext(requests, None)
