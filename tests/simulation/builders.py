"""Operators who rebuild the cluster while it is used: nodes and disks come and go, the pool stores in another way."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sdrs_core.cluster import DiskState, Pool
from sdrs_core.codes import Code
from sdrs_core.errors import NotFoundError
from sdrs_core.ids import JobName, NodeId, random_id
from sdrs_core.levels import Level
from sdrs_proto import convert
from sdrs_proto.v1 import control_pb2 as pb
from tests.simulation.operators import SECOND_POOL, Command, Operator
from tests.simulation.people import POOL

_MAX_NODES = 9
_REMOVE_SECONDS = 20.0
_CODES = (Code(2, 1), Code(2, 2), Code(3, 2), Code(4, 2))


class Builder(Operator):
    _PAUSE_SECONDS = (0.2, 1.5)

    def _commands(self) -> tuple[Command, ...]:
        return (
            *super()._commands(),
            *3 * (self._drain,),
            self._cancel_drain,
            *3 * (self._remove,),
            *2 * (self._add,),
            *3 * (self._convert,),
            self._shrink,
            self._expand,
            *2 * (self._drain_disk,),
            self._replace_disk,
            self._scrub,
            self._question,
        )

    @property
    def _pool(self) -> Pool:
        return self._world.checks.pools[POOL]

    def _draining(self) -> list[NodeId]:
        return sorted(node.id for node in self._world.checks.nodes.values() if node.draining)

    def _any_node(self) -> NodeId:
        return self._random.choice(sorted(self._world.checks.nodes))

    # Nodes

    async def _drain(self, jobs: list[JobName]) -> None:
        await self._ask("drain_node", pb.DrainNodeRequest(request_id=random_id(), node_id=self._any_node()))

    async def _cancel_drain(self, jobs: list[JobName]) -> None:
        if self._draining():
            node_id = self._random.choice(self._draining())
            await self._ask("drain_node", pb.DrainNodeRequest(request_id=random_id(), node_id=node_id, cancel=True))

    async def _remove(self, jobs: list[JobName]) -> None:
        """Mostly one that is drained, or gone for good."""
        likely = [*self._draining(), *sorted(self._world.checks.wrecked)]
        await self.remove(self._random.choice(likely or [self._any_node()]))

    async def remove(self, node_id: NodeId) -> None:
        """The machine is switched off once it is off the record, and sometimes a while later."""
        self._world.note(f"operator asks remove_node {node_id}")
        request = pb.RemoveNodeRequest(request_id=random_id(), node_id=node_id)
        with suppress(NotFoundError):  # by an earlier try, whose answer was lost
            await self.control.call("remove_node", request, patience_seconds=2.0, timeout_seconds=_REMOVE_SECONDS)
        if node_id in self._world.checks.wrecked:
            # Whoever is there under its name is another one, which was kept out by its key until now (P2).
            self._world.checks.wrecked.discard(node_id)
        else:
            late_seconds = self._random.choice((0.0, 0.0, 3.0))
            asyncio.get_running_loop().call_later(late_seconds, self._switch_off, node_id)

    def _switch_off(self, node_id: NodeId) -> None:
        # It may have joined again meanwhile.
        if node_id not in self._world.checks.nodes and node_id in self._world.node_names:
            self._world.retire_node(node_id)

    async def _add(self, jobs: list[JobName]) -> None:
        if len(self._world.node_names) < _MAX_NODES:
            self.add_node()

    def add_node(self) -> None:
        """A fresh one; or one that was removed, as it was or wiped, under its old name."""
        gone = sorted(self._world.removed)
        if gone and self._random.random() < 0.7:
            self._world.return_node(self._random.choice(gone), is_wiped=self._random.random() < 0.5)
        else:
            self._world.start_node(self._world.new_node(has_own_domain=self._random.random() < 0.5))

    async def _question(self, jobs: list[JobName]) -> None:
        question = self._random.choice((pb.NODE_QUESTION_OK_TO_STOP, pb.NODE_QUESTION_SAFE_TO_DESTROY))
        await self._ask("check_node", pb.CheckNodeRequest(node_id=self._any_node(), question=question))

    # Disks

    async def _drain_disk(self, jobs: list[JobName]) -> None:
        disks = (await self._ask("list_disks", pb.ListDisksRequest())).disks
        draining = [found for found in disks if convert.disk_from(found.disk).state is DiskState.DRAINING]
        if draining and self._random.random() < 0.6:
            disk_id = self._random.choice(draining).disk.id
            await self._ask("drain_disk", pb.DrainDiskRequest(request_id=random_id(), disk_id=disk_id, cancel=True))
        elif disks:
            disk_id = self._random.choice(disks).disk.id
            await self._ask("drain_disk", pb.DrainDiskRequest(request_id=random_id(), disk_id=disk_id))

    async def _replace_disk(self, jobs: list[JobName]) -> None:
        await self.give_up_disks()

    async def give_up_disks(self) -> None:
        """Those that are really gone: until an operator says so, each of them may come back with all that it had."""
        disks = (await self._ask("list_disks", pb.ListDisksRequest())).disks
        for found in disks:
            if found.absent and found.disk.id in self._world.checks.destroyed:
                await self._ask("replace_disk", pb.ReplaceDiskRequest(request_id=random_id(), disk_id=found.disk.id))

    async def _scrub(self, jobs: list[JobName]) -> None:
        depth = self._random.choice((pb.SCRUB_DEPTH_SHALLOW, pb.SCRUB_DEPTH_DEEP))
        await self._ask("start_scrub", pb.StartScrubRequest(request_id=random_id(), depth=depth))

    # How the pool stores

    async def _convert(self, jobs: list[JobName]) -> None:
        await self._ask("update_pool", self._conversion())

    def _conversion(self) -> pb.UpdatePoolRequest:
        shape = self._world.shape
        request = pb.UpdatePoolRequest(request_id=random_id(), name=POOL)
        if self._pool.level is Level.L3 and self._random.random() < 0.4:
            request.level, request.mirrors = convert.level_to(Level.L2), self._random.choice((2, 2, 3))
            return request
        code = self._random.choice((shape.code or _CODES[0], *_CODES))
        request.level = convert.level_to(Level.L3)
        request.data_fragments, request.parity_fragments = code.data, code.parity
        if shape.mirror_ratio:
            request.mirror_pool, request.mirror_ratio = SECOND_POOL, self._random.choice((0.0, shape.mirror_ratio))
        return request

    async def _shrink(self, jobs: list[JobName]) -> None:
        request = pb.UpdatePoolRequest(request_id=random_id(), name=POOL, remove_node_ids=[self._any_node()])
        await self._ask("update_pool", request)

    async def _expand(self, jobs: list[JobName]) -> None:
        outside = sorted(node_id for node_id in self._world.checks.nodes if not self._pool.has_node(node_id))
        if outside:
            request = pb.UpdatePoolRequest(
                request_id=random_id(), name=POOL, add_node_ids=[self._random.choice(outside)]
            )
            await self._ask("update_pool", request)

    # At the end

    async def put_right(self) -> None:
        """Take back what was done by hand, but for one node that goes on being drained, if the others suffice."""
        await super().put_right()
        while len(self._domains_without(None)) < self._pool.member_count:
            self._world.start_node(self._world.new_node(has_own_domain=True))
            await asyncio.sleep(1.0)
        await self._insist_until_done("update_pool", self._whole_pool())
        for node_id in self._draining():
            if not self._stays_draining(node_id):
                request = pb.DrainNodeRequest(request_id=random_id(), node_id=node_id, cancel=True)
                await self._insist_until_done("drain_node", request)
        for found in (await self._insist("list_disks", pb.ListDisksRequest())).disks:
            if convert.disk_from(found.disk).state is DiskState.DRAINING:
                undone = pb.DrainDiskRequest(request_id=random_id(), disk_id=found.disk.id, cancel=True)
                await self._insist_until_done("drain_disk", undone)

    def _whole_pool(self) -> pb.UpdatePoolRequest:
        outside = sorted(node_id for node_id in self._world.checks.nodes if not self._pool.has_node(node_id))
        return pb.UpdatePoolRequest(request_id=random_id(), name=POOL, add_node_ids=outside)

    def _domains_without(self, node_id: NodeId | None) -> set[str]:
        """Of the nodes that are there to stay."""
        nodes, gone = self._world.checks.nodes, {node_id, *self._world.checks.wrecked}
        return {nodes[name].domain for name in self._world.node_names if name in nodes and name not in gone}

    def _stays_draining(self, node_id: NodeId) -> bool:
        is_one = node_id == self._draining()[0] and node_id not in self._world.checks.wrecked
        return is_one and len(self._domains_without(node_id)) >= self._pool.member_count

    def leaving(self) -> list[NodeId]:
        """Who is still to be removed."""
        nodes = self._world.checks.nodes
        return sorted(node_id for node_id in {*self._draining(), *self._world.checks.wrecked} if node_id in nodes)
