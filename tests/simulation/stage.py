"""A cluster for schedules that need exact timing: nothing befalls it by chance, and a test says what happens when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from google.protobuf.message import Message

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Blob, Holder, Save, SaveState
from sdrs_core.cluster import Group
from sdrs_core.codes import MIRROR, Code
from sdrs_core.ids import JobName, NodeId, PoolName, random_id
from sdrs_core.levels import Level
from sdrs_proto import convert
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control.meta.store import Compare, Op, Put
from tests.simulation.client import Control, Rank, contents_of
from tests.simulation.controller import ControllerProcess
from tests.simulation.metastore import StoreServer
from tests.simulation.operators import Operator
from tests.simulation.people import POOL
from tests.simulation.shapes import Shape
from tests.simulation.story import nodes_up, until
from tests.simulation.world import Outcome, SimulationError, World, undisturbed

FOUR_NODES = Shape()
JOB = JobName("job")
FIRST = Attempt("run", 1, "test")
_PATIENCE_SECONDS = 60.0


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

    def layout(self) -> int:
        controller = self.leader.controller
        assert controller
        return controller.members.layout(PoolName(POOL)).value.number

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

    async def check_restored(self, step: int, attempt: Attempt = FIRST) -> None:
        """I5: it can be read, and is what was saved."""
        found = await self.rank().restore(step)
        assert found is not None
        assert tuple(found[1]) == contents_of(JOB, attempt, step, 0)

    # Operators

    async def ask(self, method: str, message: type[Message], **fields: Any) -> Any:
        return await self.operator.control.call(method, message(request_id=random_id(), **fields))

    async def drain(self, node_id: NodeId, *, cancel: bool = False) -> None:
        await self.ask("drain_node", pb.DrainNodeRequest, node_id=node_id, cancel=cancel)

    async def remove(self, node_id: NodeId) -> None:
        await self.ask("remove_node", pb.RemoveNodeRequest, node_id=node_id)

    async def use_code(self, code: Code) -> None:
        """The pool stores in another way from now on."""
        level, counts = convert.level_to(Level.L3), {"data_fragments": code.data, "parity_fragments": code.parity}
        await self.ask("update_pool", pb.UpdatePoolRequest, name=POOL, level=level, **counts)

    # What is on record

    def blobs(self, save: Save) -> list[Blob]:
        return [blob for _, shard in sorted(self.world.checks.shards[save.save_id].items()) for blob in shard.blobs]

    def coded_blob(self, save: Save) -> Blob:
        return next(blob for blob in self.blobs(save) if blob.code != MIRROR)

    def record(self, save: Save) -> Save:
        """As it is now."""
        return next(known for known in self.world.checks.saves.values() if known.save_id == save.save_id)

    async def until_full(self) -> None:
        """Every checkpoint is as its pool wants it."""
        await until(lambda: not self.world.checks.why_degraded(), "everything has all its redundancy")

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

    def at_next(
        self,
        prefix: str,
        *,
        before: Callable[[], Awaitable[None]] | None = None,
        after: Callable[[], Awaitable[None]] | None = None,
        holds: Callable[[], bool] = lambda: True,
    ) -> None:
        """Around the next transaction that puts a key under ``prefix``: just before it is done, or once it was done."""
        production = self.store._txn
        is_due = True

        async def txn(request: tuple[str, Sequence[Compare], Sequence[Op]]) -> Any:
            nonlocal is_due
            is_meant = is_due and any(isinstance(op, Put) and op.key.startswith(prefix) for op in request[2])
            if is_meant and before:
                is_due = False
                await before()
            result = await production(request)
            if is_meant and after and holds():
                is_due = False
                await after()
            return result

        self.store._txn = txn  # type: ignore[method-assign]

    async def until_asked(
        self, *methods: str, where: Callable[[str, Any], bool] = lambda address, request: True
    ) -> tuple[str, Any]:
        """Who is asked for one of ``methods`` next, and what; at the moment when that is sent."""
        asked = asyncio.get_running_loop().create_future()
        before = self.world.network.on_request

        def on_request(sender: str, address: str, sent: str, request: Any) -> None:
            before(sender, address, sent, request)
            if sent in methods and not asked.done() and where(address, request):
                self.world.network.on_request = before
                asked.set_result((address, request))

        self.world.network.on_request = on_request
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                found: tuple[str, Any] = await asked
        except TimeoutError:
            raise SimulationError(f"nobody was ever asked for {' or '.join(methods)}") from None
        return found


def perform(script: Callable[[Stage], Coroutine[Any, Any, None]], shape: Shape = FOUR_NODES) -> Outcome:
    """Play ``script`` in a world of this shape; all invariants are checked on the way."""
    with undisturbed():
        outcome = _perform(script, shape)
    assert not outcome.failure, outcome.failure
    return outcome


def _perform(script: Callable[[Stage], Coroutine[Any, Any, None]], shape: Shape) -> Outcome:
    world = World(0, shape, keeps_trace=True)

    async def story() -> None:
        world.start_all()
        stage = Stage(world)
        await until(lambda: nodes_up(world) == shape.node_count, "all nodes are up")
        await stage.operator.create_pool()
        await script(stage)

    return world.run(story())


def coded(code: Code, node_count: int, *, mirror_ratio: float = 0.0) -> Shape:
    """A pool that stores in this code, and nodes in domains of their own."""
    return Shape(node_count, domain_count=node_count, mirrors=1, code=code, mirror_ratio=mirror_ratio)


def holder_of(blob: Blob, index: int) -> Holder:
    return next(holder for holder in blob.holders if holder.fragment_index == index)
