"""I6: whoever waits for a level gets that level, or an error; never less."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sdrs import aio, saving
from sdrs.errors import DeadlineExceededError, SaveFailedError, UnsupportedError
from sdrs.saving import Saving
from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.levels import Level

DEGRADED = Save(
    SaveId("5" * 32),
    JobName("j"),
    7,
    1,
    1,
    PoolName("fast"),
    ContentKind.STATE,
    SaveState.COMMITTED,
    Level.L1,
    10,
    0,
)
FULL = replace(DEGRADED, level=Level.L2)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "FIRST_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(saving, "MAX_LOOK_SECONDS", 0.001)


def committed(first: Save, *later: Save) -> Saving:
    """A save whose commit answered ``first``; looked at again it is ``later``, the last for ever."""
    looks = list(later)

    def look_again(save: Save) -> Save:
        assert save.save_id == first.save_id
        return looks.pop(0) if len(looks) > 1 else looks[0]

    made = Saving("j", 7, 10, lambda: Level.L2, None, look_again)
    made.outcome.set_result(first)
    return made


def test_without_a_level_the_commit_is_enough_and_tells_what_it_reached() -> None:
    assert committed(DEGRADED, DEGRADED).wait().level is Level.L1
    assert committed(DEGRADED, DEGRADED).wait("L1").level is Level.L1


def test_a_degraded_commit_is_waited_for_until_its_level_rose() -> None:
    assert committed(DEGRADED, DEGRADED, DEGRADED, FULL).wait("L2").level is Level.L2
    assert committed(FULL).wait("L2", timeout=0).level is Level.L2


def test_a_level_that_does_not_rise_is_a_timeout_that_says_so_and_can_be_waited_for_again() -> None:
    degraded = committed(DEGRADED, DEGRADED)
    for _ in range(2):
        with pytest.raises(DeadlineExceededError, match="committed at L1, and not at L2 after"):
            degraded.wait("L2", timeout=0.05)


def test_a_checkpoint_that_is_gone_reaches_nothing_any_more() -> None:
    with pytest.raises(SaveFailedError, match="never reached"):
        committed(DEGRADED, replace(DEGRADED, state=SaveState.DELETED)).wait("L2")


def test_a_level_that_the_pool_does_not_promise_is_refused() -> None:
    with pytest.raises(UnsupportedError):
        committed(FULL).wait("L3")


def test_the_async_twin_waits_for_the_level_too() -> None:
    async def run() -> None:
        with ThreadPoolExecutor(2) as pool:
            assert (await aio.Saving(committed(DEGRADED, DEGRADED, FULL), pool).wait("L2")).level is Level.L2
            assert (await aio.Saving(committed(DEGRADED, DEGRADED), pool).wait()).level is Level.L1
            with pytest.raises(DeadlineExceededError):
                await aio.Saving(committed(DEGRADED, DEGRADED), pool).wait("L2", timeout=0.05)

    asyncio.run(run())
