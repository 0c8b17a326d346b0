"""I2, I3, P6: a commit happens once, under one term; one that failed or was never answered is found again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import (
    FullError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    SaveFailedError,
    StaleTermError,
    UnavailableError,
)
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Put
from tests.support.control import JOB, TTL_SECONDS, Harness, attempt, started


def consistent(harness: Harness) -> None:
    """No pending save is left behind in memory, and the totals count what is there."""
    assert len(harness.controller.commits) == 0
    tally = harness.controller.tally
    assert tally.saves_by_pool[DEFAULT_POOL] >= 0


def test_the_commit_puts_one_key_and_compares_term_save_layout_and_job() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        await harness.seal(begun)
        compare, then = harness.store.txns[-1]
        save_key = keys.save(JOB, 10, 1)
        assert [op.key for op in then if isinstance(op, Put)] == [save_key]
        assert len(then) == 1
        expected = {save_key, keys.layout(DEFAULT_POOL), keys.job(JOB)}
        assert expected < {condition.key for condition in compare}
        assert harness.controller.records.term.unchanged() in compare

    asyncio.run(run())


def test_an_old_controller_can_change_nothing_after_another_took_over() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        receipt = harness.receipt(begun)
        await harness.save(5)
        old = harness.controller
        await harness.start()
        [outcome] = await old.receipts.register(harness.node_ids[0], [receipt])
        assert isinstance(outcome, StaleTermError)
        with pytest.raises(StaleTermError):
            await old.saves.begin(harness.request(20))
        with pytest.raises(StaleTermError):
            await old.catalog.delete(JOB, 5, why="test")
        with pytest.raises(StaleTermError):
            await old.collector.collect()
        assert await harness.steps() == [5]
        assert await harness.seal(begun) is SaveState.COMMITTED

    asyncio.run(run())


def test_an_old_controller_that_is_deposed_before_its_commit_publishes_nothing() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        receipt = harness.receipt(begun)
        old, at = harness.controller, harness.store.txn_count

        async def depose(number: int) -> None:
            if number == at + 2:
                harness.store.heal()
                await harness.store.resign(old.records.term)
                await harness.store.campaign("another")

        harness.store.before = depose
        [outcome] = await old.receipts.register(harness.node_ids[0], [receipt])
        assert isinstance(outcome, StaleTermError)
        assert (await harness.find(begun)).state is SaveState.PENDING

    asyncio.run(run())


def test_a_commit_whose_answer_was_lost_is_success_for_whoever_asks_again() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        receipt = harness.receipt(begun)
        harness.store.lose_answer_of(2)
        [outcome] = await harness.register_receipts(receipt)
        assert isinstance(outcome, UnavailableError)
        assert await harness.register_receipts(receipt) == [SaveState.COMMITTED]
        consistent(harness)
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 1
        assert harness.controller.tally.bytes_by_pool[DEFAULT_POOL] == 10

    asyncio.run(run())


def test_a_commit_whose_answer_was_lost_is_found_by_who_waits_for_it() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        harness.store.lose_answer_of(2)
        with pytest.raises(UnavailableError):
            await harness.seal(begun)
        save, shard_count = await harness.controller.commits.wait(begun.save.save_id, JOB, 10, wait_ms=60_000)
        assert (save.state, shard_count) == (SaveState.COMMITTED, 1)
        consistent(harness)

    asyncio.run(run())


def test_a_commit_whose_answer_was_lost_does_not_stand_in_the_way_of_the_next_attempt() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, by=attempt(0))
        harness.store.lose_answer_of(2)
        with pytest.raises(UnavailableError):
            await harness.seal(begun)
        await harness.save(20, by=attempt(1))
        assert await harness.steps() == [20, 10]
        consistent(harness)

    asyncio.run(run())


@pytest.mark.parametrize("by", ["waiting", "the collector", "another controller"])
def test_a_commit_that_found_no_room_is_made_later_by(by: str) -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        harness.store.fail(2, FullError("no room"))
        with pytest.raises(FullError):
            await harness.seal(begun)
        assert (await harness.find(begun)).state is SaveState.PENDING
        if by == "waiting":
            save, _ = await harness.controller.commits.wait(begun.save.save_id, JOB, 10, wait_ms=60_000)
            assert save.state is SaveState.COMMITTED
        elif by == "the collector":
            await harness.collect()
        else:
            await harness.start()
        assert await harness.steps() == [10]
        consistent(harness)

    asyncio.run(run())


def test_a_complete_save_is_committed_even_if_nobody_renewed_it() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        harness.store.lose_answer_of(1)  # the receipt is in, but was never counted
        with pytest.raises(UnavailableError):
            await harness.seal(begun)
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect()
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_a_begin_whose_answer_was_lost_is_found_again_or_expires() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(5)
        for step, comes_back in ((10, True), (20, False)):
            harness.store.lose_answer_of(1)
            with pytest.raises(UnavailableError):
                await harness.begin(step)
            if comes_back:
                await harness.save(step)
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 3
        await harness.collect()
        assert len(harness.controller.commits) == 1
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 3
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect()
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 2
        consistent(harness)
        assert await harness.states() == [(10, 1, SaveState.COMMITTED), (5, 1, SaveState.COMMITTED)]

    asyncio.run(run())


def test_a_begin_that_failed_for_sure_leaves_nothing_behind() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(5)
        harness.store.fail(1, FullError("no room"))
        with pytest.raises(FullError):
            await harness.begin(10)
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 1
        await harness.collect()
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 1

    asyncio.run(run())


def test_an_abandoned_save_expires_and_one_that_is_waited_for_does_not() -> None:
    async def run() -> None:
        harness = await started()
        abandoned = await harness.begin(10, world_size=2)
        awaited = await harness.begin(20, world_size=2)
        await harness.pass_time(TTL_SECONDS - 1)
        await harness.controller.commits.wait(awaited.save.save_id, JOB, 20, wait_ms=0)
        await harness.pass_time(2)
        await harness.collect()
        assert (await harness.find(abandoned)).state is SaveState.ABORTED
        assert (await harness.find(awaited)).state is SaveState.PENDING
        with pytest.raises(SaveFailedError):
            await harness.seal(abandoned)
        await harness.save(10)
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_a_save_that_two_ranks_began_unanswered_is_not_forgotten() -> None:
    async def run(*, lost: int) -> None:
        """``lost``: how many of the two answers."""
        harness = await started()
        await harness.save(5)
        begun_before = harness.store.txn_count

        async def lose(number: int) -> None:
            await asyncio.sleep(0)  # both are under way
            if number <= begun_before + lost:
                raise UnavailableError("the answer was lost")

        harness.store.after = lose
        await asyncio.gather(*(harness.begin(10, rank=rank, world_size=2) for rank in range(2)), return_exceptions=True)
        harness.store.heal()
        await harness.collect()
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 2
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect()
        assert (await harness.states()) == [(5, 1, SaveState.COMMITTED)]
        consistent(harness)
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 1

    asyncio.run(run(lost=1))
    asyncio.run(run(lost=2))


def test_an_expiry_whose_answer_was_lost_is_settled_with_the_next_one() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        await harness.pass_time(TTL_SECONDS + 1)
        harness.store.lose_answer_of(1)
        await harness.collect()
        await harness.collect()
        assert (await harness.find(begun)).state is SaveState.ABORTED
        consistent(harness)
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 0

    asyncio.run(run())


def test_one_save_that_cannot_be_ended_keeps_no_other() -> None:
    async def run() -> None:
        harness = await started()
        first, second = await harness.begin(10), await harness.begin(20)
        await harness.pass_time(TTL_SECONDS + 1)
        harness.store.fail(1, FullError("no room"))
        await harness.collect()
        states = {(await harness.find(begun)).state for begun in (first, second)}
        assert states == {SaveState.PENDING, SaveState.ABORTED}

    asyncio.run(run())


def test_a_controller_starts_although_a_pending_save_cannot_be_committed() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        harness.store.fail(2, FullError("no room"))
        with pytest.raises(FullError):
            await harness.seal(begun)

        at = harness.store.txn_count

        async def no_room(number: int) -> None:
            # resign, campaign, then what the controller writes: its term, and the commit
            if number in (at + 3, at + 4):
                raise FullError("no room")

        harness.store.before = no_room
        await harness.start()
        assert (await harness.find(begun)).state is SaveState.PENDING
        await harness.collect()
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_a_step_with_only_a_pending_save_is_no_checkpoint_yet() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, world_size=2)
        await harness.seal(begun)
        with pytest.raises(NotFoundError, match="still being saved"):
            await harness.controller.catalog.get(JOB, 10)
        with pytest.raises(NotFoundError):
            await harness.controller.catalog.delete(JOB, 10, why="test")

    asyncio.run(run())


def test_a_pool_with_a_save_that_is_just_beginning_is_not_deleted() -> None:
    """Whichever of the two comes first, no save ends up in a pool that is gone."""

    async def run(delete_first: bool) -> None:
        harness = await started()
        await harness.create_pool("fast")
        await harness.save(1)
        begin = harness.begin(10, pool="fast")
        calls = [harness.delete_pool("fast"), begin] if delete_first else [begin, harness.delete_pool("fast")]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        pools = {pool.name for pool in harness.controller.members.pools()}
        pending = [save for save in await harness.listed(all_states=True) if save.step == 10]
        assert [type(o) for o in outcomes if isinstance(o, Exception)] in ([RefusedError], [NotFoundError])
        assert bool(pending) == ("fast" in pools)

    asyncio.run(run(True))
    asyncio.run(run(False))


def test_a_pool_is_not_deleted_under_a_begin_that_is_already_at_the_store() -> None:
    async def run() -> None:
        harness = await started()
        await harness.create_pool("fast")
        await harness.save(1)
        refused: list[Exception] = []

        async def delete_now(_: int) -> None:
            harness.store.heal()
            try:
                await harness.delete_pool("fast")
            except RefusedError as error:
                refused.append(error)

        harness.store.before = delete_now
        begun = await harness.begin(10, pool="fast")
        assert refused
        assert await harness.seal(begun) is SaveState.COMMITTED

    asyncio.run(run())


def test_no_save_begins_in_a_pool_whose_deletion_is_at_the_store() -> None:
    async def run() -> None:
        harness = await started()
        await harness.create_pool("fast")
        await harness.save(1)
        refused: list[Exception] = []

        async def begin_now(_: int) -> None:
            harness.store.heal()
            try:
                await harness.begin(10, pool="fast")
            except NotFoundError as error:
                refused.append(error)

        harness.store.before = begin_now
        await harness.delete_pool("fast")
        assert refused
        assert [step for step, _, _ in await harness.states()] == [1]

    asyncio.run(run())


def test_a_pool_whose_groups_could_not_be_made_gets_them_when_its_request_is_repeated() -> None:
    async def run() -> None:
        harness = await started()
        harness.store.fail(2, FullError("no room"))
        with pytest.raises(FullError):
            await harness.create_pool("fast")
        await harness.create_pool("fast")
        assert (await harness.save(10, pool="fast")).state is SaveState.COMMITTED

    asyncio.run(run())


def test_an_abort_needs_the_capability_and_loses_against_a_commit() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10)
        receipt = harness.receipt(begun)
        with pytest.raises(PermissionDeniedError):
            await harness.controller.commits.abort(begun.save.save_id, "guess", "")
        pending = harness.controller.commits.get(begun.save.save_id)
        assert pending
        await harness.register_receipts(receipt)
        await harness.controller.commits.end_aborted(pending, "too late")
        assert await harness.steps() == [10]
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 1

    asyncio.run(run())


def test_the_totals_after_a_restart_are_those_before() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10, by=attempt(0))
        damaged = await harness.save(10, by=attempt(1))
        await harness.save(20, by=attempt(1))
        await harness.begin(30, by=attempt(1))
        catalog = harness.controller.catalog
        await catalog.mark_damage(JOB, 10, damaged.save_id, "a bit flipped")
        await catalog.delete(JOB, 20, why="test")
        before = harness.controller.tally
        await harness.start()
        after = harness.controller.tally
        assert +before.saves_by_pool == +after.saves_by_pool
        assert +before.bytes_by_pool == +after.bytes_by_pool
        assert set(before.damaged) == set(after.damaged) == {damaged.save_id}

    asyncio.run(run())


def test_the_damage_of_one_generation_is_not_forgotten_with_another_of_its_step() -> None:
    async def run() -> None:
        harness = await started()
        first = await harness.save(10, by=attempt(0))
        await harness.controller.catalog.mark_damage(JOB, 10, first.save_id, "a bit flipped")
        await harness.save(10, by=attempt(1))
        await harness.controller.catalog.delete(JOB, 10, why="test")
        assert any("a bit flipped" in warning for warning in harness.controller.warnings())
        await harness.controller.catalog.mark_damage(JOB, 10, first.save_id, "")
        assert not harness.controller.warnings()

    asyncio.run(run())


def test_a_hold_and_a_mark_of_damage_at_the_same_time_both_stay() -> None:
    """P4: each change compares the record's revision, so neither overwrites the other."""

    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        catalog = harness.controller.catalog
        await asyncio.gather(
            catalog.hold(JOB, 10, held=True), catalog.mark_damage(JOB, 10, save.save_id, "a bit flipped")
        )
        changed = (await catalog.get(JOB, 10)).value
        assert changed == replace(save, held=True, damage="a bit flipped")

    asyncio.run(run())
