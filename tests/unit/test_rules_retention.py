"""P15 in the controller: what a pool's policy deletes, and what stops it."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import Retention
from sdrs_core.errors import RefusedError
from tests.support.control import JOB, attempt, started


def test_retention_keeps_the_newest_and_brings_what_it_deletes_into_the_trash() -> None:
    async def run() -> None:
        harness = await started()
        for step in range(5):
            await harness.save(step)
        await harness.retain(Retention(keep_last=2))
        await harness.collect()
        assert await harness.steps() == [4, 3]
        assert {(save.step, save.state) for save in await harness.trash()} == {
            (step, SaveState.DELETED) for step in (0, 1, 2)
        }
        await harness.controller.catalog.undelete(JOB, 2)
        assert await harness.steps() == [4, 3, 2]

    asyncio.run(run())


def test_retention_leaves_pending_saves_and_other_pools_alone() -> None:
    async def run() -> None:
        harness = await started()
        await harness.create_pool("kept")
        for step in range(3):
            await harness.save(step)
        for step in range(3, 6):
            await harness.save(step, pool="kept")
        pending = await harness.begin(6)
        await harness.retain(Retention(keep_last=1))
        await harness.collect()
        assert await harness.steps() == [5, 4, 3, 2]
        assert (await harness.find(pending)).state is SaveState.PENDING

    asyncio.run(run())


def test_what_is_held_or_restored_stays_and_keeps_nothing_else() -> None:
    async def run() -> None:
        harness = await started()
        for step in range(5):
            await harness.save(step)
        await harness.controller.catalog.hold(JOB, 0, held=True)
        await harness.join(step=1)
        await harness.retain(Retention(keep_last=1))
        await harness.collect()
        assert await harness.steps() == [4, 1, 0]

    asyncio.run(run())


def test_a_checkpoint_that_is_held_between_decision_and_deletion_stops_no_other() -> None:
    async def run() -> None:
        harness = await started()
        for step in range(4):
            await harness.save(step)
        await harness.retain(Retention(keep_last=1))
        at = harness.store.txn_count

        async def hold(number: int) -> None:
            if number == at + 1:
                harness.store.heal()
                await harness.controller.catalog.hold(JOB, 2, held=True)

        harness.store.before = hold
        await harness.collect()
        assert await harness.steps() == [3, 2]

    asyncio.run(run())


@pytest.mark.parametrize("what", ["is damaged", "is deleted"])
def test_retention_does_not_delete_for_a_newest_one_that_just(what: str) -> None:
    """keep_last=1: step 1 may go because 2 is good. If it is not any more, 1 is the newest good one."""

    async def run() -> None:
        harness = await started()
        await harness.save(1)
        newest = await harness.save(2)
        await harness.retain(Retention(keep_last=1))

        async def strike(_: int) -> None:
            harness.store.heal()
            if what == "is damaged":
                await harness.controller.catalog.mark_damage(JOB, 2, newest.save_id, "a bit flipped")
            else:
                await harness.controller.catalog.delete(JOB, 2, why="test")

        harness.store.before = strike
        await harness.collect(2)
        assert 1 in await harness.steps()

    asyncio.run(run())


def test_a_damaged_checkpoint_does_not_count_as_kept() -> None:
    async def run() -> None:
        harness = await started()
        for step in range(4):
            await harness.save(step)
        save = (await harness.controller.catalog.get(JOB, 3)).value
        await harness.controller.catalog.mark_damage(JOB, 3, save.save_id, "a bit flipped")
        await harness.retain(Retention(keep_last=2))
        await harness.collect()
        assert await harness.steps() == [3, 2, 1]

    asyncio.run(run())


def test_generations_that_were_replaced_do_not_count_as_kept() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(1)
        for number in range(4):
            await harness.save(2, by=attempt(number))
        await harness.retain(Retention(keep_last=2))
        await harness.collect(2)
        assert await harness.steps() == [2, 1]

    asyncio.run(run())


def test_generations_that_were_set_aside_do_not_count_and_go_in_time() -> None:
    async def run() -> None:
        harness = await started()
        for step in (10, 20, 30):
            await harness.save(step, by=attempt(0))
        await harness.resume(by=attempt(1), step=10)
        await harness.retain(Retention(keep_last=2))
        await harness.collect()
        # Newer than the newest good one: they stay until the job has passed them.
        assert [step for step, _, _ in await harness.states()] == [30, 20, 10]
        for step in (40, 50):
            await harness.save(step, by=attempt(1))
        await harness.collect(2)
        assert await harness.steps() == [50, 40]
        assert [step for step, _, _ in await harness.states()] == [50, 40]

    asyncio.run(run())


def test_a_held_or_restored_checkpoint_is_not_deleted_by_request_either() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(1)
        await harness.save(2)
        await harness.controller.catalog.hold(JOB, 1, held=True)
        with pytest.raises(RefusedError, match="held"):
            await harness.controller.catalog.delete(JOB, 1, why="test")
        await harness.controller.catalog.hold(JOB, 1, held=False)
        await harness.controller.catalog.delete(JOB, 1, why="test")
        current, _ = await harness.join(step=2)
        with pytest.raises(RefusedError, match="restored"):
            await harness.controller.catalog.delete(JOB, 2, why="test")
        await harness.report(current.number)
        await harness.controller.catalog.delete(JOB, 2, why="test")
        assert await harness.steps() == []

    asyncio.run(run())
