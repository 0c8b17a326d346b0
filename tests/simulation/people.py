"""Who uses the cluster while things go wrong: training jobs that save, die, start again and restore."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Save
from sdrs_core.errors import CorruptDataError, SaveFailedError
from sdrs_core.ids import JobName
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
        # What rots while others are away is an error, and a clear one.
        self._raise_surprises([outcome for outcome in outcomes if not isinstance(outcome, CorruptDataError)])
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


async def _work_for(outcome: asyncio.Future[Any], work: Awaitable[Any]) -> None:
    try:
        _settle(outcome, await work)
    except Exception as error:
        _settle(outcome, error)


def _settle(outcome: asyncio.Future[Any], result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)
