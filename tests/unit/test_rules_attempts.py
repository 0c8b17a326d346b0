"""P1: whose save it is. Attempts, steps that are saved again, and receipts that must never join."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import ContentKind, SaveState
from sdrs_core.errors import AlreadyExistsError, SaveFailedError, StaleAttemptError, WorldSizeMismatchError
from sdrs_storaged.control import keys
from tests.support.control import JOB, attempt, started


def test_a_save_of_several_ranks_is_visible_once_the_last_is_in() -> None:
    async def run() -> None:
        harness = await started()
        for rank in range(3):
            begun = await harness.begin(10, rank=rank, world_size=3)
            assert await harness.steps() == []
            state = await harness.seal(begun, rank=rank)
            assert state is (SaveState.COMMITTED if rank == 2 else SaveState.PENDING)
        [save] = await harness.listed()
        assert (save.step, save.attempt, save.size_bytes) == (10, 1, 30)

    asyncio.run(run())


def test_half_of_one_attempt_and_half_of_the_next_never_join() -> None:
    async def run() -> None:
        harness = await started()
        old = await harness.begin(10, rank=0, world_size=2, by=attempt(0))
        await harness.seal(old, rank=0)
        new = await harness.begin(10, rank=1, world_size=2, by=attempt(1))
        assert new.save.save_id != old.save.save_id
        assert await harness.seal(new, rank=1) is SaveState.PENDING
        assert await harness.steps() == []
        assert (await harness.find(old)).state is SaveState.ABORTED

    asyncio.run(run())


def test_a_receipt_of_a_superseded_attempt_is_refused_by_name_of_who_took_over() -> None:
    async def run() -> None:
        harness = await started()
        old = await harness.begin(10, rank=0, world_size=2, by=attempt(0))
        await harness.seal(old, rank=0)
        await harness.begin(20, by=attempt(1))
        with pytest.raises(StaleAttemptError, match="run:1"):
            await harness.seal(old, rank=1)
        with pytest.raises(StaleAttemptError, match="run:1"):
            await harness.begin(30, by=attempt(0))

    asyncio.run(run())


def test_an_attempt_that_is_opened_before_anybody_speaks_fences_the_older_one() -> None:
    async def run() -> None:
        harness = await started()
        saves = harness.controller.saves
        assert await saves.open_attempt(JOB, attempt(1)) == 1
        old = await harness.begin(10, rank=0, world_size=2, by=attempt(1))
        assert old.save.attempt == 1
        assert await saves.open_attempt(JOB, attempt(2)) == 2
        assert await saves.open_attempt(JOB, attempt(2)) == 2  # repeated by whoever lost the answer
        assert (await harness.find(old)).state is SaveState.ABORTED
        for refused in (saves.open_attempt(JOB, attempt(1)), harness.begin(20, by=attempt(1))):
            with pytest.raises(StaleAttemptError, match="run:2"):
                await refused
        assert (await harness.save(30, by=attempt(2))).attempt == 2

    asyncio.run(run())


def test_of_two_attempts_that_are_opened_at_once_the_later_one_holds() -> None:
    async def run() -> None:
        harness = await started()
        saves = harness.controller.saves
        await asyncio.gather(
            *(saves.open_attempt(JOB, attempt(number)) for number in range(1, 6)), return_exceptions=True
        )
        assert await saves.open_attempt(JOB, attempt(5)) <= 5
        with pytest.raises(StaleAttemptError):
            await saves.open_attempt(JOB, attempt(4))

    asyncio.run(run())


def test_no_receipt_is_taken_for_an_older_attempt_whose_save_could_not_be_ended_yet() -> None:
    """The takeover's own transaction is all that counts; ending the old saves comes after, and may fail."""

    async def run() -> None:
        harness = await started()
        old = await harness.begin(10, rank=0, world_size=2, by=attempt(0))
        await harness.seal(old, rank=0)
        harness.store.fail(2, SaveFailedError("the abort of the old save fails"))
        await harness.begin(20, by=attempt(1))
        assert (await harness.find(old)).state is SaveState.PENDING
        with pytest.raises(StaleAttemptError):
            await harness.seal(old, rank=1)
        await harness.start()
        with pytest.raises(StaleAttemptError):
            await harness.seal(old, rank=1)
        assert (await harness.find(old)).state is SaveState.ABORTED
        assert 10 not in await harness.steps()

    asyncio.run(run())


def test_a_takeover_whose_answer_was_lost_still_ends_the_older_saves() -> None:
    async def run() -> None:
        harness = await started()
        old = await harness.begin(10, rank=0, world_size=2, by=attempt(0))
        harness.store.lose_answer_of(1)
        with pytest.raises(ConnectionError):
            await harness.begin(20, by=attempt(1))
        await harness.begin(20, by=attempt(1))
        assert (await harness.find(old)).state is SaveState.ABORTED

    asyncio.run(run())


