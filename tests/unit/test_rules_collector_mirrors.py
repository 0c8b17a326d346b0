"""P13, P14, I7 with several holders: what is on record stays, what is not goes, and repair is not disturbed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sdrs_core.checkpoints import SaveState
from sdrs_core.ids import BlobId, NodeId, random_id
from tests.support.control import GRACE_SECONDS, JOB
from tests.support.mirrors import FAST, A, B, C, blob_of, holder, mirrored, on_record, started_with_mirrors, write


def test_a_copy_on_a_node_that_is_not_on_record_is_an_orphan_there_and_the_others_stay() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob_id = (await blob_of(harness, save)).id
        harness.nodes.put(C, blob_id, save.save_id, harness.clock.unix_ms())
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert C in harness.nodes.having(blob_id)
        await harness.collect()
        assert harness.nodes.having(blob_id) == {A, B}

    asyncio.run(run())


def test_a_copy_that_is_on_no_record_stays_while_nobody_on_record_can_be_read() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob_id = (await blob_of(harness, save)).id
        harness.nodes.put(C, blob_id, save.save_id, harness.clock.unix_ms())
        harness.silent.update({A, B})
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert C in harness.nodes.having(blob_id)
        harness.silent.clear()
        await harness.collect(2)
        assert harness.nodes.having(blob_id) == {A, B}

    asyncio.run(run())


def test_copies_of_a_pending_save_stay_on_every_node() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        begun = await harness.begin(10, world_size=2, pool=FAST)
        await harness.seal(begun)
        blob_id = BlobId(random_id())
        for node_id in (A, B, C):
            harness.nodes.put(node_id, blob_id, begun.save.save_id, harness.clock.unix_ms())
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert harness.nodes.having(blob_id) == {A, B, C}

    asyncio.run(run())


def test_a_copy_that_repair_takes_over_is_not_dropped_as_the_orphan_it_was() -> None:
    """Found twice as an orphan, and put on record by repair just before the drop."""

    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        save = await mirrored(harness, 10, [A])
        blob_id = (await blob_of(harness, save)).id
        harness.nodes.put(B, blob_id, save.save_id, harness.clock.unix_ms())
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        last_page = len(harness.nodes.names(A)) + len(harness.nodes.names(B)) + 2
        pages = 0

        async def repair() -> None:
            nonlocal pages
            pages += 1
            if pages == last_page:
                await harness.controller.repairer.pass_once()

        harness.nodes.on_list = repair
        await harness.collect()
        assert pages == last_page
        assert await on_record(harness, save) == {A, B} == harness.nodes.having(blob_id)

    asyncio.run(run())


def test_what_is_being_pulled_is_not_dropped_and_what_is_being_dropped_is_not_pulled() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        save = await mirrored(harness, 10, [A])
        blob_id = (await blob_of(harness, save)).id
        harness.nodes.put(B, blob_id, save.save_id, harness.clock.unix_ms())
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()

        async def collect(_: NodeId, __: BlobId) -> None:
            harness.nodes.on_pull = None
            await harness.collect(2)
            assert harness.nodes.having(blob_id) == {A, B}

        harness.nodes.on_pull = collect
        await harness.controller.repairer.pass_once()
        assert await on_record(harness, save) == {A, B}

        with harness.controller.claims.take(B, [(blob_id, 0)]):
            [shard] = await harness.shards(save)
            await write(harness, replace(shard, blobs=(replace(shard.blobs[0], holders=(holder(A),)),)))
            await harness.controller.repairer.pass_once()
            assert await on_record(harness, save) == {A}
        await harness.controller.repairer.pass_once()
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_a_condemned_save_waits_for_a_holder_that_is_down_and_asks_the_others_once() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B], world_size=3)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        harness.silent.add(B)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert [state.state for state in await harness.trash()] == [SaveState.CONDEMNED]
        assert [node_id for node_id, _ in harness.nodes.orders] == [A]
        assert harness.nodes.names(A) == set()
        shards = await harness.shards(save)
        assert [list(shard.blobs[0].holders) for shard in shards] == [[holder(B, dropping=True)]] * 3
        harness.silent.clear()
        await harness.collect()
        assert (await harness.trash(), await harness.shards(save), harness.nodes.names(B)) == ([], [], set())

    asyncio.run(run())
