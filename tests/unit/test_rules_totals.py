"""The totals follow the records: each change counts once, however late, often or never the store tells of it.

Pools are deleted and quotas are kept by them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import RefusedError, UnavailableError
from sdrs_storaged.control import keys, tally
from tests.support.control import JOB, TTL_SECONDS, Harness, started

SPARE = "spare"


async def agree(harness: Harness) -> None:
    """With the records, and so with what the next controller counts."""
    ours = harness.controller.tally
    await harness.start()
    anew = harness.controller.tally
    for name in ("saves_by_pool", "bytes_by_pool", "mirrored_saves", "mirrored_bytes", "mirrors_in"):
        counted, expected = getattr(ours, name), getattr(anew, name)
        assert all(counted[pool] == expected[pool] for pool in {*counted, *expected}), name
    assert ours.degraded_saves == anew.degraded_saves
    assert ours.damaged == anew.damaged


async def mirror(harness: Harness, save: Save, pool: str = SPARE) -> None:
    """As repair records it."""
    key = keys.save(save.job, save.step, save.attempt)
    await harness.controller.catalog.amend(key, save.save_id, lambda known: replace(known, mirror_pool=pool))


async def commit_unheard(harness: Harness, step: int) -> Save:
    """It is committed, and for this controller still pending."""
    begun = await harness.begin(step)
    harness.store.lose_answer_of(2)
    with pytest.raises(UnavailableError):
        await harness.seal(begun)
    harness.store.heal()
    assert len(harness.controller.commits) == 1
    return await harness.find(begun)


class Delays:
    """Answers of the store that come when they are let go, or never."""

    def __init__(self, harness: Harness) -> None:
        self._heard: list[asyncio.Future[None]] = []
        self._asked = asyncio.Event()
        harness.store.after = self._wait

    async def _wait(self, number: int) -> None:
        heard = asyncio.get_running_loop().create_future()
        self._heard.append(heard)
        self._asked.set()
        await heard

    async def begin(self, change: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Up to where the store has made it, and its answer is on its way."""
        count, task = len(self._heard), asyncio.ensure_future(change)
        await self.until_asked(count + 1)
        return task

    async def until_asked(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self._heard) < count:
                self._asked.clear()
                await self._asked.wait()

    def tell(self, number: int) -> None:
        self._heard[number].set_result(None)

    def lose(self, number: int) -> None:
        self._heard[number].set_exception(UnavailableError("the answer was lost"))


def test_a_commit_that_was_not_heard_of_counts_once_though_its_record_is_changed_before_it_is_found() -> None:
    async def run() -> None:
        harness = await started()
        save = await commit_unheard(harness, 10)
        await mirror(harness, save)
        await harness.collect()
        assert len(harness.controller.commits) == 0
        assert harness.controller.tally.mirrored_saves[DEFAULT_POOL] == 1
        assert harness.controller.tally.commits_total == 1
        await agree(harness)

    asyncio.run(run())


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_commit_that_was_not_heard_of_does_not_count_less_than_nothing_once_it_is_deleted(is_heard: bool) -> None:
    """I4: two wrongs of this kind, and a pool that has a checkpoint is deleted as an empty one."""

    async def run() -> None:
        harness = await started()
        await harness.create_pool("fast")
        await harness.save(5, pool="fast")
        begun = await harness.begin(10, pool="fast")
        harness.store.lose_answer_of(2)
        with pytest.raises(UnavailableError):
            await harness.seal(begun)
        harness.store.heal()
        if is_heard:
            await harness.controller.catalog.delete(JOB, 10, why="test")
        else:
            harness.store.lose_answer_of(1)
            with pytest.raises(UnavailableError):
                await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.collect()
        with pytest.raises(RefusedError, match="still holds 1 checkpoints"):
            await harness.delete_pool("fast")
        await agree(harness)

    asyncio.run(run())


def test_a_change_that_is_given_up_after_the_next_one_was_heard_of_counts_once() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        delays = Delays(harness)
        mirroring = await delays.begin(mirror(harness, save))
        ending = await delays.begin(mirror(harness, save, pool=""))
        delays.tell(1)
        await ending
        delays.lose(0)
        with pytest.raises(UnavailableError):
            await mirroring
        harness.store.heal()
        await harness.collect()
        assert harness.controller.tally.mirrored_saves[DEFAULT_POOL] == 0
        await agree(harness)

    asyncio.run(run())


def test_answers_that_overtake_each_other_leave_what_came_last() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        catalog, delays = harness.controller.catalog, Delays(harness)
        marking = await delays.begin(catalog.mark_damage(JOB, 10, save.save_id, "a bit flipped"))
        clearing = await delays.begin(catalog.mark_damage(JOB, 10, save.save_id, ""))
        delays.tell(1)
        await clearing
        delays.tell(0)
        await marking
        harness.store.heal()
        assert not harness.controller.tally.damaged
        await agree(harness)

    asyncio.run(run())


