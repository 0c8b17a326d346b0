"""P25, I4, I7: a checkpoint that is kept in the backup only is nobody's trouble, and nothing of it stays on nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from sdrs_core.checkpoints import Home, Reference, Save, SaveState
from sdrs_core.cluster import Retention
from sdrs_core.errors import RefusedError, SaveFailedError
from sdrs_storaged.control import keys
from sdrs_storaged.control.corrections import Corrections, Problems
from sdrs_storaged.control.evidence import Evidence
from sdrs_storaged.control.records import put
from tests.support.control import GRACE_SECONDS, JOB, Harness, attempt
from tests.support.memory_buckets import NAS, MemoryBuckets, add_target, back_up, evict, memory_buckets
from tests.support.mirrors import (
    FAST,
    A,
    B,
    blob_of,
    go_down,
    holder,
    mirrored,
    on_record,
    repair,
    save_of,
    started_with_mirrors,
)

__all__ = ["memory_buckets"]


async def evicted_harness(buckets: MemoryBuckets) -> tuple[Harness, Save]:
    """Steps 10 and 20; of 10 the backup alone has any."""
    harness = await started_with_mirrors()
    await add_target(harness)
    save = await mirrored(harness, 10, [A, B])
    await mirrored(harness, 20, [A, B])
    await back_up(harness, save, buckets)
    return harness, await evict(harness, save)


def test_it_is_listed_with_its_target_and_no_node_is_on_record_for_it(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await evicted_harness(memory_buckets)
        assert (save.evicted, save.state, save.damage) == (NAS, SaveState.COMMITTED, "")
        assert await on_record(harness, save) == set()
        assert await harness.steps() == [20, 10]

    asyncio.run(run())


def test_what_nodes_still_have_of_it_is_collected(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        save = await mirrored(harness, 10, [A, B])
        await back_up(harness, save, memory_buckets)
        blob_id = (await blob_of(harness, save)).id
        await evict(harness, save)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(2)
        assert harness.nodes.having(blob_id) == set()
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_its_bytes_no_longer_count_towards_the_quota(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, _ = await evicted_harness(memory_buckets)
        kept = await save_of(harness, 20)
        assert harness.controller.tally.bytes_by_pool[FAST] == kept.stored_bytes
        again = await harness.start()
        assert again.tally.bytes_by_pool[FAST] == kept.stored_bytes

    asyncio.run(run())


def test_a_survey_finds_it_neither_degraded_nor_out_of_reach_even_with_every_node_down(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, save = await evicted_harness(memory_buckets)
        await go_down(harness, A, B)
        await repair(harness)
        assert save.save_id not in harness.controller.repairer.unavailable
        assert len(harness.controller.repairer.unavailable) == 1  # step 20
        assert await save_of(harness, 10) == save

    asyncio.run(run())


def test_what_an_interrupted_recall_left_on_a_node_that_is_gone_is_no_reason_to_call_it_out_of_reach(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, save = await evicted_harness(memory_buckets)
        [shard] = await harness.shards(save)
        partly = replace(shard, blobs=tuple(replace(blob, holders=(holder(A),)) for blob in shard.blobs))
        await harness.controller.records.commit([], [put(keys.shard(save.save_id, 0), partly)])
        await go_down(harness, A)
        await repair(harness)
        assert not harness.controller.repairer.unavailable
        assert await save_of(harness, 10) == save

    asyncio.run(run())


def test_a_roll_call_of_a_page_that_was_read_before_does_not_mark_it_as_damaged(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        save = await mirrored(harness, 10, [A, B])
        await back_up(harness, save, memory_buckets)
        stored = await harness.controller.catalog.get(JOB, 10)
        [shard] = await harness.shards(save)
        await evict(harness, save)
        problems = await harness.controller.verifier._judge.settle(shard, [shard.blobs[0]], [])
        assert problems is None  # to be looked at again
        [now] = await harness.shards(save)
        assert await harness.controller.verifier._judge.settle(now, [now.blobs[0]], []) == []
        assert (await harness.controller.catalog.get(JOB, 10)).value.damage == ""
        assert stored.value.evicted == ""

    asyncio.run(run())


def test_verifying_it_says_where_it_can_be_verified(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, _ = await evicted_harness(memory_buckets)
        with pytest.raises(RefusedError, match="sdrs backup verify nas"):
            async for _ in harness.controller.verifier.verify(JOB, 10):
                pass

    asyncio.run(run())


def test_nodes_may_leave_whatever_a_recall_left_of_it_on_them(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await evicted_harness(memory_buckets)
        [shard] = await harness.shards(save)
        [left] = [blob.holders[0] for blob in (await harness.shards(await save_of(harness, 20)))[0].blobs]
        partly = replace(shard, blobs=tuple(replace(blob, holders=(left,)) for blob in shard.blobs))
        await harness.controller.records.commit([], [put(keys.shard(save.save_id, 0), partly)])
        found = await harness.controller.nodes._look.without(left.node_id)
        assert save.title not in str(found.facts())
        await harness.controller.nodes._look.forget(left.node_id)
        assert await on_record(harness, save) == set()

    asyncio.run(run())


def test_a_later_save_is_not_offered_its_blobs_and_may_not_refer_to_them(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await evicted_harness(memory_buckets)
        await harness.controller.catalog.delete(JOB, 20, why="test")
        begun = await harness.begin(30, pool=FAST, by=attempt(1), may_refer=True)
        assert begun.offers == ()
        reference = Reference(1, 10, "content", "b" * 64, Home(save.save_id, 10, 0))
        shard = replace((await harness.shards(save))[0], save_id=begun.save.save_id, references=(reference,))
        with pytest.raises(SaveFailedError):
            await harness.controller.receipts._referrals.check(begun.save, shard)

    asyncio.run(run())


def test_retention_does_not_let_others_go_because_of_it(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        older = await mirrored(harness, 10, [A, B])
        newer = await mirrored(harness, 20, [A, B])
        await back_up(harness, newer, memory_buckets)
        await evict(harness, newer)
        await harness.retain(Retention(keep_last=1), FAST)
        await harness.collect()
        assert await harness.steps() == [20, 10]
        assert older.save_id in {save.save_id for save in await harness.listed()}

    asyncio.run(run())


def test_one_that_is_referred_to_or_held_open_by_a_round_stays_in_the_cluster(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        save = await mirrored(harness, 10, [A, B])
        await back_up(harness, save, memory_buckets)
        await harness.join(by=attempt(5))
        with pytest.raises(RefusedError, match="being restored"):
            await evict(harness, save)
        assert (await save_of(harness, 10)).evicted == ""
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_one_whose_backup_is_damaged_stays_in_the_cluster_and_the_backup_is_marked(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        save = await mirrored(harness, 10, [A, B])
        await back_up(harness, save, memory_buckets)
        stored = await harness.controller.catalog.get(JOB, 10)
        memory_buckets.store().objects.clear()
        await harness.controller.recovery.evictor.evict_one(stored, NAS)
        assert (await save_of(harness, 10)).evicted == ""
        copy = await harness.controller.backups.copies.get(NAS, save.save_id)
        assert copy
        assert "checkpoints/llm-7b" in copy.value.damage

    asyncio.run(run())


def test_an_eviction_that_was_interrupted_is_finished_by_the_next_controller(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        save = await mirrored(harness, 10, [A, B])
        await back_up(harness, save, memory_buckets)
        stored = await harness.controller.catalog.get(JOB, 10)
        marked = replace(stored.value, evicted=NAS)
        await harness.controller.records.commit([stored.unchanged()], [put(stored.key, marked)])
        await harness.start()
        await harness.controller.recovery.evictor.evict()
        assert await on_record(harness, save) == set()

    asyncio.run(run())


def test_one_that_was_recalled_since_it_was_seen_is_not_let_go_of(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, _ = await evicted_harness(memory_buckets)
        seen = await harness.controller.catalog.get(JOB, 10)
        async for _ in harness.controller.recovery.recalls.recall(JOB, 10):
            pass
        await harness.controller.recovery.evictor._shed(seen)
        assert len(await on_record(harness, await save_of(harness, 10))) == 2

    asyncio.run(run())


def test_a_rebuild_does_not_call_it_lost(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, save = await evicted_harness(memory_buckets)
        [shard] = await harness.shards(save)
        corrections = Corrections(cast(Evidence, None), frozenset({A, B}), {}, Problems())
        assert corrections.lacking(shard) == []
        assert len(corrections.lacking(replace(shard, evicted=False))) == 1

    asyncio.run(run())
