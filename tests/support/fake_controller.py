"""A controller of a few canned answers on a real socket: for what operators see when a real one is hard to bring there.

It keeps what it was asked, and raises what the test puts into ``failures``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from sdrs_core.cluster import Disk, DiskState, Endpoints, Group, Node, NodeState, Pool
from sdrs_core.errors import NotFoundError, SdrsError
from sdrs_core.ids import DiskId, GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_proto.convert import disk_to, group_to, node_to, pool_from, pool_to
from sdrs_proto.services import CONTROL, Method, handler
from sdrs_proto.status import DETAILS_KEY, code_of, to_status
from sdrs_proto.v1 import control_pb2 as pb

EVENT_UNIX_MS = 1_700_000_000_000


def make_node(number: int, state: NodeState = NodeState.UP, **facts: Any) -> Node:
    name = f"node-{number}"
    ends = Endpoints(grpc=f"127.0.0.1:{number}", data=f"127.0.0.1:{number}", unix="", metrics="", host="h")
    disk = Disk(DiskId(f"d{number}"), "/data", DiskState.OK, capacity_bytes=100, used_bytes=10, fragment_count=1)
    return Node(NodeId(name), ends, name, pid=1000 + number, version="1", state=state, disks=(disk,), **facts)


def make_group(primary: int = 1, *, problem: str = "", epoch: int = 3) -> Group:
    members = (NodeId("node-1"), NodeId("node-2"))
    return Group(
        GroupId("fast-1"), PoolName("fast"), epoch, members, NodeId(f"node-{primary}"), home=members, problem=problem
    )


def make_event(number: int, **facts: Any) -> pb.ClusterEvent:
    given = {"kind": "primary_promoted", "group_id": "fast-1", "node_id": "node-2", "pool": "fast", "epoch": number}
    return pb.ClusterEvent(
        id=str(number),
        unix_ms=EVENT_UNIX_MS + number,
        duration_ms=420,
        text=f"node-2 took over from node-1 ({number})",
        **{**given, **facts},
    )


class FakeController:
    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.failures: dict[str, SdrsError] = {}
        self.cluster = pb.GetClusterResponse(cluster_id="c", version="1", term=2, controller_pid=7, store="sqlite")
        self.nodes = [make_node(1), make_node(2), make_node(3)]
        self.groups = [make_group()]
        self.events = [make_event(number) for number in range(5, 0, -1)]
        self.pools = [pool_to(Pool(PoolName("fast"), Level.L2, mirrors=2))]
        self.lost: list[Any] = []
        # What is left on a node or disk each time it is asked for; the last one stays.
        self.held: list[tuple[int, int]] = [(0, 0)]
        self.disks = [pb.NodeDisk(node_id=node.id, disk=disk_to(node.disks[0])) for node in self.nodes]
        self.repair = pb.GetRepairResponse(settings=pb.RepairSettings(concurrency=2))
        self.scrub = pb.GetScrubResponse()
        self.catalog = [b"catalog of ", b"a cluster"]
        self.progress: list[pb.RebuildMetaResponse] = []
        self.url = ""

    def asked(self, method: str) -> Any:
        """The last request of this kind."""
        return next(request for name, request in reversed(self.requests) if name == method)

    def get_cluster(self, request: pb.GetClusterRequest) -> pb.GetClusterResponse:
        return self.cluster

    def list_nodes(self, request: pb.ListNodesRequest) -> pb.ListNodesResponse:
        return pb.ListNodesResponse(nodes=[node_to(node) for node in self.nodes])

    def get_node(self, request: pb.GetNodeRequest) -> pb.GetNodeResponse:
        count, size_bytes = self._left()
        node = node_to(self._node(request.node_id))
        return pb.GetNodeResponse(node=node, held_count=count, held_bytes=size_bytes)

    def _left(self) -> tuple[int, int]:
        return self.held.pop(0) if len(self.held) > 1 else self.held[0]

    def list_pools(self, request: pb.ListPoolsRequest) -> pb.ListPoolsResponse:
        return pb.ListPoolsResponse(pools=self.pools)

    def get_pool(self, request: pb.GetPoolRequest) -> pb.GetPoolResponse:
        return pb.GetPoolResponse(pool=next(pool for pool in self.pools if pool.name == request.name))

    def create_pool(self, request: pb.CreatePoolRequest) -> pb.CreatePoolResponse:
        self.pools.append(pool_to(pool_from(request.pool)))
        return pb.CreatePoolResponse(pool=request.pool)

    def update_pool(self, request: pb.UpdatePoolRequest) -> pb.UpdatePoolResponse:
        return pb.UpdatePoolResponse(pool=self.pools[0])

    def delete_pool(self, request: pb.DeletePoolRequest) -> pb.DeletePoolResponse:
        return pb.DeletePoolResponse()

    def drain_node(self, request: pb.DrainNodeRequest) -> pb.DrainNodeResponse:
        node = node_to(self._node(request.node_id))
        node.draining = not request.cancel
        return pb.DrainNodeResponse(node=node)

    def remove_node(self, request: pb.RemoveNodeRequest) -> pb.RemoveNodeResponse:
        self._node(request.node_id)
        return pb.RemoveNodeResponse(lost=self.lost)

    def check_node(self, request: pb.CheckNodeRequest) -> pb.CheckNodeResponse:
        self._node(request.node_id)
        return pb.CheckNodeResponse(why=f"node {request.node_id} may go")

    def list_disks(self, request: pb.ListDisksRequest) -> pb.ListDisksResponse:
        return pb.ListDisksResponse(disks=[d for d in self.disks if request.node_id in ("", d.node_id)])

    def drain_disk(self, request: pb.DrainDiskRequest) -> pb.DrainDiskResponse:
        return pb.DrainDiskResponse(disk=self._disk(request.disk_id))

    def replace_disk(self, request: pb.ReplaceDiskRequest) -> pb.ReplaceDiskResponse:
        self._disk(request.disk_id)
        return pb.ReplaceDiskResponse(blob_count=7, lost=self.lost)

    def get_repair(self, request: pb.GetRepairRequest) -> pb.GetRepairResponse:
        return self.repair

    def set_repair(self, request: pb.SetRepairRequest) -> pb.SetRepairResponse:
        if request.HasField("bytes_per_second"):
            self.repair.settings.bytes_per_second = request.bytes_per_second
        if request.HasField("concurrency"):
            self.repair.settings.concurrency = request.concurrency
        return pb.SetRepairResponse(settings=self.repair.settings)

    def get_scrub(self, request: pb.GetScrubRequest) -> pb.GetScrubResponse:
        return self.scrub

    def list_jobs(self, request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        return pb.ListJobsResponse()

    def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        found = [group_to(group) for group in self.groups if request.pool in ("", group.pool)]
        return pb.ListGroupsResponse(groups=found)

    def get_group(self, request: pb.GetGroupRequest) -> pb.GetGroupResponse:
        group = self._group(request.group_id)
        nodes = [node_to(node) for node in self.nodes if node.id in group.members]
        return pb.GetGroupResponse(group=group_to(group), nodes=nodes, member_epochs=[3, 2], events=self.events[:2])

    def switchover(self, request: pb.SwitchoverRequest) -> pb.SwitchoverResponse:
        self._group(request.group_id)
        return pb.SwitchoverResponse(group=group_to(make_group(primary=2, epoch=4)))

    def failover(self, request: pb.FailoverRequest) -> pb.FailoverResponse:
        self._group(request.group_id)
        return pb.FailoverResponse(group=group_to(make_group(primary=2, epoch=4)), lost=self.lost)

    def set_automatic(self, request: pb.SetAutomaticRequest) -> pb.SetAutomaticResponse:
        return pb.SetAutomaticResponse()

    def set_cordon(self, request: pb.SetCordonRequest) -> pb.SetCordonResponse:
        node = node_to(self._node(request.node_id))
        node.cordoned = request.cordoned
        node.cordoned_because = request.reason
        return pb.SetCordonResponse(node=node)

    def list_events(self, request: pb.ListEventsRequest) -> pb.ListEventsResponse:
        begin = int(request.page_token or 0)
        end = begin + request.page_size
        token = str(end) if end < len(self.events) else ""
        return pb.ListEventsResponse(events=self.events[begin:end], next_page_token=token)

    def export_meta(self, request: pb.ExportMetaRequest) -> Iterator[pb.MetaChunk]:
        for data in self.catalog:
            yield pb.MetaChunk(data=data)
        if "half_export" in self.failures:
            raise self.failures["half_export"]

    def import_meta(self, requests: Iterator[pb.MetaChunk]) -> pb.ImportMetaResponse:
        self.catalog = [chunk.data for chunk in requests]
        return pb.ImportMetaResponse(cluster_id="imported", incarnation=2, record_count=9)

    def rebuild_meta(self, request: pb.RebuildMetaRequest) -> Iterator[pb.RebuildMetaResponse]:
        yield from self.progress

    def _group(self, group_id: str) -> Group:
        found = next((group for group in self.groups if group.id == group_id), None)
        if found is None:
            raise NotFoundError(f'group "{group_id}" does not exist')
        return found

    def _node(self, node_id: str) -> Node:
        found = next((node for node in self.nodes if node.id == node_id), None)
        if found is None:
            raise NotFoundError(f'node "{node_id}" does not exist')
        return found

    def _disk(self, disk_id: str) -> pb.NodeDisk:
        found = next((disk for disk in self.disks if disk.disk.id.startswith(disk_id)), None)
        if found is None:
            raise NotFoundError(f'disk "{disk_id}" does not exist')
        return found

    def wrap(self, method: Method, behavior: Any) -> Any:
        """As the daemon's edge does it: requests are decoded, errors become status."""
        if method.shape.startswith("stream"):

            def collecting(raws: Iterator[bytes], context: grpc.ServicerContext) -> Any:
                return self._answer(method, context, lambda: behavior(map(method.decode_request, raws)))

            return collecting
        if method.shape.endswith("stream"):

            def streaming(raw: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
                try:
                    yield from self._answer(method, context, lambda: behavior(self._keep(method, raw)))
                except SdrsError as error:
                    _abort(context, error)

            return streaming

        def unary(raw: bytes, context: grpc.ServicerContext) -> Any:
            return self._answer(method, context, lambda: behavior(self._keep(method, raw)))

        return unary

    def _keep(self, method: Method, raw: bytes) -> Any:
        request = method.decode_request(raw)
        self.requests.append((method.python_name, request))
        return request

    def _answer(self, method: Method, context: grpc.ServicerContext, behavior: Any) -> Any:
        try:
            if method.python_name in self.failures:
                raise self.failures[method.python_name]
            return behavior()
        except SdrsError as error:
            _abort(context, error)


def _abort(context: grpc.ServicerContext, error: SdrsError) -> None:
    context.set_trailing_metadata(((DETAILS_KEY, to_status(error).SerializeToString()),))
    context.abort(code_of(error), error.message)


@contextmanager
def serving(controller: FakeController) -> Iterator[FakeController]:
    with ThreadPoolExecutor(4) as workers:
        server = grpc.server(workers)
        server.add_generic_rpc_handlers((handler(CONTROL, controller, controller.wrap),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        controller.url = f"sdrs://127.0.0.1:{port}"
        try:
            yield controller
        finally:
            server.stop(None).wait(10)
