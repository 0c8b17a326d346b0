"""The part of the service ``Control`` that is about groups: the map for clients, moves and history for operators."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sdrs_core.ids import GroupId, NodeId
from sdrs_proto import convert
from sdrs_proto.limits import MAX_WAIT_MS
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.events import Event
from sdrs_storaged.rpc.edge import page_size

_DEFAULT_REASON = "by an operator"
_EVENTS_OF_A_GROUP = 10
_MAX_DRAIN_MS = 600_000


class OperationsService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._members = controller.members

    async def watch_map(self, request: pb.WatchMapRequest) -> pb.WatchMapResponse:
        cluster_map, term = self._controller.map, self._controller.records.term.number
        if request.known.term == term:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(request.wait_ms, MAX_WAIT_MS) / 1000):
                    await cluster_map.beyond(request.known.number)
        groups = self._members.groups(pool=request.pool)
        named = {member for group in groups for member in group.members}
        return pb.WatchMapResponse(
            version=pb.MapVersion(term=term, number=cluster_map.number),
            groups=[convert.group_to(group) for group in groups],
            nodes=[convert.node_to(self._members.node(node_id)) for node_id in sorted(named)],
        )

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        if request.pool:
            self._members.pool(request.pool)
        groups = [group for group in self._members.groups(pool=request.pool) if group.id > request.page_token]
        page = groups[: page_size(request.page_size)]
        token = page[-1].id if len(page) < len(groups) else ""
        told = [convert.group_to(group) for group in self._members.with_problems(page)]
        return pb.ListGroupsResponse(groups=told, next_page_token=token)

    async def get_group(self, request: pb.GetGroupRequest) -> pb.GetGroupResponse:
        [group] = self._members.with_problems([self._members.group(GroupId(request.group_id))])
        events, _ = await self._controller.events.page(
            group_id=group.id, node_id="", after="", limit=_EVENTS_OF_A_GROUP
        )
        return pb.GetGroupResponse(
            group=convert.group_to(group),
            nodes=[convert.node_to(self._members.node(member)) for member in group.members],
            member_epochs=[self._controller.detector.epoch_of(member, group.id) for member in group.members],
            events=[_event(event) for event in events],
        )

    async def switchover(self, request: pb.SwitchoverRequest) -> pb.SwitchoverResponse:
        group = await self._controller.moves.switchover(
            GroupId(request.group_id), request.to_node_id, min(request.drain_ms, _MAX_DRAIN_MS) / 1000
        )
        return pb.SwitchoverResponse(group=convert.group_to(group))

    async def failover(self, request: pb.FailoverRequest) -> pb.FailoverResponse:
        group, lost = await self._controller.moves.failover(
            GroupId(request.group_id), request.to_node_id, accept_data_loss=request.accept_data_loss
        )
        return pb.FailoverResponse(group=convert.group_to(group), lost=[convert.save_to(save) for save in lost])

    async def set_automatic(self, request: pb.SetAutomaticRequest) -> pb.SetAutomaticResponse:
        reason = request.reason[:500] or _DEFAULT_REASON
        await self._controller.moves.set_automatic(reason if request.paused else "")
        return pb.SetAutomaticResponse()

    async def set_cordon(self, request: pb.SetCordonRequest) -> pb.SetCordonResponse:
        node_id = NodeId(request.node_id)
        await self._controller.moves.set_cordon(node_id, cordoned=request.cordoned, because=request.reason)
        return pb.SetCordonResponse(node=convert.node_to(self._members.node(node_id)))

    async def list_events(self, request: pb.ListEventsRequest) -> pb.ListEventsResponse:
        events, token = await self._controller.events.page(
            group_id=request.group_id,
            node_id=request.node_id,
            after=request.page_token,
            limit=page_size(request.page_size),
        )
        if not events and not request.page_token:
            self._check_names(request)
        return pb.ListEventsResponse(events=[_event(event) for event in events], next_page_token=token)

    def _check_names(self, request: pb.ListEventsRequest) -> None:
        """Nothing happened to it, or there is no such thing: a slip of the pen must not read as peace."""
        if request.group_id:
            self._members.group(GroupId(request.group_id))
        if request.node_id:
            self._members.node(NodeId(request.node_id))


def _event(event: Event) -> pb.ClusterEvent:
    return pb.ClusterEvent(
        id=event.id,
        unix_ms=event.unix_ms,
        kind=event.kind,
        pool=event.pool,
        group_id=event.group_id,
        node_id=event.node_id,
        epoch=event.epoch,
        duration_ms=event.duration_ms,
        text=event.text,
    )