def test_an_answer_that_comes_after_the_checkpoint_was_found_gone_brings_nothing_back() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        delays = Delays(harness)
        mirroring = await delays.begin(mirror(harness, save))
        deleting = await delays.begin(harness.controller.catalog.delete(JOB, 10, why="test"))
        delays.lose(1)
        with pytest.raises(UnavailableError):
            await deleting
        harness.store.heal()
        await harness.collect()
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 0
        delays.tell(0)
        await mirroring
        await agree(harness)

    asyncio.run(run())


def test_a_doubt_is_looked_into_until_that_is_answered_and_then_no_more() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await mirror(harness, save)
        harness.store.heal()
        look = harness.store.range

        async def fail(*args: Any, **kwargs: Any) -> Any:
            raise UnavailableError("not now")

        async def look_slowly(*args: Any, **kwargs: Any) -> Any:
            """While the answer is on its way, the next change is not answered either."""
            harness.store.range = look  # type: ignore[method-assign]
            page = await look(*args, **kwargs)
            harness.store.lose_answer_of(1)
            with pytest.raises(UnavailableError):
                await mirror(harness, save, pool="")
            return page

        catalog, totals = harness.controller.catalog, harness.controller.tally
        for reading, mirrored in ((fail, 0), (look_slowly, 1), (look, 0)):
            harness.store.range = reading  # type: ignore[method-assign]
            with suppress(UnavailableError):
                await catalog.settle_doubts()
            assert totals.mirrored_saves[DEFAULT_POOL] == mirrored
        assert not totals.doubtful
        await agree(harness)

    asyncio.run(run())


def test_a_change_of_a_record_that_moved_on_before_counts_nothing_though_it_is_never_answered() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        stale = await harness.controller.catalog.get(JOB, 10)
        await mirror(harness, stale.value)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await harness.controller.catalog.discard(stale, why="test")
        harness.store.heal()
        await harness.collect()
        assert harness.controller.tally.mirrored_saves[DEFAULT_POOL] == 1
        await agree(harness)

    asyncio.run(run())


def test_a_checkpoint_that_two_bring_back_at_once_counts_once_though_one_of_them_is_never_answered() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        catalog = harness.controller.catalog
        await catalog.delete(JOB, 10, why="test")
        delays = Delays(harness)
        first = asyncio.ensure_future(catalog.undelete(JOB, 10))
        second = asyncio.ensure_future(catalog.undelete(JOB, 10))
        await delays.until_asked(2)
        delays.tell(0)
        await first
        delays.lose(1)
        with pytest.raises(UnavailableError):
            await second
        harness.store.heal()
        await catalog.delete(JOB, 10, why="test")
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 0
        await agree(harness)

    asyncio.run(run())


def test_a_change_that_happens_after_it_was_given_up_counts_with_the_next_one() -> None:
    """A transaction may lie in the store's queue for longer than its caller waits."""

    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        harness.store.fail(1, UnavailableError("not now"))
        with pytest.raises(UnavailableError):
            await mirror(harness, save)
        harness.store.heal()
        given_up = harness.store.txns[-1]
        await harness.collect()
        assert (await harness.store.txn(*given_up)).succeeded
        await harness.controller.catalog.hold(JOB, 10, held=True)
        assert harness.controller.tally.mirrored_saves[DEFAULT_POOL] == 1
        await agree(harness)

    asyncio.run(run())


def test_what_is_in_doubt_or_pending_is_not_forgotten_over_all_that_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tally, "_MAX_REMEMBERED", 1)

    async def run() -> None:
        harness = await started()
        doubtful, begun = await harness.save(10), await harness.begin(20)
        harness.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await mirror(harness, doubtful)
        harness.store.heal()
        for step in (30, 40, 50):
            await harness.save(step)
            await harness.controller.catalog.delete(JOB, step, why="test")
        await harness.seal(begun)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        assert harness.controller.tally.mirrored_saves[DEFAULT_POOL] == 0
        await agree(harness)

    asyncio.run(run())


def test_a_save_that_another_rank_finds_before_its_begin_is_answered_counts_once_and_keeps_what_is_in() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(5)
        delays = Delays(harness)
        first = await delays.begin(harness.begin(10, rank=0, world_size=2))
        harness.store.heal()
        await harness.seal(await harness.begin(10, rank=1, world_size=2), rank=1)
        delays.tell(0)
        begun = await first
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 2
        assert await harness.seal(begun, rank=0) is SaveState.COMMITTED
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect()
        assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == 2
        await agree(harness)

    asyncio.run(run())
