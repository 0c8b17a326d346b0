"""P4, P10, P14: what repair does with fragments of a code may be interrupted between any two transactions.

As in ``test_repair_interrupts``: each transaction fails once, or happens and is never answered; whatever is dropped
meanwhile must not count on record at that moment, and what was safe stays safe.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.cluster import Disk, DiskState, Node, Order
from sdrs_core.ids import DiskId
from sdrs_core.levels import Level
from sdrs_core.redundancy import Standing
from sdrs_storaged.control.claims import FragmentName
from tests.support.control import DISK, Harness
from tests.support.deep import (
    DEEP,
    MIB,
    NODES,
    blob_at,
    drain,
    nothing_else_is_stored,
    places,
    retire,
    save_deep,
    stands,
    started_deep,
)
from tests.support.interrupts import Story, interrupt_everywhere
from tests.support.mirrors import LONG_SECONDS, repair

OTHER_DISK = DiskId("e" * 32)
STEPS = (1, 2)


async def rebuild_what_two_nodes_took_with_them(harness: Harness) -> None:
    harness.silent.update(NODES[:2])
    await harness.pass_time(LONG_SECONDS)
    await repair(harness)


async def trim_what_is_too_many_when_they_return(harness: Harness) -> None:
    await rebuild_what_two_nodes_took_with_them(harness)
    harness.silent.clear()
    await repair(harness)


async def drain_a_node(harness: Harness) -> None:
    await drain(harness, NODES[0])
    await repair(harness)


async def give_up_a_disk(harness: Harness) -> None:
    for name in list(harness.nodes.names(NODES[0])):
        if harness.nodes.disk_of[(NODES[0], name)] == DISK:
            harness.nodes.take(NODES[0], name[0], index=name[1])
    harness.disks[NODES[0]] = (Disk(OTHER_DISK, "/new", DiskState.OK, 10_000 * MIB, 0, 0),)
    harness.nodes.writes_to[NODES[0]] = OTHER_DISK
    await retire(harness, NODES[0], DISK)
    await repair(harness)


async def spread_again(harness: Harness) -> None:
    """Doubled up on four, then there are eight again."""
    harness.silent.update(NODES[4:8])
    await harness.pass_time(LONG_SECONDS)
    await repair(harness)
    harness.silent.clear()
    await repair(harness)


STORIES: list[Story] = [
    rebuild_what_two_nodes_took_with_them,
    trim_what_is_too_many_when_they_return,
    drain_a_node,
    give_up_a_disk,
    spread_again,
]


class Watched(Harness):
    async def watch(self) -> None:
        drop = self.nodes.drop_fragments

        async def checked(node: Node, names: Sequence[FragmentName], order: Order) -> set[FragmentName]:
            for save in await self.listed(all_states=True):
                for shard in await self.shards(save):
                    for blob in shard.blobs:
                        counting = {(node_id, (blob.id, index)) for node_id, index in places(blob)}
                        assert counting.isdisjoint((node.id, name) for name in names)
                        assert stands(self, blob) >= Standing.SAFE
            return await drop(node, names, order)

        self.nodes.drop_fragments = checked  # type: ignore[method-assign]


async def prepared() -> Harness:
    harness = await started_deep(8, kind=Watched)
    assert isinstance(harness, Watched)
    for step in STEPS:
        await save_deep(harness, step)
    await repair(harness)
    await harness.watch()
    return harness


async def check(harness: Harness) -> None:
    """In the end each fragment is there once, on record and in truth, in a domain of its own."""
    harness.silent.clear()
    if NODES[0] in harness.disks:
        await retire(harness, NODES[0], DISK)  # if nobody was told yet
    for _ in range(4):
        await harness.pass_time(LONG_SECONDS)
        await repair(harness)
    for save in await harness.listed():
        assert (save.state, save.level, save.damage, save.degraded) == (SaveState.COMMITTED, Level.L3, "", False)
    for step in STEPS:
        blob = await blob_at(harness, step)
        assert stands(harness, blob, DEEP) is Standing.FULL
        assert len(blob.holders) == 6
    await nothing_else_is_stored(harness)


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_an_interrupt_at_any_transaction_leaves_every_blob_whole(story: Story, lost: bool, restart: bool) -> None:
    interrupt_everywhere(prepared, story, check, lost=lost, restart=restart)
