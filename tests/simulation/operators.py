"""Operators and their commands: pools, groups, checkpoints; at bad moments too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from sdrs_core.cluster import Pool
from sdrs_core.errors import NotFoundError, SdrsError
from sdrs_core.ids import JobName, PoolName, random_id
from sdrs_core.levels import Level
from sdrs_proto import convert
from sdrs_proto.v1 import control_pb2 as pb
from tests.simulation.client import Control
from tests.simulation.people import POOL
from tests.simulation.world import World

SECOND_POOL = "second"
_PATIENCE_SECONDS = 60.0

Command = Callable[[list[JobName]], Awaitable[None]]


class Operator:
    """Types commands, at bad moments too; refusals are fine, surprises are not."""

    _PAUSE_SECONDS = (0.3, 3.0)

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.chance("operator")
        self.process = world.process("operator")
        self.control = Control(world.network, self.process, world.controller_names, self._random)

    async def create_pool(self) -> None:
        """As the shape says; one that shall be coded may begin with whole copies."""
        shape = self._world.shape
        if shape.mirror_ratio:
            await self._create(Pool(PoolName(SECOND_POOL), Level.L2, mirrors=2))
        pool = Pool(PoolName(POOL), Level.L2, mirrors=shape.mirrors, allow_degraded=shape.allow_degraded)
        if shape.code and shape.mirrors == 1:
            pool = replace(
                pool,
                level=Level.L3,
                data_fragments=shape.code.data,
                parity_fragments=shape.code.parity,
                mirror_pool=SECOND_POOL if shape.mirror_ratio else "",
                mirror_ratio=shape.mirror_ratio,
            )
        await self._create(pool)

    async def _create(self, pool: Pool) -> None:
        request = pb.CreatePoolRequest(request_id=random_id(), pool=convert.pool_to(pool))
        await self._insist("create_pool", request)

    def _commands(self) -> tuple[Command, ...]:
        deletes = (8 if self._world.shape.refers else 1) * (self._delete,)
        return (self._move, self._move, self._pause, self._cordon, self._degrade, *deletes)

    def _chosen_commands(self) -> list[Command]:
        told = self._world.commands
        return [one for one in self._commands() if not told or one.__name__.removeprefix("_") in told]

    async def work(self, jobs: list[JobName]) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(*self._PAUSE_SECONDS))
            try:
                await self._random.choice(self._chosen_commands())(jobs)
            except SdrsError as error:
                self._world.note(f"operator was told {error.reason}")

    async def _ask(self, method: str, request: Any) -> Any:
        self._world.note(f"operator asks {method}")
        return await self.control.call(method, request, patience_seconds=2.0, timeout_seconds=8.0)

    async def _move(self, jobs: list[JobName]) -> None:
        groups = (await self._ask("list_groups", pb.ListGroupsRequest())).groups
        if groups:
            group = self._random.choice(groups)
            to = self._random.choice(("", "", *self._world.node_names))
            named = {"request_id": random_id(), "group_id": group.id, "to_node_id": to}
            if self._random.random() < 0.7:
                await self._ask("switchover", pb.SwitchoverRequest(**named, drain_ms=500))
            else:
                await self._ask("failover", pb.FailoverRequest(**named))

    async def _pause(self, jobs: list[JobName]) -> None:
        is_paused = self._random.random() < 0.5
        await self._ask("set_automatic", pb.SetAutomaticRequest(request_id=random_id(), paused=is_paused))

    async def _cordon(self, jobs: list[JobName]) -> None:
        request = pb.SetCordonRequest(request_id=random_id(), node_id=self._random.choice(self._world.node_names))
        request.cordoned = self._random.random() < 0.4
        await self._ask("set_cordon", request)

    async def _degrade(self, jobs: list[JobName]) -> None:
        request = pb.UpdatePoolRequest(request_id=random_id(), name=POOL)
        request.allow_degraded = self._random.random() < 0.5
        await self._ask("update_pool", request)

    async def _delete(self, jobs: list[JobName]) -> None:
        job = self._random.choice(jobs)
        listing = await self._ask("list_checkpoints", pb.ListCheckpointsRequest(job=job, page_size=100))
        if len(listing.checkpoints) > 1:
            step = self._random.choice(listing.checkpoints[1:]).step
            if self._world.shape.refers and self._random.random() < 0.6:
                step = listing.checkpoints[-1].step  # which others are most likely to refer to
            self._world.checks.may_go.add((job, step))
            await self._ask("delete_checkpoint", pb.DeleteCheckpointRequest(request_id=random_id(), job=job, step=step))
            if self._random.random() < 0.3:
                await self._ask(
                    "undelete_checkpoint", pb.UndeleteCheckpointRequest(request_id=random_id(), job=job, step=step)
                )

    async def put_right(self) -> None:
        """Take back all that was done by hand."""
        await self._insist("set_automatic", pb.SetAutomaticRequest(request_id=random_id()))
        for node_id in sorted(self._world.checks.nodes):
            await self._insist_until_done("set_cordon", pb.SetCordonRequest(request_id=random_id(), node_id=node_id))

    async def _insist(self, method: str, request: Any) -> Any:
        return await self.control.call(method, request, patience_seconds=_PATIENCE_SECONDS)

    async def scrub(self) -> None:
        """Deep, once all nodes are there: what rotted is found by nothing else. One that is under way began before."""
        deep = pb.StartScrubRequest(request_id=random_id(), depth=pb.SCRUB_DEPTH_DEEP)
        while (found := await self._insist("get_scrub", pb.GetScrubRequest())).HasField("scrub"):
            if found.scrub.ended_unix_ms:
                break
            await asyncio.sleep(1.0)
        await self._insist_until_done("start_scrub", deep)

    async def _insist_until_done(self, method: str, request: Any) -> None:
        """Until nothing keeps it from being done: not refused, and not only because an answer was lost."""
        ends = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                await self._insist(method, request)
                return
            except NotFoundError:
                return  # what a former operator began is carried through: the node is removed meanwhile
            except SdrsError:
                if asyncio.get_running_loop().time() > ends:
                    raise
                await asyncio.sleep(1.0)
