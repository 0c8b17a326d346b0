"""P4, P13, P14: repair, trims and the collector may be interrupted between any two transactions, with several holders.

Each schedule counts the transactions of an undisturbed run, then repeats it once for each of them: it fails, or happens
and is never answered. Whatever is dropped meanwhile must not count on record at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.cluster import Node, Order
from sdrs_core.levels import Level
from sdrs_storaged.control.claims import FragmentName
from tests.support.control import GRACE_SECONDS, JOB, Harness
from tests.support.interrupts import Story, interrupt_everywhere
from tests.support.mirrors import A, B, C, D, blob_of, mirrored, started_with_mirrors

NODES = (A, B, C, D)


async def repair(harness: Harness) -> None:
    harness.beat()
    await harness.controller.repairer.pass_once()


async def copy_what_a_node_took_with_it(harness: Harness) -> None:
    harness.silent.add(B)
    await harness.pass_time(61)
    await repair(harness)


async def trim_what_is_too_many(harness: Harness) -> None:
    await repair(harness)


async def notice_what_a_node_lost(harness: Harness) -> None:
    for save in await harness.listed():
        blob_id = (await blob_of(harness, save)).id
        if B in harness.nodes.having(blob_id):
            harness.nodes.take(B, blob_id)
    harness.controller.repairer.node_returned(B)
    await repair(harness)


async def delete_and_collect(harness: Harness) -> None:
    if 2 in await harness.steps():
        await harness.controller.catalog.delete(JOB, 2, why="test")
    await harness.pass_time(GRACE_SECONDS + 1)
    await harness.collect()


async def delete_and_collect_while_a_node_is_down(harness: Harness) -> None:
    harness.silent.add(B)
    await delete_and_collect(harness)


STORIES: list[tuple[Story, Sequence[str]]] = [
    (copy_what_a_node_took_with_it, (A, B)),
    (trim_what_is_too_many, (A, B, C)),
    (notice_what_a_node_lost, (A, B)),
    (delete_and_collect, (A, B)),
    (delete_and_collect_while_a_node_is_down, (A, B)),
]


class Watched(Harness):
    """Nothing is dropped that counts on record (P14)."""

    async def watch(self) -> None:
        drop = self.nodes.drop_fragments

        async def checked(node: Node, names: Sequence[FragmentName], order: Order) -> set[FragmentName]:
            for save in [*await self.listed(all_states=True), *await self.trash()]:
                for shard in await self.shards(save):
                    for blob in shard.blobs:
                        counted = {(h.node_id, (blob.id, h.fragment_index)) for h in blob.holders if not h.dropping}
                        assert counted.isdisjoint({(node.id, name) for name in names})
            return await drop(node, names, order)

        self.nodes.drop_fragments = checked  # type: ignore[method-assign]


async def prepared(on: Sequence[str]) -> Harness:
    harness = await started_with_mirrors(node_ids=NODES, kind=Watched)
    assert isinstance(harness, Watched)
    await harness.watch()
    for step in (1, 2):
        await mirrored(harness, step, on, level=Level.L1)  # type: ignore[arg-type]
    return harness


async def check(harness: Harness) -> None:
    """In the end each blob has its two copies, on record and in truth, and nothing else is left anywhere."""
    harness.silent.clear()
    for _ in range(4):
        await harness.pass_time(60)
        await repair(harness)
    await harness.pass_time(GRACE_SECONDS + 1)
    await harness.collect(3)
    await repair(harness)
    assert await harness.trash() == []
    known: set[str] = set()
    for save in await harness.listed():
        assert (save.state, save.level, save.damage) == (SaveState.COMMITTED, Level.L2, "")
        known |= await check_copies(harness, save)
    assert {blob_id for node_id in NODES for blob_id, _ in harness.nodes.names(node_id)} == known


async def check_copies(harness: Harness, save: Save) -> set[str]:
    blob = await blob_of(harness, save)
    assert len(blob.holders) == 2
    assert not any(holder.dropping for holder in blob.holders)
    assert harness.nodes.having(blob.id) == {holder.node_id for holder in blob.holders}
    return {blob.id}


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize(("story", "on"), STORIES, ids=lambda value: getattr(value, "__name__", "holders"))
def test_an_interrupt_at_any_transaction_leaves_every_blob_with_its_copies(
    story: Story, on: Sequence[str], lost: bool, restart: bool
) -> None:
    interrupt_everywhere(lambda: prepared(on), story, check, lost=lost, restart=restart)


@pytest.mark.parametrize(("story", "on"), STORIES, ids=lambda value: getattr(value, "__name__", "holders"))
def test_without_an_interrupt_the_end_is_the_same(story: Story, on: Sequence[str]) -> None:
    async def run() -> None:
        harness = await prepared(on)
        await story(harness)
        await check(harness)

    asyncio.run(run())
