"""P16: all ranks of an attempt restore the same generation, and resuming leaves later ones behind."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import SaveState
from sdrs_core.errors import (
    FullError,
    InvalidArgumentError,
    NotFoundError,
    NotRestorableError,
    RefusedError,
    StaleAttemptError,
    UnavailableError,
    WorldSizeMismatchError,
)
from sdrs_storaged.control import keys
from tests.support.control import JOB, Harness, attempt, started

LONG_MS = 60_000


async def with_steps(*steps: int) -> Harness:
    harness = await started()
    for step in steps:
        await harness.save(step)
    return harness


def test_no_rank_returns_before_all_have_verified() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        joined = [await harness.join(rank=rank, world_size=3) for rank in range(3)]
        assert {(current.number, save.step) for current, save in joined} == {(1, 20)}
        assert await harness.report(1, rank=0) == "open"
        assert await harness.report(1, rank=1) == "open"
        assert await harness.report(1, rank=1) == "open"
        waiting = asyncio.create_task(harness.report(1, rank=0, wait_ms=LONG_MS))
        assert await harness.report(1, rank=2) == "done"
        assert await waiting == "done"
        assert await harness.report(1, rank=1) == "done"

    asyncio.run(run())


def test_one_failure_opens_the_next_round_one_generation_back_for_all() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20, 30)
        for expected in (30, 20, 10):
            current, save = await harness.join(rank=0, world_size=2)
            assert (current, save) == await harness.join(rank=1, world_size=2)
            assert save.step == expected
            waiting = asyncio.create_task(harness.report(current.number, rank=0, wait_ms=LONG_MS))
            assert await harness.report(current.number, rank=1, failure="unreadable") == "next"
            assert await waiting == "next"
        with pytest.raises(NotRestorableError, match="unreadable"):
            await harness.join(rank=0, world_size=2)

    asyncio.run(run())


def test_a_round_after_a_failure_never_goes_to_something_newer() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        by = attempt(1)
        await harness.join(by=by)
        await harness.report(1, by=by, failure="unreadable")
        await harness.save(30, by=by)  # a part of the job that did not wait for the restore
        _, save = await harness.join(by=by)
        assert save.step == 10

    asyncio.run(run())


def test_a_damaged_generation_is_passed_over_unless_it_is_asked_for() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        damaged = (await harness.controller.catalog.get(JOB, 20)).value
        await harness.controller.catalog.mark_damage(JOB, 20, damaged.save_id, "a bit flipped")
        current, save = await harness.join()
        assert save.step == 10
        await harness.report(current.number)
        current, save = await harness.join(step=20)
        assert save.step == 20
        await harness.report(current.number, failure="it is damaged indeed")
        with pytest.raises(NotRestorableError):
            await harness.join(step=20)

    asyncio.run(run())


def test_nothing_later_than_the_limit_is_restored_and_what_fails_there_leads_further_back() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20, 30)
        by = attempt(1)
        current, save = await harness.join(by=by, resume=True, up_to_step=20)
        assert save.step == 20
        await harness.report(current.number, by=by, failure="unreadable")
        current, save = await harness.join(by=by, resume=True, up_to_step=20)
        assert save.step == 10
        assert await harness.report(current.number, by=by) == "done"
        for later in (20, 30):
            assert (await harness.controller.catalog.get(JOB, later)).value.state is SaveState.SET_ASIDE
        with pytest.raises(NotFoundError, match="up to step 5"):
            await harness.join(by=by, resume=True, up_to_step=5)

    asyncio.run(run())


def test_ranks_that_ask_for_different_restores_are_told_so() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        await harness.join(rank=0, world_size=2)
        with pytest.raises(WorldSizeMismatchError):
            await harness.join(rank=1, world_size=3)
        with pytest.raises(InvalidArgumentError):
            await harness.join(rank=1, world_size=2, step=10)
        with pytest.raises(InvalidArgumentError):
            await harness.join(rank=1, world_size=2, resume=True)
        with pytest.raises(InvalidArgumentError):
            await harness.join(rank=1, world_size=2, up_to_step=10)

    asyncio.run(run())


def test_a_rank_that_does_not_exist_verifies_nothing() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        await harness.join(rank=0, world_size=2)
        await harness.report(1, rank=0)
        with pytest.raises(InvalidArgumentError):
            await harness.report(1, rank=7)
        assert await harness.report(1, rank=0) == "open"

    asyncio.run(run())


def test_nothing_to_restore_is_told_apart() -> None:
    async def run() -> None:
        harness = await started()
        with pytest.raises(NotFoundError):
            await harness.join()
        await harness.begin(5, world_size=2)
        with pytest.raises(NotFoundError):
            await harness.join()
        await harness.save(10)
        with pytest.raises(NotFoundError):
            await harness.join(step=11)
        with pytest.raises(NotFoundError):
            await harness.report(3)

    asyncio.run(run())


def test_a_slow_rank_hears_that_its_round_was_done_although_the_next_is_open() -> None:
    """The fast rank restores twice; the slow one asks for the first round when the second has begun."""

    async def run() -> None:
        harness = await with_steps(10)
        for rank in range(2):
            await harness.join(rank=rank, world_size=2)
        assert await harness.report(1, rank=0) == "open"
        assert await harness.report(1, rank=1) == "done"
        second, _ = await harness.join(rank=1, world_size=2)
        assert second.number == 2
        assert await harness.report(1, rank=0) == "done"
        await harness.report(2, rank=1, failure="unreadable")
        assert await harness.report(1, rank=0) == "done"

    asyncio.run(run())


def test_an_attempt_that_was_superseded_gets_no_outcome() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        by = attempt(1)
        for rank in range(2):
            await harness.join(rank=rank, world_size=2, by=by)
        waiting = asyncio.create_task(harness.report(1, rank=0, by=by, wait_ms=LONG_MS))
        newer, _ = await harness.join(rank=0, world_size=2, by=attempt(2))
        assert newer.number == 1
        with pytest.raises(StaleAttemptError):
            await waiting
        with pytest.raises(StaleAttemptError):
            await harness.report(1, rank=1, by=by)
        with pytest.raises(StaleAttemptError):
            await harness.join(rank=1, world_size=2, by=by)

    asyncio.run(run())


# Controllers that come and go


def test_a_round_goes_on_under_a_new_controller() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        for rank in range(2):
            await harness.join(rank=rank, world_size=2)
        assert await harness.report(1, rank=0) == "open"
        await harness.start()
        assert await harness.report(1, rank=1) == "open"
        assert await harness.report(1, rank=0) == "done"

    asyncio.run(run())


def test_a_round_pins_its_generation_under_a_new_controller_too() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        await harness.join(world_size=2)
        await harness.start()
        assert len(harness.controller.rounds.pinned()) == 1
        with pytest.raises(RefusedError):
            await harness.controller.catalog.delete(JOB, 10, why="test")

    asyncio.run(run())


def test_a_round_whose_opening_was_never_answered_pins_its_generation_and_can_be_joined() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await harness.join()
        with pytest.raises(RefusedError):
            await harness.controller.catalog.delete(JOB, 10, why="test")
        current, _ = await harness.join()
        assert current.number == 1
        assert len(harness.controller.rounds.pinned()) == 1
        assert await harness.report(1) == "done"
        assert harness.controller.rounds.pinned() == set()

    asyncio.run(run())


def test_a_round_whose_end_was_never_answered_has_ended() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        await harness.join()
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await harness.report(1)
        assert await harness.report(1) == "done"
        assert harness.controller.rounds.pinned() == set()
        await harness.controller.catalog.delete(JOB, 10, why="test")

    asyncio.run(run())


# Pins


def test_a_delete_and_a_round_that_pins_the_same_generation_never_both_win() -> None:
    async def run(delete_first: bool) -> None:
        harness = await with_steps(10)

        async def call(delete: bool) -> None:
            if delete:
                await harness.controller.catalog.delete(JOB, 10, why="test")
            else:
                await harness.join()

        async def interrupt(_: int) -> None:
            harness.store.heal()
            await call(delete_first)

        harness.store.before = interrupt
        with pytest.raises((UnavailableError, RefusedError, NotFoundError)):
            await call(not delete_first)
        assert bool(await harness.steps()) == (not delete_first)

    asyncio.run(run(True))
    asyncio.run(run(False))


def test_a_round_that_nobody_has_spoken_for_in_a_day_pins_nothing_and_goes_back_when_somebody_does() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        await harness.join()
        await harness.pass_time(3600)
        with pytest.raises(RefusedError):
            await harness.controller.catalog.delete(JOB, 20, why="test")
        await harness.pass_time(25 * 3600)
        await harness.controller.catalog.delete(JOB, 20, why="test")
        current, save = await harness.join()
        assert (current.number, save.step) == (2, 10)

    asyncio.run(run())


def test_a_rank_that_joins_late_keeps_the_pin() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        for rank in range(3):
            await harness.join(rank=rank, world_size=3)
            await harness.pass_time(20 * 3600)
        with pytest.raises(RefusedError):
            await harness.controller.catalog.delete(JOB, 10, why="test")

    asyncio.run(run())


def test_a_round_of_a_superseded_attempt_pins_nothing() -> None:
    async def run() -> None:
        harness = await with_steps(10)
        await harness.join(world_size=2, by=attempt(1))
        await harness.begin(20, by=attempt(2))
        await harness.controller.catalog.delete(JOB, 10, why="test")

    asyncio.run(run())


# Resuming


def test_a_plain_restore_sets_nothing_aside() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20, 30)
        current, _ = await harness.join(by=attempt(1), step=10)
        assert await harness.report(current.number, by=attempt(1)) == "done"
        assert await harness.steps() == [30, 20, 10]

    asyncio.run(run())


def test_resuming_sets_later_generations_aside_but_keeps_them() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20, 30)
        await harness.resume(by=attempt(1), step=10)
        assert await harness.steps() == [10]
        assert [(step, state) for step, _, state in await harness.states()] == [
            (30, SaveState.SET_ASIDE),
            (20, SaveState.SET_ASIDE),
            (10, SaveState.COMMITTED),
        ]
        assert (await harness.controller.catalog.get(JOB, 30)).value.state is SaveState.SET_ASIDE
        _, save = await harness.join(by=attempt(2))
        assert save.step == 10

    asyncio.run(run())


def test_nothing_is_set_aside_before_all_ranks_have_verified() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        by = attempt(1)
        for rank in range(2):
            await harness.join(rank=rank, world_size=2, by=by, step=10, resume=True)
        await harness.report(1, rank=0, by=by)
        assert await harness.steps() == [20, 10]
        await harness.report(1, rank=1, by=by)
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_hundreds_of_generations_are_set_aside() -> None:
    async def run() -> None:
        harness = await with_steps(*range(230))
        await harness.resume(by=attempt(1), step=5)
        assert await harness.steps() == [5, 4, 3, 2, 1, 0]

    asyncio.run(run())


def test_a_change_of_a_generation_while_it_is_set_aside_is_not_lost() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        by = attempt(1)
        await harness.join(by=by, step=10, resume=True)
        at = harness.store.txn_count

        async def hold(number: int) -> None:
            if number == at + 2:
                harness.store.heal()
                await harness.controller.catalog.hold(JOB, 20, held=True)

        harness.store.before = hold
        assert await harness.report(1, by=by) == "done"
        save = (await harness.controller.catalog.get(JOB, 20)).value
        assert (save.state, save.held) == (SaveState.SET_ASIDE, True)

    asyncio.run(run())


@pytest.mark.parametrize("attempts_since", [0, 1])
def test_a_late_commit_of_an_attempt_that_was_left_behind_is_set_aside(attempts_since: int) -> None:
    async def run() -> None:
        harness = await with_steps(10)
        late = await harness.begin(30)
        harness.store.fail(2, FullError("no room"))
        with pytest.raises(FullError):
            await harness.seal(late)
        # Fully sealed, but not committed until the next attempts have resumed from before it.
        at = harness.store.txn_count

        async def no_room(number: int) -> None:
            if keys.save(JOB, 30, 1) in {getattr(op, "key", "") for op in harness.store.txns[number - 1][1]}:
                raise FullError("no room")

        harness.store.before = no_room
        await harness.resume(by=attempt(1))
        for number in range(attempts_since):
            await harness.begin(15, by=attempt(2 + number))
        assert harness.store.txn_count > at
        assert (await harness.find(late)).state is SaveState.PENDING
        harness.store.heal()
        await harness.collect()
        assert (await harness.find(late)).state is SaveState.SET_ASIDE
        assert (await harness.steps())[0] == 10

    asyncio.run(run())


def test_what_comes_back_from_the_trash_after_a_resume_is_set_aside() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        await harness.controller.catalog.delete(JOB, 20, why="test")
        await harness.resume(by=attempt(1))
        save = await harness.controller.catalog.undelete(JOB, 20)
        assert save.state is SaveState.SET_ASIDE
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_a_generation_that_was_set_aside_can_be_resumed_from_again() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        await harness.resume(by=attempt(1), step=10)
        await harness.save(15, by=attempt(1))
        assert (await harness.resume(by=attempt(2), step=20)).step == 20
        assert await harness.steps() == [20, 15, 10]

    asyncio.run(run())


def test_the_job_remembers_who_resumed_from_where() -> None:
    async def run() -> None:
        harness = await with_steps(10, 20)
        await harness.resume(by=attempt(1), step=10)
        job = await harness.controller.records.get(keys.job(JOB), Job)
        assert job
        assert (job.value.attempt, job.value.resumed_attempt, job.value.resumed_step) == (2, 2, 10)

    asyncio.run(run())
