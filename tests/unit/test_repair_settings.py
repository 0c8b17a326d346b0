"""How fast repair may be is set while it runs, outlives the controller and reaches every node; its speed is told."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_core.ids import BlobId, NodeId
from sdrs_storaged.control import copier
from sdrs_storaged.control.progress import Meter
from sdrs_storaged.control.throttle import RepairSettings
from tests.support.control import Harness, ManualClock
from tests.support.deep import MIB, blob_at, nodes_of, save_deep, started_deep
from tests.support.mirrors import go_down, repair
from tests.unit.test_rules_repair_loop import until


async def with_one_lost(steps: int = 1) -> Harness:
    harness = await started_deep(12)
    for step in range(steps):
        await save_deep(harness, step)
    lost = set.intersection(*[nodes_of(await blob_at(harness, step)) for step in range(steps)])
    await go_down(harness, sorted(lost)[0])
    return harness


def test_settings_are_those_of_the_configuration_until_somebody_changes_them() -> None:
    async def run() -> None:
        harness = Harness()
        harness.config = harness.config.model_copy(update={"repair_concurrency": 5, "repair_bytes_per_second": 700})
        await harness.start()
        repairer = harness.controller.repairer
        assert repairer.settings() == RepairSettings(700, concurrency=5)
        assert await repairer.change_settings(concurrency=3) == RepairSettings(700, concurrency=3)
        assert await repairer.change_settings(bytes_per_second=0) == RepairSettings(0, concurrency=3)

    asyncio.run(run())


def test_settings_survive_a_change_of_the_controller() -> None:
    async def run() -> None:
        harness = await started_deep()
        await harness.controller.repairer.change_settings(bytes_per_second=8_000_000, concurrency=4)
        await harness.start()
        assert harness.controller.repairer.settings() == RepairSettings(8_000_000, concurrency=4)

    asyncio.run(run())


def test_settings_that_were_not_stored_do_not_hold() -> None:
    async def run() -> None:
        harness = await started_deep()
        before = harness.controller.repairer.settings()
        harness.store.fail(1, UnavailableError("the store is out of reach"))
        with pytest.raises(UnavailableError):
            await harness.controller.repairer.change_settings(concurrency=4)
        assert harness.controller.repairer.settings() == before

    asyncio.run(run())


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"concurrency": 65}, {"bytes_per_second": -1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    async def run() -> None:
        harness = await started_deep()
        with pytest.raises(InvalidArgumentError):
            await harness.controller.repairer.change_settings(**wrong)

    asyncio.run(run())


def test_each_node_gets_its_part_of_the_rate_and_a_change_holds_for_the_next_fragment() -> None:
    async def run() -> None:
        harness = await with_one_lost(steps=3)
        repairer = harness.controller.repairer
        await repairer.change_settings(bytes_per_second=9_000_000, concurrency=3)
        await repair(harness)
        assert harness.nodes.pull_limits == [3_000_000] * 3
        await repairer.change_settings(bytes_per_second=0)
        lost = sorted(nodes_of(await blob_at(harness, 0)) - harness.silent)[0]
        await go_down(harness, lost)
        harness.nodes.pull_limits.clear()
        await repair(harness)
        assert set(harness.nodes.pull_limits) == {0}

    asyncio.run(run())


def test_as_many_are_made_at_once_as_is_set() -> None:
    async def run() -> None:
        harness = await with_one_lost(steps=12)
        at_once, most = 0, 0

        async def watch(_: NodeId, __: BlobId) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            for _ in range(10):
                await asyncio.sleep(0)
            at_once -= 1

        harness.nodes.on_pull = watch
        await harness.controller.repairer.change_settings(concurrency=3)
        await repair(harness)
        assert most == 3

    asyncio.run(run())


def test_progress_tells_the_rate_and_how_long_the_rest_takes() -> None:
    async def run() -> None:
        harness = await with_one_lost(steps=4)
        await harness.controller.repairer.change_settings(concurrency=1)
        seen = []

        async def watch(_: NodeId, __: BlobId) -> None:
            progress = harness.controller.repairer.progress()
            seen.append((progress.waiting_bytes, progress.bytes_per_second, progress.remaining_seconds))
            harness.clock.advance(2)
            harness.beat()

        harness.nodes.on_pull = watch
        await repair(harness)
        assert seen[0] == (16 * MIB, 0, 0)
        assert seen[1] == (12 * MIB, 2 * MIB, 6)
        assert seen[3] == (4 * MIB, 2 * MIB, 2)
        harness.clock.advance(20)
        assert harness.controller.repairer.progress().bytes_per_second == 0

    asyncio.run(run())


def test_what_is_under_way_counts_as_far_as_its_node_says_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "_LOOK_SECONDS", 0.01)

    async def run() -> None:
        harness = await with_one_lost(steps=2)
        await harness.controller.repairer.change_settings(concurrency=1)
        goes_on = asyncio.Event()

        async def hang(_: NodeId, __: BlobId) -> None:
            await goes_on.wait()

        harness.nodes.on_pull = hang
        repairing = asyncio.create_task(harness.controller.repairer.pass_once())

        async def is_begun() -> bool:
            return bool(harness.nodes.pulls)

        await until(is_begun, "a fragment is being made")
        assert (rate := harness.controller.repairer.progress()).bytes_per_second == 0
        assert rate.waiting_bytes == 8 * MIB
        for made_bytes in (MIB, 3 * MIB):
            harness.clock.advance(made_bytes / MIB / 2)  # 2 MiB/s in the beginning, then 1.5

            async def is_told(made_bytes: int = made_bytes) -> bool:
                return harness.controller.repairer.progress().wave_done_bytes == made_bytes

            blob_id = harness.nodes.pulls[0][1]
            harness.nodes.making = {(blob_id, index): made_bytes for index in range(6)}
            await until(is_told, "what is made of it is told")
            progress = harness.controller.repairer.progress()
            assert progress.bytes_per_second == (2 * MIB if made_bytes == MIB else 3 * MIB // 2)
            assert progress.waiting_bytes == 8 * MIB - made_bytes
            assert progress.remaining_seconds == -(-progress.waiting_bytes // progress.bytes_per_second)
            assert progress.done_bytes == 0
        harness.nodes.making.clear()  # a node that begins again is not counted twice
        harness.nodes.on_pull = None
        goes_on.set()
        await repairing
        progress = harness.controller.repairer.progress()
        assert (progress.done_bytes, progress.wave_done_bytes, progress.waiting_bytes) == (8 * MIB, 8 * MIB, 0)

    asyncio.run(run())


def test_the_meter_counts_the_last_seconds_and_what_takes_longer_by_the_last_that_was_finished() -> None:
    clock = ManualClock()
    meter = Meter(clock)
    assert meter.bytes_per_second(is_busy=True) == 0
    began = clock.monotonic_seconds()
    clock.advance(4)
    meter.add(began, 4000)
    assert meter.bytes_per_second(is_busy=False) == 1000
    clock.advance(4)
    assert meter.bytes_per_second(is_busy=False) == 500
    clock.advance(60)
    assert meter.bytes_per_second(is_busy=False) == 0
    assert meter.bytes_per_second(is_busy=True) == 1000


def test_failures_are_told_in_sentences_and_are_few() -> None:
    async def run() -> None:
        harness = await with_one_lost(steps=25)

        async def refuse(node_id: NodeId, _: BlobId) -> None:
            raise UnavailableError(f"node {node_id} is on fire")

        harness.nodes.on_pull = refuse
        await repair(harness)
        failures = harness.controller.repairer.progress().failures
        assert len(failures) == 20
        assert all("llm-7b step" in text and "is on fire" in text for text in failures)

    asyncio.run(run())
