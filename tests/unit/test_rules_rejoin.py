"""What a node that comes back holds, lacks, or holds wrongly is compared with the record (I4, I5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sdrs_core.checkpoints import Holder, Verdict
from sdrs_core.errors import CorruptDataError
from sdrs_core.ids import BlobId, DiskId, NodeId
from tests.support.mirrors import (
    A,
    B,
    blob_of,
    come_back,
    go_down,
    holder,
    mirrored,
    on_record,
    repair,
    save_of,
    started_with_mirrors,
    write,
)


def test_what_a_returning_node_lacks_is_taken_off_the_record_and_copied_again() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        kept, lost = await mirrored(harness, 10, [A, B]), await mirrored(harness, 20, [A, B])
        await repair(harness)
        await go_down(harness, B, seconds=10)
        await repair(harness)
        blob = await blob_of(harness, lost)
        harness.nodes.take(B, blob.id)
        await come_back(harness, B)
        await repair(harness)
        # The node that lost it is as good as any other to get it again.
        assert await on_record(harness, lost) == await on_record(harness, kept) == {A, B}
        assert [(node_id, blob_id) for node_id, blob_id, _ in harness.nodes.pulls] == [(B, blob.id)]
        assert harness.nodes.having(blob.id) == {A, B}
        assert not (await save_of(harness, 20)).damage

    asyncio.run(run())


def test_a_blip_between_two_looks_is_told_and_the_node_asked_again() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await repair(harness)
        harness.nodes.take(B, (await blob_of(harness, save)).id)
        await repair(harness)
        assert harness.nodes.pulls == []
        harness.controller.repairer.node_returned(B)
        await repair(harness)
        assert harness.nodes.having((await blob_of(harness, save)).id) == {A, B}

    asyncio.run(run())


def test_a_new_controller_asks_every_node_once() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        await harness.start()
        await repair(harness, times=3)
        assert sorted(node_id for node_id, _ in harness.nodes.looked_up) == [A, B]

    asyncio.run(run())


def test_the_last_copy_on_record_stays_there_and_the_checkpoint_is_named_as_damaged() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        for node_id in (A, B):
            harness.nodes.take(node_id, blob.id)
        await repair(harness)
        assert len(await on_record(harness, save)) == 1
        assert "rank 0 is missing on node" in (await save_of(harness, 10)).damage
        assert len(harness.controller.tally.damaged) == 1

    asyncio.run(run())


def test_a_copy_that_differs_is_replaced_by_the_right_one() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        harness.nodes.hashes[(B, (blob.id, 0))] = "something else"
        await repair(harness)
        assert harness.nodes.pulls == [(B, blob.id, (A,))]
        assert harness.nodes.hashes[(B, (blob.id, 0))] == "content"
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_a_node_without_its_disk_keeps_its_place_on_record_and_does_not_count() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        [shard] = await harness.shards(save)
        absent = Holder(B, DiskId("e" * 32), 0, "content")
        await write(harness, replace(shard, blobs=(replace(blob, holders=(holder(A), absent)),)))
        harness.nodes.take(B, blob.id)
        await repair(harness)
        holders = (await blob_of(harness, save)).holders
        assert absent in holders
        assert len(holders) == 3
        assert not (await save_of(harness, 10)).damage

    asyncio.run(run())


def test_a_copy_on_another_disk_than_recorded_counts_where_it_lies() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        [shard] = await harness.shards(save)
        moved = Holder(B, DiskId("e" * 32), 0, "content")
        await write(harness, replace(shard, blobs=(replace(blob, holders=(holder(A), moved)),)))
        await repair(harness)
        assert (await blob_of(harness, save)).holders == (holder(A), holder(B))
        assert harness.nodes.pulls == []

    asyncio.run(run())


def test_a_node_that_does_not_answer_is_asked_again_and_loses_nothing() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        harness.nodes.take(B, blob.id)
        harness.nodes.broken.add(B)
        await repair(harness)
        assert await on_record(harness, save) == {A, B}
        harness.nodes.broken.clear()
        await repair(harness)
        assert harness.nodes.having(blob.id) == {A, B}

    asyncio.run(run())


def test_sources_that_are_all_bad_are_looked_at_at_once() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(mirrors=3)
        save = await mirrored(harness, 10, [A, B])
        blob = await blob_of(harness, save)
        harness.nodes.verdicts_at[(A, blob.id)] = Verdict.CORRUPT

        async def refuse(_: NodeId, __: BlobId) -> None:
            raise CorruptDataError("no source is good")

        harness.nodes.on_pull = refuse
        await repair(harness)
        assert await on_record(harness, save) == {B}
        assert not (await save_of(harness, 10)).damage

    asyncio.run(run())


def test_a_source_that_serves_nothing_good_is_looked_at_and_marked() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A])
        await repair(harness)
        save = await mirrored(harness, 20, [A])
        blob = await blob_of(harness, save)
        harness.nodes.hashes[(A, (blob.id, 0))] = "rotten"
        harness.nodes.verdicts_at[(A, blob.id)] = Verdict.CORRUPT
        for _ in range(2):
            await repair(harness)
            await harness.pass_time(20)
        assert "corrupt" in (await save_of(harness, 20)).damage
        assert await on_record(harness, save) == {A}

    asyncio.run(run())
