"""I2: begin, receipt and commit may be interrupted between any two transactions, and nothing is ever half there.

Each schedule counts the transactions of an undisturbed run, then repeats it once for each of them: it fails, or happens
and is never answered.
"""

from __future__ import annotations

import contextlib

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import StaleAttemptError
from sdrs_core.ids import NodeId
from tests.support.control import GRACE_SECONDS, JOB, NODE, TTL_SECONDS, Harness, attempt, started
from tests.support.interrupts import Story, interrupt_everywhere


async def save_with_two_ranks(harness: Harness) -> None:
    await harness.save(10, world_size=2, by=attempt(1))


async def save_again_with_a_new_attempt(harness: Harness) -> None:
    with contextlib.suppress(StaleAttemptError):
        await harness.begin(5, by=attempt(1), world_size=2)
    await harness.save(10, by=attempt(2))


async def join_as_a_new_node(harness: Harness) -> None:
    harness.node_ids = (NODE, NodeId("node-2"))
    await harness.register()


async def make_and_drop_a_pool(harness: Harness) -> None:
    await harness.create_pool("fast")
    await harness.delete_pool("fast")


async def delete_and_collect(harness: Harness) -> None:
    if 1 in await harness.steps():
        await harness.controller.catalog.delete(JOB, 1, why="test")
    await harness.pass_time(GRACE_SECONDS + 1)
    await harness.collect(3)


async def resume_one_back(harness: Harness) -> None:
    by = attempt(1)
    outcome = "next"
    while outcome == "next":
        current, save = await harness.join(by=by, resume=True)
        assert save.step <= 2
        outcome = await harness.report(current.number, by=by, failure="unreadable" if save.step == 2 else "")
    assert await harness.steps() == [1]


STORIES: list[Story] = [
    save_with_two_ranks,
    save_again_with_a_new_attempt,
    join_as_a_new_node,
    make_and_drop_a_pool,
    delete_and_collect,
    resume_one_back,
]


async def prepared() -> Harness:
    harness = await started()
    await harness.save(1)
    await harness.save(2)
    return harness


async def check(harness: Harness) -> None:
    """What is visible is whole, what is pending ends, the next save works, the totals are right."""
    for save in await harness.listed(all_states=True):
        if save.state.is_readable:
            assert len(await harness.shards(save)) == save.world_size
    harness.beat()
    latest = attempt(9)
    assert (await harness.save(100, world_size=2, by=latest)).state is SaveState.COMMITTED
    await harness.pass_time(TTL_SECONDS + 1)
    await harness.collect()
    assert len(harness.controller.commits) == 0
    readable = [save for save in await harness.listed(all_states=True) if save.state.is_readable]
    assert len(readable) == len(await harness.listed(all_states=True))
    assert harness.controller.tally.saves_by_pool[DEFAULT_POOL] == len(readable)
    assert harness.controller.tally.bytes_by_pool[DEFAULT_POOL] == sum(save.size_bytes for save in readable)
    await harness.pass_time(GRACE_SECONDS + 1)
    await harness.collect(3)
    assert await harness.trash() == []
    named = {
        (blob.id, holder.fragment_index)
        for save in readable
        for shard in await harness.shards(save)
        for blob in shard.blobs
        for holder in blob.holders
    }
    assert set().union(*(harness.nodes.names(node_id) for node_id in harness.nodes.fragments)) == named


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_an_interrupt_at_any_transaction_leaves_nothing_half_done(story: Story, lost: bool, restart: bool) -> None:
    interrupt_everywhere(prepared, story, check, lost=lost, restart=restart)
