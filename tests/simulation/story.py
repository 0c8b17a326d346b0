"""What one seed is: a cluster is founded, used while faults and operators are at it, healed, and must then be well."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from sdrs_core.cluster import NodeState
from sdrs_core.errors import SdrsError
from sdrs_core.ids import PoolName
from tests.simulation.builders import Builder
from tests.simulation.client import FROZEN
from tests.simulation.faults import Faults
from tests.simulation.operators import Operator
from tests.simulation.people import TrainingJob
from tests.simulation.shapes import shape_of
from tests.simulation.world import Outcome, SimulationError, World, undisturbed

HEALED_WITHIN_SECONDS = 120.0
_POLL_SECONDS = 0.5
_REST_SECONDS = 4.0


def play(seed: int, *, keeps_trace: bool = False, plant: Callable[[World], None] = lambda world: None) -> Outcome:
    """One seed from beginning to end."""
    with undisturbed():
        return _play(seed, keeps_trace, plant)


def _play(seed: int, keeps_trace: bool, plant: Callable[[World], None]) -> Outcome:
    world = World(seed, shape_of(seed), keeps_trace=keeps_trace)
    plant(world)
    return world.run(_tell(world))


async def _tell(world: World) -> None:
    chance = world.chance("story")
    world.start_all()
    operator = operator_of(world)
    kind = FROZEN if world.shape.refers else ""
    jobs = [TrainingJob(world, f"{kind}alone", 1), TrainingJob(world, f"{kind}pair", 2)]
    await until(lambda: nodes_up(world) == len(world.node_names), "all nodes are up at the beginning")
    await operator.create_pool()
    for job in jobs:
        job.start()
    everybody = [name for job in jobs for name in job.process_names]
    faults = Faults(world, world.chance("faults"), [*everybody, "operator"])
    working = [asyncio.ensure_future(job.train()) for job in jobs]
    if chance.random() < 0.7 or world.shape.has_upkeep or world.shape.refers:
        working.append(operator.process.spawn(operator.work([job.name for job in jobs])))
    # Where fragments are many, each second has more in it.
    await faults.run(chance.choice((6.0, 10.0, 16.0) if world.shape.code else (6.0, 12.0, 20.0)))
    faults.heal()
    for task in working:
        task.cancel()
    await asyncio.wait(working)
    for job in jobs:
        job.stop()
    await _recover(world, operator, jobs)


async def _recover(world: World, operator: Operator, jobs: list[TrainingJob]) -> None:
    """Liveness: with all faults gone, everything works again by itself."""
    operator.process.kill()
    operator = operator_of(world)
    await operator.put_right()
    await _until(world, _why_not_whole)
    if world.has_rot:
        await operator.scrub()
    await _until_well(world)
    if isinstance(operator, Builder) and operator.leaving():
        await _until_left(world, operator)
        await _until_well(world)
    await _until_at_rest(world)
    untrue = world.checks.why_untrue()
    if untrue:
        raise SimulationError(f"P2, P9: {untrue} is not what its blob makes it")
    for job in jobs:
        job.start()
        if not await job.save() or not await job.restore():
            raise SimulationError(f"job {job.name} can not save and restore, though all faults are over")
        for step in world.checks.kept_steps(job.name):
            if not await job.restore(step):
                raise SimulationError(f"I4: {job.name} step {step} was acknowledged, and cannot be read")


async def _until_at_rest(world: World) -> None:
    """Where there is nothing to do, nothing is done over and over."""
    [leader] = world.leaders
    ends, count = world.loop.time() + HEALED_WITHIN_SECONDS, _REST_SECONDS + 1
    while count > _REST_SECONDS:
        if world.loop.time() > ends:
            raise SimulationError(f"all is well, and repair still looked {count:g} times in {_REST_SECONDS:g} s")
        before = leader.survey_count
        await asyncio.sleep(_REST_SECONDS)
        count = leader.survey_count - before


def operator_of(world: World) -> Operator:
    return Builder(world) if world.shape.has_upkeep else Operator(world)


async def _until_well(world: World) -> None:
    await _until(world, _why_not_whole, _why_not_repaired, _why_pending, _why_restless, _why_miscounted)


async def _until(world: World, *problems: Callable[[World], str]) -> None:
    """All of them are over at the same moment."""
    ends = world.loop.time() + HEALED_WITHIN_SECONDS
    while why := next(filter(None, (problem(world) for problem in problems)), ""):
        if world.loop.time() > ends:
            raise SimulationError(f"{HEALED_WITHIN_SECONDS:g} s after all faults were over: {why}")
        await asyncio.sleep(_POLL_SECONDS)


async def _until_left(world: World, operator: Builder) -> None:
    """Who is drained comes to hold nothing, and whoever leaves can be removed."""
    ends = world.loop.time() + HEALED_WITHIN_SECONDS
    for node_id in operator.leaving():
        is_there = True
        while is_there:
            why = world.checks.on_record(node_id)
            if world.loop.time() > ends:
                raise SimulationError(f"node {node_id} cannot be removed: {why or 'nothing is on record there'}")
            with suppress(SdrsError):
                if not why or node_id in world.checks.wrecked:
                    await operator.remove(node_id)
                    is_there = False
                else:
                    await operator.give_up_disks()
            await asyncio.sleep(_POLL_SECONDS)


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
    down = [
        node.id for node in members.nodes() if node.state is not NodeState.UP and node.id not in world.checks.wrecked
    ]
    if down:
        return f"nodes {', '.join(down)} are down"
    problems = [group.problem for group in members.with_problems(members.groups()) if group.problem]
    return problems[0] if problems else ""


def _why_not_repaired(world: World) -> str:
    return world.checks.why_degraded()


def _why_pending(world: World) -> str:
    pending = [save.title for save in world.checks.saves.values() if save.state == "pending"]
    return f"saves are still pending: {', '.join(pending)}" if pending else ""


def _why_restless(world: World) -> str:
    """What is moved comes to rest."""
    controller = world.leaders[0].controller if world.leaders else None
    waiting = controller.repairer.totals.waiting_blobs if controller else 0
    return f"repair still has {waiting} blobs to see to" if waiting else ""


def _why_miscounted(world: World) -> str:
    """The totals follow the records, also where an answer was lost."""
    controller = world.leaders[0].controller if world.leaders else None
    if controller is None:
        return "nobody leads"
    tally = controller.tally
    for name in world.checks.pools:
        saves = [save for save in world.checks.saves.values() if save.pool == name]
        mirrored = [save for save in saves if save.mirror_pool]
        counted = (tally.saves_by_pool[PoolName(name)], tally.mirrored_saves[PoolName(name)])
        if counted != (len(saves), len(mirrored)):
            return f"pool {name} has {len(saves)} checkpoints, {len(mirrored)} mirrored; counted are {counted}"
        if tally.bytes_by_pool[PoolName(name)] != sum(save.stored_bytes for save in saves):
            return f"the bytes of pool {name} are not as they are counted"
    saves = list(world.checks.saves.values())
    mirrors_in = Counter(save.mirror_pool for save in saves if save.mirror_pool)
    if tally.mirrors_in != mirrors_in or tally.degraded_saves != sum(save.degraded for save in saves):
        return f"counted are {tally.degraded_saves} degraded checkpoints, and mirrors in {tally.mirrors_in}"
    if set(tally.damaged) != {save.save_id for save in saves if save.damage}:
        return f"counted as damaged are {sorted(tally.damaged)}"
    return ""


async def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while not condition():
        if loop.time() > ends:
            raise SimulationError(f"never came true: {what}")
        await asyncio.sleep(0.1)
