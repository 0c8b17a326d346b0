"""P2, P4, I5, I7: checkpoints brought back from a backup, whatever happens on the way."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Save
from sdrs_core.cluster import Pool
from sdrs_core.errors import CorruptDataError, FullError, NotFoundError, UnavailableError
from sdrs_core.ids import NodeId, SaveId
from sdrs_core.levels import Level
from sdrs_storaged.control.backup.recall import RecallProgress
from sdrs_storaged.control.records import ConflictError
from tests.support.coded_saves import DEEP, SIX, SIZE_BYTES
from tests.support.control import GRACE_SECONDS, JOB, Harness, attempt
from tests.support.memory_buckets import FAR, NAS, MemoryBuckets, add_target, back_up, evict, memory_buckets
from tests.support.mirrors import (
    A,
    B,
    C,
    D,
    go_down,
    mirrored,
    on_record,
    repair,
    save_of,
    started_with_mirrors,
    write,
)

__all__ = ["memory_buckets"]


async def recall(harness: Harness, step: int = 10, save_id: str = "") -> list[RecallProgress]:
    harness.beat()
    return [progress async for progress in harness.controller.recovery.recalls.recall(JOB, step, SaveId(save_id))]


async def backed_up(buckets: MemoryBuckets, *, world_size: int = 1) -> tuple[Harness, Save]:
    harness = await started_with_mirrors()
    await add_target(harness)
    save = await mirrored(harness, 10, [A, B], world_size=world_size)
    await back_up(harness, save, buckets)
    return harness, save


def fragments(harness: Harness) -> set[tuple[NodeId, str]]:
    return {(node_id, name[0]) for node_id, held in harness.nodes.fragments.items() for name in held}


def test_one_that_was_evicted_is_the_clusters_own_again(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets, world_size=3)
        await evict(harness, save)
        told = await recall(harness)
        assert told[-1] == RecallProgress(NAS, save.size_bytes, save.size_bytes, save.size_bytes, is_done=True)
        back = await save_of(harness, 10)
        assert (back.evicted, back.level, back.degraded) == ("", Level.L2, False)
        assert back.recalled_unix_ms == harness.clock.unix_ms()
        for rank in range(3):
            assert len(await on_record(harness, save, rank)) == 2
        # The bucket is read once for each blob: the second copy is made of the first.
        assert sorted(harness.nodes.fetched) == ["10/0/0", "10/1/0", "10/2/0"]

    asyncio.run(run())


def test_going_to_the_backup_and_coming_back_are_in_the_history(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)
        await recall(harness)
        await asyncio.gather(*harness.controller.recovery.recalls._tasks)  # the event is its last word
        events, _ = await harness.controller.events.page(group_id="", node_id="", after="", limit=10)
        kinds = [event.kind for event in events if event.kind.startswith("checkpoint_")]
        assert kinds == ["checkpoint_recalled", "checkpoint_evicted"]

    asyncio.run(run())


def test_what_nodes_lost_is_brought_back_under_a_new_id_and_the_mark_of_damage_goes(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets, world_size=2)
        [lost, kept] = [shard.blobs[0] for shard in await harness.shards(save)]
        for node_id in (A, B):
            harness.nodes.take(node_id, lost.id)
        await harness.controller.catalog.mark_damage(JOB, 10, save.save_id, "rank 0 is missing")
        told = await recall(harness)
        assert told[-1].moved_bytes == lost.size_bytes
        assert (await save_of(harness, 10)).damage == ""
        now = [shard.blobs[0] for shard in await harness.shards(save)]
        assert now[0].id != lost.id
        assert now[1] == kept
        assert harness.nodes.having(now[0].id) == {holder.node_id for holder in now[0].holders}

    asyncio.run(run())


def test_what_is_out_of_reach_is_brought_back_on_nodes_that_are_up(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await go_down(harness, A, B)
        await recall(harness)
        assert await on_record(harness, save) == {C, D}
        await repair(harness)
        assert not harness.controller.repairer.unavailable

    asyncio.run(run())


def test_with_fewer_nodes_than_its_pool_asks_for_it_comes_back_degraded_and_says_so(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)
        await go_down(harness, A, B, C)
        await recall(harness)
        back = await save_of(harness, 10)
        assert (back.evicted, back.level, back.degraded) == ("", Level.L1, True)
        assert await on_record(harness, save) == {D}

    asyncio.run(run())


def test_all_who_ask_at_once_join_one_recall(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)
        told = await asyncio.gather(*(recall(harness, save_id=save.save_id) for _ in range(5)))
        assert all(one[-1].is_done for one in told)
        assert harness.nodes.fetched == ["10/0/0"]

    asyncio.run(run())


def test_without_room_it_says_so_and_leaves_nothing_behind(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)
        before = fragments(harness)
        harness.nodes.full = {B, C, D}
        with pytest.raises(FullError, match='pool "fast" has no room to bring llm-7b step 10 back from backup nas'):
            await recall(harness)
        assert fragments(harness) == before
        assert await on_record(harness, save) == set()
        assert (await save_of(harness, 10)).evicted == NAS
        harness.nodes.full = {B, C}
        await recall(harness)
        assert await on_record(harness, save) == {A, D}

    asyncio.run(run())


def test_another_backup_serves_if_the_first_is_out_of_reach_or_damaged(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await add_target(harness, FAR)
        await back_up(harness, save, memory_buckets, FAR)
        await evict(harness, save)
        memory_buckets.store(NAS).is_down = True
        told = await recall(harness)
        assert told[-1].target == FAR
        assert (await save_of(harness, 10)).evicted == ""

    asyncio.run(run())


def test_if_no_backup_serves_the_error_names_each_and_tells_damage_from_absence(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)
        memory_buckets.store().is_down = True
        with pytest.raises(UnavailableError, match="backup nas: the store does not answer"):
            await recall(harness)
        memory_buckets.store().is_down = False
        harness.nodes.damaged_objects = {"10/0/0"}
        with pytest.raises(CorruptDataError, match=r"cannot be brought back \(backup nas: backup nas: object 10/0/0"):
            await recall(harness)
        assert await on_record(harness, save) == set()
        assert (await save_of(harness, 10)).evicted == NAS

    asyncio.run(run())


def test_what_is_in_no_backup_is_told_at_once(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        await mirrored(harness, 10, [A, B])
        with pytest.raises(NotFoundError, match="no backup has llm-7b step 10"):
            await recall(harness)
        with pytest.raises(NotFoundError, match="not there any more"):
            await recall(harness, save_id="0" * 32)

    asyncio.run(run())


def test_a_backup_with_other_content_than_is_on_record_is_refused(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        [shard] = await harness.shards(save)
        await evict(harness, save)
        await write(harness, replace(shard, blobs=(replace(shard.blobs[0], hash="other", holders=()),)))
        with pytest.raises(CorruptDataError, match="on record are 10 with other"):
            await recall(harness)

    asyncio.run(run())


def test_one_that_is_deleted_meanwhile_stays_deleted_and_its_copies_go(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)

        async def delete(node_id: NodeId, blob_id: str) -> None:
            harness.nodes.on_pull = None
            await harness.controller.catalog.delete(JOB, 10, why="test")

        harness.nodes.on_pull = delete
        with pytest.raises(NotFoundError, match="deleted while it was recalled"):
            await recall(harness)
        assert await harness.steps() == []
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert fragments(harness) == set()

    asyncio.run(run())


def test_interrupted_after_any_transaction_the_next_controller_completes_it_and_nothing_is_left_over(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> int:
        """How many transactions it has."""
        number = 0
        while True:
            number += 1
            memory_buckets.stores.clear()
            harness, save = await backed_up(memory_buckets, world_size=2)
            await evict(harness, save)
            harness.nodes.now_unix_ms = harness.clock.unix_ms()
            harness.store.fail(number, UnavailableError("the controller is gone"))
            try:
                await recall(harness)
            except UnavailableError:
                pass
            else:
                return number
            harness.store.heal()
            await harness.start()
            await recall(harness)
            assert (await save_of(harness, 10)).evicted == ""
            blobs = [shard.blobs[0] for shard in await harness.shards(save)]
            await harness.pass_time(GRACE_SECONDS + 1)
            await harness.collect(2)
            assert fragments(harness) == {(h.node_id, blob.id) for blob in blobs for h in blob.holders}

    assert asyncio.run(run()) > 3


def test_a_round_chooses_a_damaged_generation_that_a_backup_has_before_an_older_one(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await mirrored(harness, 5, [A, B])
        await harness.controller.catalog.mark_damage(JOB, 10, save.save_id, "rank 0 is missing")
        _, chosen = await harness.join(by=attempt(7))
        assert chosen.step == 10

    asyncio.run(run())


def test_a_coded_blob_is_fetched_once_cut_into_its_fragments_and_nothing_else_stays(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness = Harness(node_ids=SIX, capacity_bytes=100 * SIZE_BYTES)
        await harness.start()
        await harness.controller.pools.create(
            Pool(DEEP, Level.L3, data_fragments=4, parity_fragments=2), request_id="deep"
        )
        await add_target(harness)
        save = await harness.save(10, pool=DEEP, blob_bytes=SIZE_BYTES)
        await back_up(harness, save, memory_buckets)
        await evict(harness, save)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(2)
        await recall(harness)
        [blob] = (await harness.shards(save))[0].blobs
        assert (blob.code, len(blob.holders)) == ("4+2", 6)
        assert harness.nodes.fetched == ["10/0/0"]
        assert fragments(harness) == {(holder.node_id, blob.id) for holder in blob.holders}
        assert (await save_of(harness, 10)).level is Level.L3

    asyncio.run(run())


def test_where_no_node_has_room_for_a_whole_copy_each_fragment_is_cut_from_the_bucket(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness = Harness(node_ids=SIX, capacity_bytes=SIZE_BYTES // 2)
        await harness.start()
        await harness.controller.pools.create(
            Pool(DEEP, Level.L3, data_fragments=4, parity_fragments=2), request_id="deep"
        )
        await add_target(harness)
        save = await harness.save(10, pool=DEEP, blob_bytes=SIZE_BYTES)
        await back_up(harness, save, memory_buckets)
        await evict(harness, save)
        await recall(harness)
        assert harness.nodes.fetched == ["10/0/0"] * 6
        assert (await save_of(harness, 10)).level is Level.L3

    asyncio.run(run())


def test_a_node_that_dies_on_the_way_is_replaced_by_another(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        await evict(harness, save)
        died: list[NodeId] = []

        async def die(node_id: NodeId, blob_id: str) -> None:
            if not died:
                died.append(node_id)
                await harness.kill(node_id)

        harness.nodes.on_pull = die
        await recall(harness)
        assert len(await on_record(harness, save)) == 2
        assert died[0] not in await on_record(harness, save)

    asyncio.run(run())


def test_who_is_about_to_prune_a_backup_is_refused_once_the_cluster_depends_on_it(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, save = await backed_up(memory_buckets)
        copies = harness.controller.backups.copies
        chosen = await copies.get(NAS, save.save_id)
        assert chosen
        await evict(harness, save)
        with pytest.raises(ConflictError):
            await harness.controller.records.commit([chosen.unchanged()], [])

    asyncio.run(run())