def test_an_older_attempt_finishes_what_all_its_ranks_had_sealed() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, by=attempt(0))
        harness.store.fail(2, SaveFailedError("the commit fails"))
        with pytest.raises(SaveFailedError):
            await harness.seal(begun)
        assert (await harness.find(begun)).state is SaveState.PENDING
        await harness.begin(20, by=attempt(1))
        assert (await harness.find(begun)).state is SaveState.COMMITTED

    asyncio.run(run())


def test_within_a_run_the_count_of_restarts_decides_who_is_newer() -> None:
    async def run() -> None:
        harness = await started()
        await harness.begin(10, by=attempt(3))
        with pytest.raises(StaleAttemptError):
            await harness.begin(10, by=attempt(2))
        assert (await harness.begin(10, by=attempt(4))).save.attempt == 2

    asyncio.run(run())


def test_a_late_start_of_a_run_cannot_take_over_after_another_run_came_between() -> None:
    async def run() -> None:
        harness = await started()
        await harness.begin(10, by=attempt(1, run="a"))
        await harness.begin(10, by=attempt(0, run="b"))
        with pytest.raises(StaleAttemptError):
            await harness.begin(10, by=attempt(0, run="a"))
        with pytest.raises(StaleAttemptError):
            await harness.begin(10, by=attempt(1, run="a"))

    asyncio.run(run())


def test_all_ranks_that_begin_at_once_find_the_same_save() -> None:
    async def run() -> None:
        harness = await started()
        begun = await asyncio.gather(*(harness.begin(10, rank=rank, world_size=50) for rank in range(50)))
        assert len({one.save.save_id for one in begun}) == 1
        assert {one.save.attempt for one in begun} == {1}
        assert harness.controller.tally.saves_by_pool.total() == 1

    asyncio.run(run())


def test_two_attempts_that_open_at_once_are_numbered_by_compare_and_swap() -> None:
    """P22: whoever loses the race is numbered after the winner, and the winner is superseded; none is lost."""

    async def run() -> None:
        harness = await started()
        both = [harness.begin(10, by=attempt(0, run=name)) for name in ("a", "b")]
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        numbers = sorted(one.save.attempt for one in outcomes if not isinstance(one, BaseException))
        assert all(isinstance(one, StaleAttemptError) for one in outcomes if isinstance(one, BaseException))
        assert numbers in ([2], [1, 2])
        job = await harness.controller.records.get(keys.job(JOB), Job)
        assert job
        assert job.value.attempt == 2

    asyncio.run(run())


def test_saving_a_step_again_with_the_same_content_changes_nothing() -> None:
    async def run() -> None:
        harness = await started()
        first = await harness.save(10)
        again = await harness.begin(10)
        assert again.save.save_id == first.save_id
        assert again.registered is not None
        assert again.group is None
        assert await harness.seal(again) is SaveState.COMMITTED
        assert len(await harness.listed(all_states=True)) == 1

    asyncio.run(run())


def test_saving_a_step_again_in_the_same_attempt_with_other_content_is_refused() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        again = await harness.begin(10)
        with pytest.raises(AlreadyExistsError):
            await harness.seal(again, content="other")
        with pytest.raises(AlreadyExistsError):
            await harness.begin(10, kind=ContentKind.FILES)

    asyncio.run(run())


def test_a_new_attempt_replaces_a_step_once_it_is_committed_and_not_before() -> None:
    async def run() -> None:
        harness = await started()
        first = await harness.save(10, by=attempt(0))
        begun = await harness.begin(10, by=attempt(1))
        assert (await harness.controller.catalog.get(JOB, 10)).value.save_id == first.save_id
        await harness.seal(begun, content="other")
        assert (await harness.controller.catalog.get(JOB, 10)).value.save_id == begun.save.save_id
        assert await harness.steps() == [10]
        assert await harness.states() == [(10, 2, SaveState.COMMITTED), (10, 1, SaveState.SET_ASIDE)]

    asyncio.run(run())


def test_deleting_a_replaced_step_does_not_bring_the_older_generation_up_again() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10, by=attempt(0))
        await harness.save(10, by=attempt(1))
        await harness.controller.catalog.delete(JOB, 10, why="test")
        assert await harness.steps() == []
        assert await harness.states() == [(10, 1, SaveState.SET_ASIDE)]
        await harness.controller.catalog.undelete(JOB, 10)
        assert await harness.states() == [(10, 2, SaveState.COMMITTED), (10, 1, SaveState.SET_ASIDE)]

    asyncio.run(run())


def test_ranks_that_disagree_about_the_world_are_told_so() -> None:
    async def run() -> None:
        harness = await started()
        await harness.begin(10, rank=0, world_size=2)
        with pytest.raises(WorldSizeMismatchError):
            await harness.begin(10, rank=1, world_size=3)

    asyncio.run(run())
