"""A controller of a few lines, for tests of real storage nodes: groups change when the test says so, and not before.

It serves what a node needs of a controller: its cluster, its registration, its heartbeats with the groups that the test
told, and it keeps the receipts and reports that come in. ``tell`` returns once every node acts on what it was told: a
test that went on earlier would sometimes try the old map.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from sdrs_core.cluster import Disk, Group, Node, Pool
from sdrs_core.errors import SdrsError
from sdrs_core.ids import GroupId, NodeId, PoolName, random_id
from sdrs_proto import convert
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import CONTROL, MEMBERSHIP, handler
from sdrs_proto.status import to_status
from sdrs_proto.v1 import checkpoint_pb2, control_pb2, membership_pb2
from sdrs_storaged.rpc.edge import serve
from tests.support.waiting import wait_for

POOL = PoolName("told")
_BEAT_MS = 200  # nodes tell at once when they adopt something


def group_of(group_id: str, epoch: int, *members: str, pool: PoolName = POOL) -> Group:
    """The first of ``members`` is the primary."""
    ids = tuple(NodeId(member) for member in members)
    return Group(GroupId(group_id), pool, epoch, ids, ids[0])


class MapTeller:
    def __init__(self) -> None:
        self.address = ""
        self.cluster_id = random_id()
        self.nodes: dict[NodeId, Node] = {}
        # Told with the groups; of one that is not here nothing is told, and every member stores a copy.
        self.pools: dict[PoolName, Pool] = {}
        self.registration_count = 0
        self.receipts: list[membership_pb2.Receipt] = []
        self.reports: list[membership_pb2.ReportMemberRequest] = []
        # What is answered to the next receipts; None: they are taken.
        self.refusal: SdrsError | None = None
        # What nodes say of their disks, and which of these they are told to drain.
        self.disks: dict[NodeId, list[Disk]] = {}
        self._draining: set[str] = set()
        self._groups: dict[GroupId, Group] = {}
        self._number = 1  # of the map; it rises with each change, for each node in a group of its own
        self._heard: dict[NodeId, dict[str, int]] = defaultdict(dict)
        self._withheld: set[NodeId] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()

    # What a test says and sees

    def tell(self, *groups: Group, without: Sequence[str] = ()) -> None:
        """Change these groups and tell all nodes; wait until they act on it, but not for those that cannot."""
        self._on_loop(lambda: self._change(groups))
        number = self._number
        for node_id in self.nodes.keys() - self._withheld - {NodeId(name) for name in without}:
            wait_for(partial(self._acts_on, node_id, number), f"{node_id} to act on map {number}", 30)

    def drain(self, *disk_ids: str) -> None:
        """These disks and no others."""
        self._draining = set(disk_ids)
        self.tell()

    @contextmanager
    def withholding(self, node_id: str) -> Iterator[None]:
        """The node is told of no change meanwhile, as if it were cut off."""
        self._on_loop(lambda: self._withheld.add(NodeId(node_id)))
        try:
            yield
        finally:
            self.release(node_id)

    def release(self, node_id: str) -> None:
        self._on_loop(lambda: self._withheld.discard(NodeId(node_id)))
        self.tell()

    def _acts_on(self, node_id: NodeId, number: int) -> bool:
        """Whether the node has persisted and taken over the map with this number, by its own word."""
        return self.epoch_at(node_id, _marker(node_id)) >= number

    def epoch_at(self, node_id: str, group_id: str) -> int:
        return self._heard[NodeId(node_id)].get(group_id, 0)

    # What nodes see

    async def get_cluster(self, request: control_pb2.GetClusterRequest) -> control_pb2.GetClusterResponse:
        return control_pb2.GetClusterResponse(cluster_id=self.cluster_id)

    async def register_node(self, request: membership_pb2.RegisterNodeRequest) -> membership_pb2.RegisterNodeResponse:
        node = convert.node_from(request.node)
        is_moved = self.nodes.get(node.id) != node
        self.nodes[node.id] = node
        self.registration_count += 1
        self._heard.pop(node.id, None)
        if is_moved:
            self._change(())
        return membership_pb2.RegisterNodeResponse(
            cluster_id=self.cluster_id, authority=self._authority(), heartbeat_interval_ms=_BEAT_MS
        )

    async def heartbeat(
        self, requests: AsyncIterator[membership_pb2.HeartbeatRequest]
    ) -> AsyncIterator[membership_pb2.HeartbeatResponse]:
        node_id = NodeId("")
        told = 0

        async def listen() -> None:
            nonlocal node_id
            async for request in requests:
                node_id = NodeId(request.node_id)
                self.disks[node_id] = [convert.disk_from(disk) for disk in request.disks]
                self._heard[node_id] = {held.group_id: held.epoch for held in request.epochs}
                beaten.set()

        beaten = asyncio.Event()
        listening = asyncio.ensure_future(listen())
        try:
            while not listening.done():
                waits = [asyncio.ensure_future(event.wait()) for event in (beaten, self._changed)]
                try:
                    await asyncio.wait([*waits, listening], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                if not node_id:
                    continue
                beaten.clear()
                response = membership_pb2.HeartbeatResponse(authority=self._authority())
                if told != self._number and node_id not in self._withheld:
                    told = self._number
                    response.assignments.CopyFrom(self._assignments(node_id))
                yield response
        finally:
            listening.cancel()

    async def register_receipts(
        self, request: membership_pb2.RegisterReceiptsRequest
    ) -> membership_pb2.RegisterReceiptsResponse:
        outcomes = []
        for receipt in request.receipts:
            if self.refusal is not None:
                outcomes.append(membership_pb2.ReceiptOutcome(status=to_status(self.refusal).SerializeToString()))
            else:
                self.receipts.append(receipt)
                outcomes.append(membership_pb2.ReceiptOutcome(state=checkpoint_pb2.SAVE_STATE_COMMITTED))
        return membership_pb2.RegisterReceiptsResponse(outcomes=outcomes)

    async def report_member(self, request: membership_pb2.ReportMemberRequest) -> membership_pb2.ReportMemberResponse:
        self.reports.append(request)
        return membership_pb2.ReportMemberResponse()

    def _authority(self) -> membership_pb2.Authority:
        return membership_pb2.Authority(incarnation=1, term=1, revision=self._number)

    def _assignments(self, node_id: NodeId) -> membership_pb2.Assignments:
        mine = [group for group in self._groups.values() if node_id in group.members]
        marker = group_of(_marker(node_id), self._number, node_id)
        return membership_pb2.Assignments(
            groups=[convert.group_to(group) for group in [*mine, marker]],
            nodes=[convert.node_to(node) for node in self.nodes.values()],
            pools=[convert.pool_to(pool) for pool in self.pools.values()],
            draining_disk_ids=sorted(self._draining),
        )

    def _change(self, groups: Sequence[Group]) -> None:
        self._groups |= {group.id: group for group in groups}
        self._number += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # Its own thread and event loop

    def _on_loop(self, work: Callable[[], None]) -> None:
        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    def _serve_forever(self, ready: threading.Event, stop: asyncio.Event) -> None:
        async def run() -> None:
            server = grpc.aio.server(options=CHANNEL_OPTIONS)
            handlers: list[Any] = [handler(CONTROL, self, serve), handler(MEMBERSHIP, self, serve)]
            server.add_generic_rpc_handlers(handlers)
            self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            ready.set()
            await stop.wait()
            await server.stop(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self._loop.run_until_complete(run())

    @contextmanager
    def serving(self) -> Iterator[MapTeller]:
        ready, stop = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=self._serve_forever, args=(ready, stop), name="map-teller")
        thread.start()
        try:
            assert ready.wait(30), "the teller did not start"
            yield self
        finally:
            self._on_loop(stop.set)
            thread.join(30)
            self._loop.close()


def _marker(node_id: str) -> str:
    return f"map-of:{node_id}"
