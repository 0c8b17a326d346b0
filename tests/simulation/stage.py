"""A cluster for schedules that need exact timing: nothing befalls it by chance, and a test says what happens when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.cluster import Group
from sdrs_core.ids import JobName, NodeId
from tests.simulation.client import Control, Rank
from tests.simulation.controller import ControllerProcess
from tests.simulation.metastore import StoreServer
from tests.simulation.people import POOL, Operator
from tests.simulation.story import nodes_up, until
from tests.simulation.world import Outcome, World, undisturbed

JOB = JobName("job")
FIRST = Attempt("run", 1, "test")


class Stage:
    def __init__(self, world: World) -> None:
        self.world = world
        self.operator = Operator(world)

    @property
    def leader(self) -> ControllerProcess:
        [leader] = [one for one in self.world.leaders if not one.process.is_paused]
        return leader

    @property
    def store(self) -> StoreServer:
        assert self.world.store
        return self.world.store

    def groups(self) -> dict[str, Group]:
        """As they are on record."""
        return {group.id: group for group in self.world.checks.groups.values()}

    def epochs(self) -> dict[str, int]:
        return {group_id: group.epoch for group_id, group in self.groups().items()}

    def rank(self, rank: int = 0, world_size: int = 1) -> Rank:
        world = self.world
        control = Control(world.network, world.process(f"rank-{rank}"), world.controller_names, world.chance("rank"))
        return Rank(control, JOB, POOL, rank, world_size, world.chance("pauses"), world.checks.acknowledge)

    def begin_saving(self, rank: Rank, step: int, attempt: Attempt = FIRST) -> asyncio.Task[Save]:
        return rank.control.process.spawn(rank.save(attempt, step))

    def begin_restoring(self, rank: Rank) -> asyncio.Task[tuple[Save, list[bytes]] | None]:
        return rank.control.process.spawn(rank.restore())

    async def save(self, step: int) -> Save:
        return await self.begin_saving(self.rank(), step)

    def committed(self) -> list[Save]:
        return [save for save in self.world.checks.saves.values() if save.state is SaveState.COMMITTED]

    def holding(self, save: Save) -> set[NodeId]:
        """Whose disks have all of the save's blobs."""
        blobs = [blob.id for shard in self.world.checks.shards[save.save_id].values() for blob in shard.blobs]
        return {
            node_id
            for node_id, platter in self.world.platters.items()
            if all(any(key.blob_id == blob for key in platter.fragments) for blob in blobs)
        }

    async def until_asked(self, method: str) -> tuple[str, Any]:
        """Who is asked for ``method`` next, and what; at the moment when that is sent."""
        asked = asyncio.get_running_loop().create_future()
        before = self.world.network.on_request

        def on_request(sender: str, address: str, sent: str, request: Any) -> None:
            before(sender, address, sent, request)
            if sent == method and not asked.done():
                self.world.network.on_request = before
                asked.set_result((address, request))

        self.world.network.on_request = on_request
        found: tuple[str, Any] = await asked
        return found


def perform(script: Callable[[Stage], Coroutine[Any, Any, None]], *, mirrors: int = 2) -> Outcome:
    """Play ``script`` on four nodes and two controllers; all invariants are checked on the way."""
    with undisturbed():
        outcome = _perform(script, mirrors)
    assert not outcome.failure, outcome.failure
    return outcome


def _perform(script: Callable[[Stage], Coroutine[Any, Any, None]], mirrors: int) -> Outcome:
    world = World(0, node_count=4, controller_count=2, keeps_trace=True)

    async def story() -> None:
        world.start_all()
        stage = Stage(world)
        await until(lambda: nodes_up(world) == 4, "all nodes are up")
        await stage.operator.create_pool(mirrors, allow_degraded=False)
        await script(stage)

    return world.run(story())
