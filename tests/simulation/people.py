"""Who uses the cluster while things go wrong: training jobs, and operators with their commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Save
from sdrs_core.errors import SaveFailedError, SdrsError
from sdrs_core.ids import JobName, random_id
from sdrs_proto.v1 import control_pb2 as pb
from tests.simulation.client import GIVEN_UP, Control, Rank, contents_of
from tests.simulation.loop import Process
from tests.simulation.world import World

POOL = "fast"


class TrainingJob:
    """Ranks in processes of their own; a start of all of them is an attempt (P1)."""

    def __init__(self, world: World, name: str, world_size: int) -> None:
        self._world = world
        self._random = world.chance(f"job {name}")
        self.name = JobName(name)
        self._world_size = world_size
        self.process_names = [f"{name}-{rank}" for rank in range(world_size)]
        self._ordinal = 0
        self._step = 0
        self._ranks: list[Rank] = []
        self._processes: list[Process] = []
        self.is_done = False

    def start(self) -> None:
        """All ranks anew: what the former ones were doing ends with them."""
        for process in self._processes:
            process.kill()
        self._ordinal += 1
        # It goes on from an earlier step: that one gets another generation.
        self._step = max(0, self._step - self._random.choice((0, 0, 1, 2)))
        self._world.note(f"job {self.name} attempt {self._ordinal}")
        self._processes = [self._world.process(name) for name in self.process_names]
        self._ranks = [
            Rank(
                Control(self._world.network, process, self._world.controller_names, self._random),
                self.name,
                POOL,
                rank,
                self._world_size,
                self._random,
                self._world.checks.acknowledge,
            )
            for rank, process in enumerate(self._processes)
        ]

    def stop(self) -> None:
        self.is_done = True
        for process in self._processes:
            process.kill()

    @property
    def _attempt(self) -> Attempt:
        return Attempt(f"run of {self.name}", self._ordinal, self.name)

    async def _by_all(self, work: Callable[[Rank], Any]) -> list[Any]:
        """Each rank works in its own process; results or errors, in their order. Who is killed failed."""
        outcomes = []
        for process, rank in zip(self._processes, self._ranks, strict=True):
            outcome = asyncio.get_running_loop().create_future()
            outcomes.append(outcome)
            process.on_death[outcome] = partial(_settle, outcome, SaveFailedError(f"{process} was killed"))
            process.spawn(_work_for(outcome, work(rank)))
        return [await outcome for outcome in outcomes]

    async def train(self) -> None:
        asyncio.get_running_loop().call_later(self._random.uniform(1.0, 15.0), self._die)
        while True:
            await asyncio.sleep(self._random.uniform(0.02, 0.4))
            if self._random.random() < 0.8:
                await self.save()
            else:
                await self.restore()

    def _die(self) -> None:
        """In the middle of whatever it does."""
        if not self.is_done:
            self.start()
            asyncio.get_running_loop().call_later(self._random.uniform(1.0, 15.0), self._die)

    async def save(self) -> bool:
        self._step += 1
        step, attempt = self._step, self._attempt
        outcomes = await self._by_all(lambda rank: rank.save(attempt, step))
        self._raise_surprises(outcomes)
        return all(isinstance(outcome, Save) for outcome in outcomes)

    def _raise_surprises(self, outcomes: list[Any]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, (*GIVEN_UP, asyncio.CancelledError)):
                self._world.defect(f"job {self.name}", outcome)

    async def restore(self, step: int | None = None) -> bool:
        """Every rank reads a checkpoint, the newest unless told; what it gets must be what was saved as that."""
        expected = self._world.checks.expected_newest(self.name) if step is None else step
        outcomes = await self._by_all(lambda rank: rank.restore(step))
        self._raise_surprises(outcomes)
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                return False
            self._check(rank, outcome, expected)
        return True

    def _check(self, rank: int, outcome: tuple[Save, list[bytes]] | None, expected: int | None) -> None:
        step = outcome[0].step if outcome else None
        if expected is not None and (step is None or step < expected):
            # P17: the newest is told from the store, by whichever controller.
            self._world.fail(f"I4: job {self.name} was acknowledged step {expected}, and the newest is {step}")
        if outcome:
            save, contents = outcome
            told = self._world.checks.contents.get((save.save_id, rank))
            if told is not None and told != tuple(contents):
                self._world.fail(f"I5: {save.title} rank {rank} was read back as {contents}, saved as {told}")
            if not any(
                contents_of(self.name, Attempt(self._attempt.run, ordinal, ""), save.step, rank) == tuple(contents)
                for ordinal in range(1, self._ordinal + 1)
            ):
                self._world.fail(f"I5: {save.title} rank {rank} has bytes that nobody saved: {contents}")


class Operator:
    """Types commands, at bad moments too; refusals are fine, surprises are not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.chance("operator")
        self.process = world.process("operator")
        self.control = Control(world.network, self.process, world.controller_names, self._random)

    async def create_pool(self, mirrors: int, *, allow_degraded: bool) -> None:
        pool = pb.CreatePoolRequest(request_id=random_id())
        pool.pool.name, pool.pool.level, pool.pool.mirrors = POOL, 2, mirrors
        pool.pool.allow_degraded = allow_degraded
        await self.control.call("create_pool", pool, patience_seconds=60.0)

    async def work(self, jobs: list[JobName]) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0.3, 3.0))
            kinds = (self._move, self._move, self._pause, self._cordon, self._degrade, self._delete)
            try:
                await self._random.choice(kinds)(jobs)
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
            self._world.checks.may_go.add((job, step))
            await self._ask("delete_checkpoint", pb.DeleteCheckpointRequest(request_id=random_id(), job=job, step=step))
            if self._random.random() < 0.3:
                await self._ask(
                    "undelete_checkpoint", pb.UndeleteCheckpointRequest(request_id=random_id(), job=job, step=step)
                )

    async def put_right(self) -> None:
        """Take back all that was done by hand."""
        await self.control.call("set_automatic", pb.SetAutomaticRequest(request_id=random_id()), patience_seconds=60.0)
        for node_id in self._world.node_names:
            request = pb.SetCordonRequest(request_id=random_id(), node_id=node_id, cordoned=False)
            await self.control.call("set_cordon", request, patience_seconds=60.0)


async def _work_for(outcome: asyncio.Future[Any], work: Awaitable[Any]) -> None:
    try:
        _settle(outcome, await work)
    except Exception as error:
        _settle(outcome, error)


def _settle(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)
