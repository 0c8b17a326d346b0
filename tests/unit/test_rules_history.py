"""P18: a catalog that was put back to the past is recognised by any node that followed the future, in whatever order
they come, and however far the new history has grown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import RefusedError
from sdrs_core.ids import NodeId
from sdrs_storaged.control.meta.store import LEADER_KEY, Delete
from tests.support.control import JOB, NODE, FaultyStore, Harness, node

OTHER = NodeId("node-2")


def _copy_of(harness: Harness) -> FaultyStore:
    """The catalog as it is now, as a backup would have it: with its revision."""
    copy = FaultyStore()
    copy._entries, copy._keys = dict(harness.store._entries), list(harness.store._keys)
    copy._counters, copy._history = harness.store._counters, dict(harness.store._history)
    return copy


async def _put_back(harness: Harness, copy: FaultyStore) -> Harness:
    """A new controller on the copy; whoever led when it was made is gone."""
    restored = Harness(store=copy, node_ids=(OTHER,))
    await copy.txn([], [Delete(LEADER_KEY)])
    await restored.start()
    return restored


def _seen(harness: Harness) -> Authority:
    return harness.controller.members.authority()


async def _meet(harness: Harness, seen: Authority) -> None:
    await harness.controller.members.register(node(NODE), f"key of {NODE}", seen=seen)


def play(test: Callable[[Harness], Awaitable[None]]) -> None:
    async def run() -> None:
        harness = Harness(node_ids=(NODE, OTHER))
        await harness.start()
        await harness.save(1)
        await test(harness)

    asyncio.run(run())


async def _outgrow(restored: Harness, revision: int) -> None:
    """The new history writes more than the old one had."""
    step = 100
    while restored.controller.records.revision <= revision + 10:
        await restored.save(step)
        step += 1


def test_a_node_that_saw_more_of_the_last_common_term_is_noticed_after_the_new_history_outgrew_it() -> None:
    async def test(harness: Harness) -> None:
        copy = _copy_of(harness)
        await harness.save(2)
        seen = _seen(harness)
        restored = await _put_back(harness, copy)
        await _outgrow(restored, seen.revision)
        with pytest.raises(RefusedError, match="rolled back"):
            await _meet(restored, seen)
        with pytest.raises(RefusedError, match="rolled back"):
            await restored.save(999)

    play(test)


def test_a_node_that_followed_a_term_of_the_same_number_is_noticed() -> None:
    async def test(harness: Harness) -> None:
        copy = _copy_of(harness)
        await harness.start()  # a second term, which the copy does not know
        await harness.save(2)
        seen = _seen(harness)
        restored = await _put_back(harness, copy)
        await _outgrow(restored, seen.revision)
        assert restored.controller.records.term.number == seen.term
        with pytest.raises(RefusedError, match="rolled back"):
            await _meet(restored, seen)

    play(test)


def test_a_node_that_followed_a_term_that_never_was_is_noticed() -> None:
    async def test(harness: Harness) -> None:
        seen = replace(_seen(harness), term=7, revision=1)
        with pytest.raises(RefusedError, match="rolled back"):
            await _meet(harness, seen)

    play(test)


def test_nodes_of_the_same_history_are_welcome_whichever_term_they_saw_last() -> None:
    async def test(harness: Harness) -> None:
        authorities = [_seen(harness)]
        for step in (2, 3):
            await harness.start()
            authorities.append(_seen(harness))
            await harness.save(step)
            authorities.append(_seen(harness))
        for seen in [*authorities, Authority(), Authority(1, 1, 1)]:
            await _meet(harness, seen)
        await harness.save(4)

    play(test)


def test_what_a_deposed_controller_reads_does_not_make_its_nodes_look_like_travellers() -> None:
    async def test(harness: Harness) -> None:
        old = harness.controller
        await harness.start()
        await harness.save(2)
        await old.catalog.page(JOB, all_states=False, after="", limit=10)
        await _meet(harness, old.members.authority())

    play(test)
