"""P13, P25: what refers to others, and what others refer to, against backups that alone have one of them."""

from __future__ import annotations

import asyncio

from sdrs_core.checkpoints import Save
from sdrs_core.ids import SaveId
from tests.support.control import GRACE_SECONDS, JOB, NODE, Harness, started
from tests.support.memory_buckets import NAS, MemoryBuckets, add_target, back_up, evict, memory_buckets
from tests.support.mirrors import save_of
from tests.support.referring import is_readable, referrals, save_referring, shared_blob

__all__ = ["memory_buckets"]


async def referring(buckets: MemoryBuckets) -> tuple[Harness, Save, Save]:
    """Step 10 has a blob that step 20 refers to; both are in the backup."""
    harness = await started()
    await add_target(harness)
    home, save = await save_referring(harness, 10), await save_referring(harness, 20)
    for one in (home, save):
        await back_up(harness, one, buckets)
    return harness, home, save


async def recall(harness: Harness, step: int) -> None:
    harness.beat()
    async for _ in harness.controller.recovery.recalls.recall(JOB, step, SaveId("")):
        pass


def test_what_others_refer_to_is_not_evicted_and_once_they_are_it_may_be(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, home, save = await referring(memory_buckets)
        assert (await evict(harness, home)).evicted == ""
        gone = await evict(harness, save)
        assert (gone.evicted, gone.homes, gone.referenced_bytes) == (NAS, (), 0)
        assert await referrals(harness) == set()
        assert (await evict(harness, await save_of(harness, 10))).evicted == NAS
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(2)
        assert harness.nodes.names() == set()

    asyncio.run(run())


def test_one_that_referred_to_others_comes_back_whole_and_on_its_own(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness, home, save = await referring(memory_buckets)
        await evict(harness, save)
        await evict(harness, await save_of(harness, 10))
        await recall(harness, 20)
        [shard] = await harness.shards(save)
        assert [(blob.ordinal, len(blob.holders)) for blob in shard.blobs] == [(0, 1), (1, 1)]
        assert shard.references == ()
        back = await save_of(harness, 20)
        assert (back.evicted, back.stored_bytes) == ("", save.size_bytes)
        assert await is_readable(harness, 20)
        assert (await save_of(harness, 10)).evicted == NAS
        assert home.size_bytes + save.size_bytes == 40

    asyncio.run(run())


def test_a_lost_blob_that_others_refer_to_comes_back_into_the_record_of_its_home(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness, home, save = await referring(memory_buckets)
        lost = await shared_blob(harness, home)
        harness.nodes.take(NODE, lost.id)
        assert not await is_readable(harness, 20)
        await recall(harness, 20)
        assert await is_readable(harness, 20)
        assert await is_readable(harness, 10)
        made = await shared_blob(harness, home)
        assert made.id != lost.id
        # It is named after its home, not after who asked for it (P19).
        assert harness.nodes.fragments[NODE][made.id, 0].save_id == home.save_id
        assert (await harness.shards(save))[0].references

    asyncio.run(run())
