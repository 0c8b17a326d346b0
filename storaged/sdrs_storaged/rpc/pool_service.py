"""The part of the service ``Control`` that is about pools: made, seen, changed, deleted."""

from __future__ import annotations

from sdrs_core.codes import Code, check_code
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.pools import PoolChange
from sdrs_proto import convert
from sdrs_proto.v1 import cluster_pb2
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.rpc.edge import page_size

_RETENTION = ("keep_last", "keep_every_steps", "max_age_seconds")
_PLAIN = ("mirrors", "allow_degraded", "mirror_pool", "mirror_ratio", "quota_bytes")


class PoolService:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._members = controller.members
        self._pools = controller.pools

    async def create_pool(self, request: pb.CreatePoolRequest) -> pb.CreatePoolResponse:
        pool = await self._pools.create(convert.pool_from(request.pool), request.request_id)
        return pb.CreatePoolResponse(pool=self._pool(pool.name))

    async def list_pools(self, request: pb.ListPoolsRequest) -> pb.ListPoolsResponse:
        pools = [pool for pool in self._members.pools() if pool.name > request.page_token]
        page = pools[: page_size(request.page_size)]
        token = page[-1].name if len(page) < len(pools) else ""
        return pb.ListPoolsResponse(pools=[self._pool(pool.name) for pool in page], next_page_token=token)

    async def get_pool(self, request: pb.GetPoolRequest) -> pb.GetPoolResponse:
        groups = self._members.with_problems(self._members.groups(pool=request.name))
        return pb.GetPoolResponse(pool=self._pool(request.name), groups=[convert.group_to(group) for group in groups])

    async def update_pool(self, request: pb.UpdatePoolRequest) -> pb.UpdatePoolResponse:
        await self._pools.update(request.name, _change_from(request))
        # What the new policy asks for is looked for now.
        self._controller.repairer.poke()
        return pb.UpdatePoolResponse(pool=self._pool(request.name))

    async def delete_pool(self, request: pb.DeletePoolRequest) -> pb.DeletePoolResponse:
        tally = self._controller.tally
        await self._pools.delete(
            request.name,
            checkpoint_count=tally.saves_by_pool[PoolName(request.name)],
            mirror_count=tally.mirrors_in[request.name],
        )
        return pb.DeletePoolResponse()

    def _pool(self, name: str) -> cluster_pb2.Pool:
        pool, tally = self._members.pool(name), self._controller.tally
        return convert.pool_to(
            pool,
            layout=self._members.layout(pool.name).value.number,
            # Running totals: while the store leaves a change unanswered they may be short of it.
            checkpoint_count=max(0, tally.saves_by_pool[pool.name]),
            used_bytes=max(0, tally.bytes_by_pool[pool.name]),
            mirrored_count=max(0, tally.mirrored_saves[pool.name]),
            mirrored_bytes=max(0, tally.mirrored_bytes[pool.name]),
        )


def _change_from(request: pb.UpdatePoolRequest) -> PoolChange:
    given = {name: getattr(request, name) for name in _PLAIN if request.HasField(name)}
    return PoolChange(
        level=convert.level_from(request.level) if request.HasField("level") else None,
        code=_code_from(request),
        retention={name: getattr(request, name) for name in _RETENTION if request.HasField(name)},
        read_policy=convert.read_policy_from(request.read_policy) if request.HasField("read_policy") else None,
        add_nodes=tuple(NodeId(node_id) for node_id in request.add_node_ids),
        remove_nodes=tuple(NodeId(node_id) for node_id in request.remove_node_ids),
        **given,
    )


def _code_from(request: pb.UpdatePoolRequest) -> Code | None:
    if not request.HasField("data_fragments") and not request.HasField("parity_fragments"):
        return None
    if not (request.HasField("data_fragments") and request.HasField("parity_fragments")):
        raise InvalidArgumentError("data_fragments and parity_fragments go together")
    return check_code(request.data_fragments, request.parity_fragments)
