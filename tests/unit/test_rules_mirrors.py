"""P4: the newest checkpoints are mirrored whole in a second pool, kept current as checkpoints come and go, and each of
the two forms can be repaired from the other.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.cluster import Node, Order, Pool
from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from sdrs_core.redundancy import Standing
from sdrs_storaged.control.claims import FragmentName
from tests.support.control import JOB, Harness
from tests.support.deep import (
    BLOB_BYTES,
    DEEP,
    MIB,
    SPARE,
    blob_at,
    look,
    mirror_at,
    nodes_of,
    nothing_else_is_stored,
    places,
    save_deep,
    stands,
    started_deep,
)
from tests.support.interrupts import interrupt_everywhere
from tests.support.mirrors import LONG_SECONDS, come_back, go_down, repair, write


async def mirrored_steps(harness: Harness) -> list[int]:
    return [step for step in await harness.steps() if (await look(harness, step)).mirror_pool == SPARE]


def test_the_newest_checkpoints_are_mirrored_and_the_mirror_moves_on_with_them() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.25)
        for step in range(4):
            await save_deep(harness, step, world_size=2)
        await repair(harness, times=2)
        assert await mirrored_steps(harness) == [3]
        for rank in range(2):
            own, mirror = await blob_at(harness, 3, rank), await mirror_at(harness, 3, rank)
            assert mirror
            assert (mirror.code, mirror.hash, mirror.ordinal) == (MIRROR, own.hash, own.ordinal)
            assert stands(harness, mirror, SPARE) is Standing.FULL
        assert (await look(harness, 3)).level is Level.L3
        amount = harness.controller.repairer.mirrored(DEEP)
        assert (amount.count, amount.size_bytes) == (1, 2 * BLOB_BYTES)
        await save_deep(harness, 4, world_size=2)
        await repair(harness, times=2)
        assert await mirrored_steps(harness) == [4]
        assert await mirror_at(harness, 3) is None
        await harness.controller.catalog.delete(JOB, 4, why="test")
        await repair(harness, times=2)
        assert await mirrored_steps(harness) == [3]
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_a_checkpoint_of_which_only_a_drop_under_way_is_left_is_brought_back_from_its_mirror() -> None:
    """P14: one too many was let go, and then all others were lost: it is not on its way out for that."""

    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10)
        await repair(harness, times=2)
        [shard] = await harness.shards(await look(harness, 10))
        [own] = shard.blobs
        for holder in own.holders[1:]:
            harness.nodes.take(holder.node_id, own.id, index=holder.fragment_index)
        left = replace(own, holders=(replace(own.holders[0], dropping=True),))
        await write(harness, replace(shard, blobs=(left,)))
        await repair(harness, times=3)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_a_mirror_is_told_of_once_all_of_it_is_there_and_no_longer_once_it_goes() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10, world_size=3)
        told: list[str] = []

        async def watch(_: NodeId, __: BlobId) -> None:
            told.append((await look(harness, 10)).mirror_pool)

        harness.nodes.on_pull = watch
        await repair(harness)
        assert set(told) == {""}
        assert (await look(harness, 10)).mirror_pool == SPARE
        await harness.controller.pools.update(DEEP, PoolChange(mirror_pool="", mirror_ratio=0.0))
        drop = harness.nodes.drop_fragments

        async def dropping(node: Node, names: list[FragmentName], order: Order) -> set[FragmentName]:
            assert (await look(harness, 10)).mirror_pool == ""
            for rank in range(3):
                mirror = await mirror_at(harness, 10, rank)
                counting = {(mirror.id, index) for _, index in places(mirror)} if mirror else set()
                assert counting.isdisjoint(names)
            return await drop(node, names, order)

        harness.nodes.drop_fragments = dropping  # type: ignore[method-assign,assignment]
        await repair(harness, times=2)
        assert [shard.mirrors for shard in await harness.shards(await look(harness, 10))] == [()] * 3
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_a_larger_ratio_mirrors_more_and_a_smaller_one_less() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.25)
        for step in range(4):
            await save_deep(harness, step)
        await repair(harness, times=2)
        assert await mirrored_steps(harness) == [3]
        await harness.controller.pools.update(DEEP, PoolChange(mirror_ratio=0.75))
        await repair(harness, times=2)
        assert await mirrored_steps(harness) == [3, 2, 1]
        await harness.controller.pools.update(DEEP, PoolChange(mirror_ratio=0.5))
        await repair(harness, times=2)
        assert await mirrored_steps(harness) == [3, 2]
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_another_mirror_pool_takes_the_mirror_over_in_its_own_form() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        other = PoolName("other")
        pool = Pool(other, Level.L3, data_fragments=2, parity_fragments=1)
        await harness.controller.pools.create(pool, request_id="other")
        await save_deep(harness, 10)
        await repair(harness, times=2)
        await harness.controller.pools.update(DEEP, PoolChange(mirror_pool="other"))
        await repair(harness, times=3)
        mirror = await mirror_at(harness, 10)
        assert mirror
        assert mirror.code == "2+1"
        assert stands(harness, mirror, other) is Standing.FULL
        assert (await look(harness, 10)).mirror_pool == "other"
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_what_more_nodes_took_than_the_code_can_spare_is_repaired_from_the_mirror() -> None:
    async def run() -> None:
        harness = await started_deep(12, mirror_ratio=0.5)
        await save_deep(harness, 10)
        await repair(harness, times=2)
        own, mirror = await blob_at(harness, 10), await mirror_at(harness, 10)
        assert mirror
        lost = sorted(nodes_of(own) - nodes_of(mirror))[:3]
        await go_down(harness, *lost)
        assert await harness.controller.losses.unavailable(DEEP) == []
        await repair(harness)
        assert harness.controller.repairer.totals.unavailable_count == 0
        await repair(harness, times=2)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        assert (await look(harness, 10)).damage == ""

    asyncio.run(run())


def test_a_blob_whose_fragments_are_all_gone_comes_back_from_its_mirror() -> None:
    """All but its content is lost, and off the record: the mirror is what is wanted of it."""

    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10)
        await repair(harness, times=2)
        own = await blob_at(harness, 10)
        for node_id, index in places(own):
            harness.nodes.take(node_id, own.id, index=index)
            harness.controller.repairer.node_returned(node_id)
        await repair(harness, times=2)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        assert ((await look(harness, 10)).damage, (await blob_at(harness, 10)).id) == ("", own.id)

    asyncio.run(run())


def test_a_mirror_that_lost_copies_is_repaired_from_the_checkpoint_after_the_checkpoints_themselves() -> None:
    async def run() -> None:
        harness = await started_deep(12, mirror_ratio=0.5)
        await harness.controller.repairer.change_settings(concurrency=1)
        await save_deep(harness, 10)
        await repair(harness, times=2)
        own, mirror = await blob_at(harness, 10), await mirror_at(harness, 10)
        assert mirror
        for node_id in nodes_of(mirror):
            harness.nodes.take(node_id, mirror.id)
            harness.controller.repairer.node_returned(node_id)
        lost = sorted(nodes_of(own) - nodes_of(mirror))[0]
        await go_down(harness, lost)
        harness.nodes.pulls.clear()
        await repair(harness, times=2)
        assert [blob_id for _, blob_id, _ in harness.nodes.pulls[:3]] == [own.id, mirror.id, mirror.id]
        again = await mirror_at(harness, 10)
        assert again
        assert stands(harness, again, SPARE) is Standing.FULL
        assert (await look(harness, 10)).mirror_pool == SPARE

    asyncio.run(run())


def test_a_mirror_that_is_not_wanted_any_more_stays_while_the_checkpoint_needs_it() -> None:
    """I7."""

    async def run() -> None:
        harness = await started_deep(12, mirror_ratio=0.5)
        await save_deep(harness, 10)
        await repair(harness, times=2)
        own, mirror = await blob_at(harness, 10), await mirror_at(harness, 10)
        assert mirror
        lost = sorted(nodes_of(own) - nodes_of(mirror))[:3]
        harness.silent.update(lost)
        await harness.pass_time(5)
        await harness.controller.pools.update(DEEP, PoolChange(mirror_pool="", mirror_ratio=0.0))
        await repair(harness)
        kept = await mirror_at(harness, 10)
        assert kept
        assert places(kept) == places(mirror)
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=3)
        assert stands(harness, await blob_at(harness, 10)) is Standing.FULL
        assert await mirror_at(harness, 10) is None

    asyncio.run(run())


def test_a_mirror_goes_for_good_once_all_its_nodes_were_there_to_drop_it() -> None:
    async def run() -> None:
        harness = await started_deep(12, mirror_ratio=0.5)
        await save_deep(harness, 10)
        await repair(harness, times=2)
        own, mirror = await blob_at(harness, 10), await mirror_at(harness, 10)
        assert mirror
        [away, *_] = sorted(nodes_of(mirror) - nodes_of(own)) or sorted(nodes_of(mirror))
        harness.silent.add(away)
        await harness.pass_time(5)
        await harness.controller.pools.update(DEEP, PoolChange(mirror_pool="", mirror_ratio=0.0))
        await repair(harness, times=2)
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=2)
        left = await mirror_at(harness, 10)
        assert left
        assert [(h.node_id, h.dropping) for h in left.holders] == [(away, True)]
        assert (harness.nodes.names(away) & {(mirror.id, 0)}) == {(mirror.id, 0)}
        # Nothing is tried again and again meanwhile.
        assert harness.controller.repairer.totals.waiting_blobs == 0
        await come_back(harness, away)
        await repair(harness, times=2)
        assert await mirror_at(harness, 10) is None
        await nothing_else_is_stored(harness)

    asyncio.run(run())


def test_a_mirror_that_fell_short_of_nodes_is_better_than_none_and_is_not_told_of() -> None:
    async def run() -> None:
        harness = await started_deep(6, mirror_ratio=0.5)
        await save_deep(harness, 10)
        harness.nodes.full.update(harness.node_ids[1:])
        await repair(harness)
        mirror = await mirror_at(harness, 10)
        assert mirror
        assert len(places(mirror)) == 1
        assert (await look(harness, 10)).mirror_pool == ""
        harness.nodes.full.clear()
        await harness.pass_time(LONG_SECONDS)
        await repair(harness, times=2)
        assert (await look(harness, 10)).mirror_pool == SPARE

    asyncio.run(run())


def test_one_that_was_made_twice_is_recorded_once() -> None:
    """P4: another change put a mirror on record while this one was made."""

    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10)

        async def overtake(node_id: NodeId, blob_id: BlobId) -> None:
            harness.nodes.on_pull = None
            found = await look(harness, 10)
            [shard] = await harness.shards(found)
            own = shard.blobs[0]
            other = replace(own, id=BlobId("f" * 32), code=MIRROR, holders=())
            harness.nodes.blobs[other.id] = other
            holder = replace(own.holders[0], fragment_index=0, fragment_hash=own.hash)
            harness.nodes.put(holder.node_id, other.id, found.save_id, 0)
            await write(harness, replace(shard, mirrors=(replace(other, holders=(holder,)),)))

        harness.nodes.on_pull = overtake
        await repair(harness, times=3)
        [shard] = await harness.shards(await look(harness, 10))
        assert [mirror.id for mirror in shard.mirrors] == ["f" * 32]
        await nothing_else_is_stored(harness)

    asyncio.run(run())


@pytest.mark.parametrize("restart", [True, False], ids=["new controller", "same controller"])
@pytest.mark.parametrize("lost", [True, False], ids=["answer lost", "failed"])
@pytest.mark.parametrize("comes", [True, False], ids=["comes", "goes"])
def test_an_interrupt_at_any_transaction_leaves_the_mirror_whole_or_gone(
    comes: bool, lost: bool, restart: bool
) -> None:
    async def prepare() -> Harness:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10, world_size=2)
        if not comes:
            await repair(harness, times=2)
        return harness

    async def story(harness: Harness) -> None:
        if not comes:
            await harness.controller.pools.update(DEEP, PoolChange(mirror_pool="", mirror_ratio=0.0))
        await repair(harness)

    async def check(harness: Harness) -> None:
        await harness.pass_time(LONG_SECONDS)
        await story(harness)
        await repair(harness, times=2)
        found = await look(harness, 10)
        assert found.mirror_pool == (SPARE if comes else "")
        for rank in range(2):
            mirror = await mirror_at(harness, 10, rank)
            assert (mirror is not None) == comes
            assert not mirror or stands(harness, mirror, SPARE) is Standing.FULL
        await nothing_else_is_stored(harness)

    interrupt_everywhere(prepare, story, check, lost=lost, restart=restart)


def test_progress_tells_of_mirrors_that_wait() -> None:
    async def run() -> None:
        harness = await started_deep(mirror_ratio=0.5)
        await save_deep(harness, 10, world_size=2)
        seen: list[tuple[int, int, int]] = []

        async def watch(_: NodeId, __: BlobId) -> None:
            progress = harness.controller.repairer.progress()
            seen.append((progress.mirroring_blobs, progress.moving_blobs, progress.waiting_bytes))

        harness.nodes.on_pull = watch
        await repair(harness)
        assert seen[0] == (2, 0, 4 * BLOB_BYTES)
        assert BLOB_BYTES == 16 * MIB
        assert harness.controller.repairer.totals.degraded_blobs == 0

    asyncio.run(run())
