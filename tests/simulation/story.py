"""What one seed is: a cluster is founded, used while faults and operators are at it, healed, and must then be well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from sdrs_core.cluster import NodeState
from tests.simulation.faults import Faults
from tests.simulation.people import Operator, TrainingJob
from tests.simulation.world import Outcome, SimulationError, World, undisturbed

HEALED_WITHIN_SECONDS = 120.0
_POLL_SECONDS = 0.5


def play(seed: int, *, keeps_trace: bool = False, plant: Callable[[World], None] = lambda world: None) -> Outcome:
    """One seed from beginning to end."""
    with undisturbed():
        return _play(seed, keeps_trace, plant)


def _play(seed: int, keeps_trace: bool, plant: Callable[[World], None]) -> Outcome:
    shape = Random(f"{seed} shape")
    world = World(
        seed,
        node_count=shape.choice((3, 4, 4, 5, 6)),
        controller_count=shape.choice((1, 2, 2, 3)),
        keeps_trace=keeps_trace,
    )
    plant(world)
    return world.run(_tell(world, mirrors=shape.choice((2, 2, 2, 3)), allow_degraded=shape.random() < 0.3))


async def _tell(world: World, *, mirrors: int, allow_degraded: bool) -> None:
    chance = world.chance("story")
    world.start_all()
    operator = Operator(world)
    jobs = [TrainingJob(world, "alone", 1), TrainingJob(world, "pair", 2)]
    await until(lambda: nodes_up(world) == len(world.node_names), "all nodes are up at the beginning")
    await operator.create_pool(mirrors, allow_degraded=allow_degraded)
    for job in jobs:
        job.start()
    everybody = [name for job in jobs for name in job.process_names]
    faults = Faults(world, world.chance("faults"), [*everybody, "operator"])
    working = [asyncio.ensure_future(job.train()) for job in jobs]
    if chance.random() < 0.7:
        working.append(operator.process.spawn(operator.work([job.name for job in jobs])))
    await faults.run(chance.choice((6.0, 12.0, 20.0)))
    faults.heal()
    for task in working:
        task.cancel()
    await asyncio.wait(working)
    for job in jobs:
        job.stop()
    await _recover(world, operator, jobs)


async def _recover(world: World, operator: Operator, jobs: list[TrainingJob]) -> None:
    """Liveness: with all faults gone, everything works again by itself."""
    ends = world.loop.time() + HEALED_WITHIN_SECONDS
    operator.process.kill()
    await Operator(world).put_right()
    for problem in (_why_not_whole, _why_not_repaired, _why_pending):
        while why := problem(world):
            if world.loop.time() > ends:
                raise SimulationError(f"{HEALED_WITHIN_SECONDS:g} s after all faults were over: {why}")
            await asyncio.sleep(_POLL_SECONDS)
    for job in jobs:
        job.start()
        if not await job.save() or not await job.restore():
            raise SimulationError(f"job {job.name} can not save and restore, though all faults are over")
        for step in world.checks.kept_steps(job.name):
            if not await job.restore(step):
                raise SimulationError(f"I4: {job.name} step {step} was acknowledged, and cannot be read")


def nodes_up(world: World) -> int:
    leaders = world.leaders
    if len(leaders) != 1 or leaders[0].controller is None:
        return 0
    return sum(node.state is NodeState.UP for node in leaders[0].controller.members.nodes())


def _why_not_whole(world: World) -> str:
    leaders = world.leaders
    if len(leaders) != 1 or leaders[0].controller is None:
        return f"{len(leaders)} controllers lead"
    members = leaders[0].controller.members
    down = [node.id for node in members.nodes() if node.state is not NodeState.UP]
    if down:
        return f"nodes {', '.join(down)} are down"
    problems = [group.problem for group in members.with_problems(members.groups()) if group.problem]
    return problems[0] if problems else ""


def _why_not_repaired(world: World) -> str:
    return world.checks.why_degraded()


def _why_pending(world: World) -> str:
    pending = [save.title for save in world.checks.saves.values() if save.state == "pending"]
    return f"saves are still pending: {', '.join(pending)}" if pending else ""


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while not condition():
        if loop.time() > ends:
            raise SimulationError(f"never came true: {what}")
        await asyncio.sleep(0.1)
