"""P2: a pool that wants another form gets it in the background. Each blob is made anew, whole, and takes the place of
the old one by compare-and-swap; nothing of either is lost on the way, and no space leaks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Save
from sdrs_core.cluster import Node, Order, Pool
from sdrs_core.codes import MIRROR, Code
from sdrs_core.ids import BlobId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from sdrs_core.redundancy import Standing
from sdrs_storaged.control.claims import FragmentName
from tests.support.control import GRACE_SECONDS, JOB, Harness
from tests.support.deep import (
    BLOB_BYTES,
    MIB,
    NODES,
    blob_at,
    look,
    nodes_of,
    nothing_else_is_stored,
    places,
    stands,
)
from tests.support.interrupts import interrupt_everywhere
from tests.support.mirrors import LONG_SECONDS, go_down, repair, write

POOL = PoolName("plain")
L2 = PoolChange(level=Level.L2, mirrors=2)
L3 = PoolChange(level=Level.L3, code=Code(4, 2))
WIDE = PoolChange(code=Code(8, 3))
# From, to, and the code that it ends up in.
CHANGES = {
    "L2 to L3": (Pool(POOL, Level.L2, mirrors=2), L3, "4+2"),
    "4+2 to 8+3": (Pool(POOL, Level.L3, data_fragments=4, parity_fragments=2), WIDE, "8+3"),
    "L3 to L2": (Pool(POOL, Level.L3, data_fragments=4, parity_fragments=2), L2, MIRROR),
}


class Watched(Harness):
    """Whatever is dropped does not count on record at that moment (P14), and what counts can be read all the time."""

    async def watch(self) -> None:
        drop = self.nodes.drop_fragments

        async def checked(node: Node, names: Sequence[FragmentName], order: Order) -> set[FragmentName]:
            for save in await self.listed(all_states=True):
                for shard in await self.shards(save):
                    for blob in shard.all_blobs:
                        counting = {(node_id, (blob.id, index)) for node_id, index in places(blob)}
                        assert counting.isdisjoint((node.id, name) for name in names)
                        assert stands(self, blob, save.pool) >= Standing.SAFE
            return await drop(node, names, order)

        self.nodes.drop_fragments = checked  # type: ignore[method-assign]


async def prepared(pool: Pool, kind: type[Harness] = Watched) -> Harness:
    harness = kind(node_ids=NODES, capacity_bytes=10_000 * MIB)
    await harness.start()
    await harness.controller.pools.create(pool, request_id="plain")
    for step in (1, 2):
        await save(harness, step)
    if isinstance(harness, Watched):
        await harness.watch()
    return harness


async def save(harness: Harness, step: int) -> Save:
    return await harness.save(step, pool=POOL, blob_bytes=BLOB_BYTES)


async def changed(harness: Harness, change: PoolChange) -> None:
    await harness.controller.pools.update(POOL, change)
    await repair(harness)


async def is_whole_in(harness: Harness, code: str) -> None:
    for step in (1, 2):
        blob = await blob_at(harness, step)
        assert blob.code == code
        assert stands(harness, blob, POOL) is Standing.FULL
    await nothing_else_is_stored(harness)


@pytest.mark.parametrize("name", CHANGES)
def test_a_pool_that_wants_another_form_gets_it_and_the_old_fragments_go(name: str) -> None:
    async def run() -> None:
        pool, change, code = CHANGES[name]
        harness = await prepared(pool)
        before = await blob_at(harness, 1)
        await harness.controller.pools.update(POOL, change)
        await repair(harness)
        after = await blob_at(harness, 1)
        assert (after.hash, after.size_bytes, after.ordinal) == (before.hash, before.size_bytes, before.ordinal)
        assert after.id != before.id
        # Who began to read the old one reads on: it is only on no record any more.
        assert harness.nodes.places(before.id) == places(before)
        await repair(harness)
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (change.level or pool.level, False)
        await is_whole_in(harness, code)

    asyncio.run(run())


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_transaction_leaves_every_blob_whole_and_nothing_beside_it(
    name: str, lost: bool, restart: bool
) -> None:
    pool, change, code = CHANGES[name]

    async def story(harness: Harness) -> None:
        await changed(harness, change)

    async def check(harness: Harness) -> None:
        await harness.controller.pools.update(POOL, change)
        for _ in range(3):
            await harness.pass_time(LONG_SECONDS)
            await repair(harness)
        await is_whole_in(harness, code)

    interrupt_everywhere(lambda: prepared(pool), story, check, lost=lost, restart=restart)


def test_what_is_being_made_is_on_no_record_and_not_collected_meanwhile() -> None:
    async def run() -> None:
        pool, change, _ = CHANGES["L2 to L3"]
        harness = await prepared(pool, Harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        made: set[BlobId] = set()
        old = {(await blob_at(harness, step)).id for step in (1, 2)}

        async def collect(node_id: NodeId, blob_id: BlobId) -> None:
            made.add(blob_id)
            before = harness.nodes.places(blob_id)
            await harness.collect(3)
            assert harness.nodes.places(blob_id) == before
            assert {(await blob_at(harness, step)).id for step in (1, 2)} & old

        harness.nodes.on_pull = collect
        await harness.controller.repairer.change_settings(concurrency=1)
        await changed(harness, change)
        assert made == {(await blob_at(harness, step)).id for step in (1, 2)}

    asyncio.run(run())


def test_a_controller_that_dies_while_it_makes_one_leaves_orphans_that_are_collected() -> None:
    async def run() -> None:
        pool, change, code = CHANGES["L2 to L3"]
        harness = await prepared(pool, Harness)
        count = 0

        async def die(node_id: NodeId, _: BlobId) -> None:
            nonlocal count
            count += 1
            if count == 3:
                running.cancel()
                await asyncio.sleep(0)

        harness.nodes.on_pull = die
        await harness.controller.pools.update(POOL, change)
        running = asyncio.create_task(repair(harness))
        with pytest.raises(asyncio.CancelledError):
            await running
        harness.nodes.on_pull = None
        await harness.start()
        await nothing_else_is_stored(harness)
        assert (await blob_at(harness, 1)).code == MIRROR
        await repair(harness, times=2)
        await is_whole_in(harness, code)

    asyncio.run(run())


def test_a_target_without_room_or_that_dies_is_passed_over_for_another() -> None:
    async def run() -> None:
        pool, change, code = CHANGES["L2 to L3"]
        harness = await prepared(pool)
        harness.nodes.full.update(NODES[:3])
        dying = NODES[3]

        async def die(node_id: NodeId, _: BlobId) -> None:
            if node_id == dying:
                await harness.kill(dying)

        harness.nodes.on_pull = die
        await changed(harness, change)
        for step in (1, 2):
            blob = await blob_at(harness, step)
            assert blob.code == code
            assert nodes_of(blob).isdisjoint({*NODES[:3], dying})

    asyncio.run(run())


def test_what_could_not_be_made_whole_is_dropped_at_once_and_the_old_one_stays() -> None:
    async def run() -> None:
        pool, change, _ = CHANGES["L2 to L3"]
        harness = await prepared(pool)
        before = await blob_at(harness, 1)
        held = harness.nodes.fragments
        count = sum(len(names) for names in held.values())
        harness.nodes.full.update(NODES[2:])
        await changed(harness, change)
        assert await blob_at(harness, 1) == before
        assert sum(len(names) for names in held.values()) == count
        assert harness.controller.repairer.totals.failed_blobs == 2

    asyncio.run(run())


def test_a_blob_that_went_with_its_checkpoint_meanwhile_is_not_put_back_p13() -> None:
    async def run() -> None:
        pool, change, _ = CHANGES["L2 to L3"]
        harness = await prepared(pool, Harness)

        async def condemn(node_id: NodeId, _: BlobId) -> None:
            harness.nodes.on_pull = None
            for step in (1, 2):
                await harness.controller.catalog.delete(JOB, step, why="test")
            await harness.pass_time(GRACE_SECONDS + 1)
            # Some cannot be asked yet, so their records stay.
            harness.nodes.broken.update(silent)
            await harness.collect()
            harness.nodes.broken.clear()

        await harness.controller.repairer.change_settings(concurrency=1)
        old = {(await blob_at(harness, step)).id for step in (1, 2)}
        silent = {sorted(nodes_of(await blob_at(harness, step)))[0] for step in (1, 2)}
        harness.nodes.on_pull = condemn
        await changed(harness, change)
        left = [shard for save in await harness.trash() for shard in await harness.shards(save)]
        assert {blob.id for shard in left for blob in shard.blobs} == old
        await nothing_else_is_stored(harness)
        assert (await harness.steps(), await harness.trash()) == ([], [])
        assert not any(harness.nodes.names(node_id) for node_id in NODES)

    asyncio.run(run())


def test_a_copy_that_joined_meanwhile_is_no_reason_to_keep_the_old_form_and_its_fragments_go() -> None:
    """P4: the swap compares the record; what changed in it meanwhile is read again, not overwritten."""

    async def run() -> None:
        pool, change, code = CHANGES["L2 to L3"]
        harness = await prepared(pool)

        async def add(node_id: NodeId, blob_id: BlobId) -> None:
            harness.nodes.on_pull = None
            found = await look(harness, 1)
            [shard] = await harness.shards(found)
            other = next(name for name in NODES if name not in nodes_of(shard.blobs[0]))
            harness.nodes.put(other, shard.blobs[0].id, found.save_id, 0)
            holder = replace(shard.blobs[0].holders[0], node_id=other)
            blob = replace(shard.blobs[0], holders=(*shard.blobs[0].holders, holder))
            await write(harness, replace(shard, blobs=(blob,)))

        harness.nodes.on_pull = add
        await changed(harness, change)
        await is_whole_in(harness, code)

    asyncio.run(run())


def test_what_is_being_restored_keeps_its_form_until_that_is_over() -> None:
    async def run() -> None:
        pool, change, code = CHANGES["L2 to L3"]
        harness = await prepared(pool)
        current, pinned = await harness.join(step=1, resume=True)
        assert pinned.step == 1
        await changed(harness, change)
        assert ((await blob_at(harness, 1)).code, (await blob_at(harness, 2)).code) == (MIRROR, code)
        assert await harness.report(current.number) == "done"
        await repair(harness)
        assert (await blob_at(harness, 1)).code == code

    asyncio.run(run())


def test_redundancy_that_is_lacking_comes_before_another_form() -> None:
    async def run() -> None:
        pool, change, code = CHANGES["L2 to L3"]
        harness = await prepared(pool)
        await harness.controller.repairer.change_settings(concurrency=1)
        blob = await blob_at(harness, 1)
        lost = sorted(nodes_of(blob))[0]
        await go_down(harness, lost)
        both = {(await blob_at(harness, step)).id for step in (1, 2)}
        await changed(harness, change)
        assert harness.nodes.pulls[0][1] in both, "an old one, which lacked a copy"
        await repair(harness, times=2)
        assert (await blob_at(harness, 1)).code == code

    asyncio.run(run())


def test_a_level_that_rises_before_all_is_there_is_told_as_degraded_i6() -> None:
    """What is too small for a code has two copies and should have three: any domain may be lost already."""

    async def run() -> None:
        harness = await prepared(CHANGES["L2 to L3"][0])
        await harness.save(3, pool=POOL, blob_bytes=MIB)
        harness.nodes.full.update(NODES)
        await changed(harness, L3)
        found = await look(harness, 3)
        assert (found.level, found.degraded) == (Level.L3, True)
        harness.nodes.full.clear()
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=2)
        found = await look(harness, 3)
        assert (found.level, found.degraded) == (Level.L3, False)
        assert len(places(await blob_at(harness, 3))) == 3

    asyncio.run(run())


def test_what_is_not_yet_stored_as_its_pool_asks_is_degraded_until_it_is_i6() -> None:
    """P4: what it has is told, not what it once had. Lowered by an operator, then raised again."""

    async def run() -> None:
        harness = await prepared(CHANGES["L3 to L2"][0])
        assert (await look(harness, 1)).level is Level.L3
        await changed(harness, L2)
        await repair(harness)
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (Level.L2, False)
        harness.nodes.full.update(NODES)
        await changed(harness, L3)
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (Level.L2, True)
        assert harness.controller.repairer.totals.degraded_blobs == 2
        harness.nodes.full.clear()
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=3)
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (Level.L3, False)
        assert harness.controller.repairer.totals.degraded_blobs == 0

    asyncio.run(run())


def test_a_weaker_code_is_degraded_and_a_lower_level_is_told_once_it_is_what_there_is() -> None:
    async def run() -> None:
        harness = await prepared(CHANGES["4+2 to 8+3"][0])
        harness.nodes.full.update(NODES)
        await changed(harness, L2)
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (Level.L3, False), "it is still coded, which is more than is asked for"
        await changed(harness, PoolChange(level=Level.L3, code=Code(8, 3)))
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (Level.L3, True), "its pool asks for more"

    asyncio.run(run())


def test_what_is_lost_for_good_is_degraded_again_and_what_is_waited_for_is_not_i6() -> None:
    """A reboot writes no record; the level once reached stays."""

    async def run() -> None:
        harness = await prepared(CHANGES["4+2 to 8+3"][0], kind=Harness)
        await repair(harness)
        gone = sorted(nodes_of(await blob_at(harness, 1)))[0]
        await go_down(harness, gone, seconds=10)
        before = await look(harness, 1)
        harness.nodes.full.update(NODES)
        await harness.controller.repairer.pass_once()
        assert await look(harness, 1) == before
        assert harness.controller.repairer.totals.degraded_blobs
        await harness.pass_time(LONG_SECONDS)
        await harness.controller.repairer.pass_once()
        found = await look(harness, 1)
        assert (found.level, found.degraded) == (Level.L3, True)
        harness.nodes.full.clear()
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=2)
        assert not (await look(harness, 1)).degraded

    asyncio.run(run())


def test_progress_tells_what_moves_into_another_form() -> None:
    async def run() -> None:
        pool, change, _ = CHANGES["L2 to L3"]
        harness = await prepared(pool)
        seen: list[tuple[int, int]] = []

        async def watch(node_id: NodeId, _: BlobId) -> None:
            progress = harness.controller.repairer.progress()
            seen.append((progress.moving_blobs, progress.waiting_bytes))

        harness.nodes.on_pull = watch
        await harness.controller.repairer.change_settings(concurrency=1)
        await changed(harness, change)
        assert seen[0] == (2, 2 * 24 * MIB)
        assert seen[6] == (1, 24 * MIB)
        assert seen[-1] == (1, 4 * MIB)  # five of its six fragments are made
        assert harness.controller.repairer.progress().moving_blobs == 0

    asyncio.run(run())
