"""The loop of repair looks again while something slow is under way: what is more urgent does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from sdrs_core.codes import Code
from sdrs_core.ids import BlobId, NodeId
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from sdrs_core.redundancy import Standing
from sdrs_storaged.control import copier
from sdrs_storaged.control.jobs import Job
from sdrs_storaged.control.progress import RepairTotals
from tests.support.control import Harness
from tests.support.deep import DEEP, blob_at, look, nodes_of, save_deep, stands, started_deep
from tests.support.mirrors import LONG_SECONDS, go_down, repair

STEPS = (10, 20, 30, 40)


@asynccontextmanager
async def repairing(harness: Harness) -> AsyncIterator[None]:
    running = asyncio.create_task(harness.controller.repairer.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"it never came to this: {what}")


async def converting(harness: Harness) -> set[BlobId]:
    """All that is stored should have another form, and no conversion that begins ever ends. The blobs as they are."""
    for step in STEPS:
        await save_deep(harness, step)
    await repair(harness)
    known = {(await blob_at(harness, step)).id for step in STEPS}

    async def hang(_: NodeId, blob_id: BlobId) -> None:
        if blob_id not in known:
            await asyncio.Event().wait()

    harness.nodes.on_pull = hang
    await harness.controller.pools.update(DEEP, PoolChange(level=Level.L3, code=Code(2, 2)))
    return known


def test_what_is_lost_is_found_and_made_while_conversions_take_all_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "_LOOK_SECONDS", 0.01)

    async def run() -> None:
        harness = await started_deep(8)
        harness.controller.repairer._interval_seconds = 0.05
        known = await converting(harness)
        limit = harness.controller.repairer.settings().concurrency
        async with repairing(harness):

            async def is_busy() -> bool:
                return len(harness.controller.repairer._working) == limit and bool(harness.nodes.pulls)

            await until(is_busy, "conversions take all slots")
            gone = sorted(nodes_of(await blob_at(harness, STEPS[0])))[0]
            await go_down(harness, gone)
            harness.controller.repairer.poke()

            async def is_made() -> bool:
                return all([stands(harness, await blob_at(harness, step)) is Standing.FULL for step in STEPS])

            await until(is_made, "what the lost node held is made on others")
            assert harness.nodes.called_off, "a blob that is being converted lacks something too"
            assert not any(blob_id in known for blob_id, _ in harness.nodes.called_off)

    asyncio.run(run())


def test_a_target_that_goes_down_in_the_middle_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "_LOOK_SECONDS", 0.01)

    async def run() -> None:
        harness = await started_deep(8)
        harness.controller.repairer._interval_seconds = 0.05
        await save_deep(harness, 10)
        await repair(harness)
        await go_down(harness, sorted(nodes_of(await blob_at(harness, 10)))[0])
        frozen: list[NodeId] = []

        async def freeze(node_id: NodeId, _: BlobId) -> None:
            if node_id in (frozen or [node_id]):
                frozen.append(node_id)
                await asyncio.Event().wait()

        harness.nodes.on_pull = freeze
        async with repairing(harness):

            async def is_frozen() -> bool:
                return bool(frozen)

            await until(is_frozen, "a target stops in the middle")
            await go_down(harness, frozen[0])

            async def is_made() -> bool:
                await harness.pass_time(LONG_SECONDS)
                harness.controller.repairer.poke()
                return stands(harness, await blob_at(harness, 10)) is Standing.FULL

            await until(is_made, "another node gets it")
            assert not (await look(harness, 10)).damage

    asyncio.run(run())


def test_a_new_limit_is_told_to_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "_LOOK_SECONDS", 0.01)

    async def run() -> None:
        harness = await started_deep(8)
        await save_deep(harness, 10)
        await repair(harness)
        repairer, limits = harness.controller.repairer, harness.nodes.pull_limits
        await repairer.change_settings(bytes_per_second=40_000, concurrency=2)
        await go_down(harness, sorted(nodes_of(await blob_at(harness, 10)))[0])

        async def hang(_: NodeId, __: BlobId) -> None:
            if limits[-1] == 20_000:
                await asyncio.Event().wait()

        harness.nodes.on_pull = hang
        async with repairing(harness):

            async def has_begun() -> bool:
                return bool(limits)

            await until(has_begun, "a copy is under way")
            await repairer.change_settings(bytes_per_second=80_000_000)

            async def is_made() -> bool:
                return stands(harness, await blob_at(harness, 10)) is Standing.FULL

            await until(is_made, "it goes on, faster")
            assert limits == [20_000, 40_000_000]

    asyncio.run(run())


def test_what_is_counted_again_while_it_is_under_way_is_taken_off_as_it_was_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The totals go over the wire, where nothing is less than zero."""
    left: list[tuple[int, int, int]] = []
    finished = RepairTotals.finished

    def finish(self: RepairTotals, job: Job) -> None:
        finished(self, job)
        left.append((self.waiting_blobs, self.waiting_bytes, self.moving_blobs))

    monkeypatch.setattr(RepairTotals, "finished", finish)

    async def run() -> None:
        harness = await started_deep(12)
        repairer = harness.controller.repairer
        repairer._interval_seconds = 0.05
        await save_deep(harness, 10)
        await repair(harness)
        goes_on = asyncio.Event()

        async def hang(_: NodeId, __: BlobId) -> None:
            await goes_on.wait()

        harness.nodes.on_pull = hang
        await harness.controller.pools.update(DEEP, PoolChange(level=Level.L3, code=Code(2, 2)))
        async with repairing(harness):

            async def is_busy() -> bool:
                return bool(harness.nodes.pulls)

            await until(is_busy, "a conversion is under way")
            before = repairer.totals.waiting_bytes
            await harness.controller.pools.update(DEEP, PoolChange(level=Level.L3, code=Code(8, 3)))
            repairer.poke()

            async def is_counted() -> bool:
                return repairer.totals.waiting_bytes < before

            await until(is_counted, "a survey counts it as its pool wants it now")
            goes_on.set()

            async def is_done() -> bool:
                return bool(left)

            await until(is_done, "it is done")
            assert left[0] == (0, 0, 0)

    asyncio.run(run())
