"""I7, P13, P14, P18: nothing is deleted on doubt."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import AlreadyExistsError, FullError, NotFoundError, StaleTermError
from sdrs_core.ids import BlobId, NodeId, SaveId, random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.records import put
from tests.support.control import GRACE_SECONDS, JOB, NODE, TTL_SECONDS, Harness, started
from tests.support.mirrors import A, B, blob_of, holder, mirrored, started_with_mirrors

OTHER = NodeId("node-2")


async def fragment_names(harness: Harness, save: Save) -> set[tuple[BlobId, int]]:
    return {
        (blob.id, holder.fragment_index)
        for shard in await harness.shards(save)
        for blob in shard.blobs
        for holder in blob.holders
    }


async def add_orphan(harness: Harness, node_id: NodeId = NODE) -> BlobId:
    blob_id = BlobId(random_id())
    harness.nodes.put(node_id, blob_id, SaveId(random_id()), harness.clock.unix_ms())
    return blob_id


# Deleted checkpoints


def test_a_deleted_checkpoint_goes_after_its_grace_and_not_before() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        kept = await harness.save(20)
        names = await fragment_names(harness, save)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS - 1)
        await harness.collect(3)
        assert names <= harness.nodes.names()
        await harness.pass_time(2)
        await harness.collect()
        assert harness.nodes.names() == await fragment_names(harness, kept)
        assert await harness.trash() == []
        assert await harness.shards(save) == []

    asyncio.run(run())


def test_a_deleted_checkpoint_can_be_brought_back_within_the_grace() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        assert await harness.steps() == []
        await harness.pass_time(GRACE_SECONDS - 1)
        await harness.collect(2)
        assert await harness.controller.catalog.undelete(JOB, 10) == save
        await harness.pass_time(10 * GRACE_SECONDS)
        await harness.collect(3)
        assert await harness.steps() == [10]
        assert harness.nodes.names() == await fragment_names(harness, save)

    asyncio.run(run())


def test_undelete_and_condemn_never_both_win() -> None:
    async def run(undelete_at: str) -> None:
        harness = await started()
        await harness.save(10)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        undeleted: list[Save] = []

        async def undelete(_: int) -> None:
            harness.store.heal()
            undeleted.append(await harness.controller.catalog.undelete(JOB, 10))

        async def condemn(_: int) -> None:
            harness.store.heal()
            await harness.collect()

        if undelete_at == "just before the condemning":
            harness.store.before = undelete
            await harness.collect()
            assert undeleted
            assert await harness.steps() == [10]
            assert len(harness.nodes.names()) == 1
        else:
            harness.store.before = condemn
            with pytest.raises(AlreadyExistsError):
                await harness.controller.catalog.undelete(JOB, 10)
            assert await harness.steps() == []
            with pytest.raises(NotFoundError):
                await harness.controller.catalog.undelete(JOB, 10)

    asyncio.run(run("just before the condemning"))
    asyncio.run(run("just before its own transaction"))


def test_a_condemned_checkpoint_is_not_brought_back() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.add(NODE)
        await harness.collect()
        assert [save.state for save in await harness.trash()] == [SaveState.CONDEMNED]
        with pytest.raises(NotFoundError):
            await harness.controller.catalog.undelete(JOB, 10)

    asyncio.run(run())


def test_a_holder_that_did_not_confirm_stays_dropping_when_others_did() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.add(B)
        await harness.collect()
        # P14: B may have dropped it, and its answer been lost.
        assert (await blob_of(harness, save)).holders == (holder(B, dropping=True),)

    asyncio.run(run())


def test_holders_are_marked_as_dropping_before_their_node_is_told() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10, world_size=3)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.add(NODE)
        await harness.collect()
        shards = await harness.shards(save)
        assert len(shards) == 3
        assert all(holder.dropping for shard in shards for blob in shard.blobs for holder in blob.holders)
        harness.nodes.broken.clear()
        await harness.collect()
        assert await harness.shards(save) == []
        assert harness.nodes.names() == set()

    asyncio.run(run())


def test_a_drop_is_not_forgotten_while_its_node_is_down() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        harness.clock.advance(GRACE_SECONDS + 1)
        await harness.controller.collector.collect()
        assert len(await harness.trash()) == 1
        assert harness.nodes.orders == []
        await harness.collect()
        assert (await harness.trash(), await harness.shards(save)) == ([], [])

    asyncio.run(run())


def test_a_thousand_shards_are_dropped_in_few_transactions() -> None:
    async def run() -> None:
        harness = await started()
        begun = [await harness.begin(10, rank=rank, world_size=1000) for rank in range(1000)]
        await harness.register_receipts(*(harness.receipt(one, rank=rank) for rank, one in enumerate(begun)))
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        before = harness.store.txn_count
        await harness.collect()
        assert await harness.trash() == []
        assert harness.nodes.names() == set()
        assert harness.store.txn_count - before == 22

    asyncio.run(run())


def test_one_node_that_does_not_answer_keeps_nothing_from_the_others_and_is_asked_once() -> None:
    async def run() -> None:
        harness = await started(node_ids=(NODE, OTHER))
        for step in range(4):
            await harness.save(step, avoid=frozenset({OTHER if step % 2 else NODE}))
            await harness.controller.catalog.delete(JOB, step, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.add(NODE)
        await harness.collect()
        assert len(await harness.trash()) == 2
        assert harness.nodes.names(OTHER) == set()
        assert len([order for order in harness.nodes.orders if order[0] == NODE]) == 1

    asyncio.run(run())


def test_one_bad_record_in_the_trash_keeps_no_other() -> None:
    async def run() -> None:
        harness = await started()
        bad, good = await harness.save(10), await harness.save(20)
        await harness.controller.records.commit([], [put(keys.shard(bad.save_id, 0), 7)])
        for step in (10, 20):
            await harness.controller.catalog.delete(JOB, step, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert [save.save_id for save in await harness.trash()] == [bad.save_id]
        assert await harness.shards(good) == []

    asyncio.run(run())


def test_what_lies_in_the_trash_goes_although_a_save_cannot_be_ended() -> None:
    async def run() -> None:
        harness = await started()
        await harness.save(10)
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.begin(20)
        await harness.pass_time(TTL_SECONDS + 1)
        harness.store.fail(1, FullError("no room"))
        await harness.collect()
        assert await harness.trash() == []

    asyncio.run(run())


# Aborted saves


def test_fragments_of_a_pending_save_stay_however_old_they_are() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, world_size=2)
        await harness.seal(begun)
        blob_id = BlobId(random_id())
        harness.nodes.put(NODE, blob_id, begun.save.save_id, harness.clock.unix_ms())  # no receipt names it yet
        for _ in range(5):
            await harness.pass_time(TTL_SECONDS - 1)
            await harness.controller.commits.wait(begun.save.save_id, JOB, 10, wait_ms=0)
            await harness.collect()
        assert (blob_id, 0) in harness.nodes.names()
        assert len(harness.nodes.names()) == 2

    asyncio.run(run())


def test_fragments_of_an_aborted_save_go_after_the_abort_and_its_grace() -> None:
    async def run() -> None:
        harness = await started()
        begun = await harness.begin(10, world_size=2)
        await harness.seal(begun)
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect(3)
        assert (await harness.find(begun)).state is SaveState.ABORTED
        assert len(harness.nodes.names()) == 1
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert harness.nodes.names() == set()
        assert await harness.trash() == []

    asyncio.run(run())


# Orphans


def test_an_orphan_goes_after_two_complete_scans() -> None:
    async def run() -> None:
        harness = await started()
        save = await harness.save(10)
        orphans = [await add_orphan(harness) for _ in range(5)]
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert len(harness.nodes.names()) == 6
        await harness.collect()
        assert harness.nodes.names() == await fragment_names(harness, save)
        assert harness.controller.collector.dropped_total == len(orphans)

    asyncio.run(run())


def test_a_young_orphan_stays() -> None:
    async def run() -> None:
        harness = await started()
        await add_orphan(harness)
        await harness.pass_time(GRACE_SECONDS - 1)
        await harness.collect(3)
        assert len(harness.nodes.names()) == 1

    asyncio.run(run())


def test_a_listing_that_breaks_off_deletes_nothing_and_starts_the_count_anew() -> None:
    async def run() -> None:
        harness = await started()
        for _ in range(5):
            await add_orphan(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        harness.nodes.broken.add(NODE)
        await harness.collect()
        harness.nodes.broken.clear()
        await harness.collect()
        assert len(harness.nodes.names()) == 5
        assert harness.nodes.orders == []
        await harness.collect()
        assert harness.nodes.names() == set()

    asyncio.run(run())


def test_the_collector_of_a_deposed_controller_drops_nothing() -> None:
    """Its nodes may not have heard of the new one yet, and it does not know of saves that began there (P13)."""

    async def run() -> None:
        harness = await started()
        old = harness.controller
        await add_orphan(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()

        async def depose() -> None:
            harness.nodes.on_list = None
            await harness.start()

        harness.nodes.on_list = depose
        with pytest.raises(StaleTermError):
            await old.collector.collect()
        assert len(harness.nodes.names()) == 1
        assert harness.nodes.orders == []

    asyncio.run(run())


def test_a_node_refuses_the_drops_of_an_older_term() -> None:
    async def run() -> None:
        harness = await started()
        old = await harness.controller.members.order(NODE)
        await harness.start()
        await add_orphan(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(2)
        assert harness.nodes.authority[NODE].term > old.authority.term
        name = (await add_orphan(harness), 0)
        with pytest.raises(StaleTermError):
            await harness.nodes.drop_fragments(harness.controller.members.node(NODE), [name], old)

    asyncio.run(run())


def test_a_controller_that_stood_still_gives_those_who_wait_time_to_renew_p20(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        harness = await started()
        collector = harness.controller.collector
        collector._interval_seconds = 0.01
        collected = asyncio.Event()
        collect = collector.collect

        async def collect_and_tell() -> None:
            await collect()
            collected.set()

        monkeypatch.setattr(collector, "collect", collect_and_tell)
        begun = await harness.begin(10, rank=0, world_size=2)
        await harness.seal(begun, rank=0)
        collecting = asyncio.create_task(collector.run())
        await asyncio.sleep(0)
        harness.clock.advance(10 * TTL_SECONDS)  # as if stopped in the middle of its sleep
        async with asyncio.timeout(10):
            await collected.wait()
        assert (await harness.find(begun)).state is SaveState.PENDING
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        await harness.pass_time(TTL_SECONDS + 1)
        await harness.collect()
        assert (await harness.find(begun)).state is SaveState.ABORTED

    asyncio.run(run())
