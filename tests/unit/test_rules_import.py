"""I2, P1, P25: checkpoints of a bucket into a cluster, and what is in the way there."""

from __future__ import annotations

import asyncio

import pytest

from sdrs_core.attempts import Job
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import FullError, NotFoundError, UnavailableError
from sdrs_core.levels import Level
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.records import Run
from sdrs_storaged.control.backup.runs import RunProgress
from tests.support.control import JOB, Harness, attempt
from tests.support.memory_buckets import NAS, MemoryBuckets, add_target, back_up, evict, memory_buckets
from tests.support.mirrors import FAST, A, B, C, mirrored, on_record, save_of, started_with_mirrors

__all__ = ["memory_buckets"]


async def lost_cluster(buckets: MemoryBuckets, *steps: int, world_size: int = 1) -> Harness:
    """One that is gone, but for its backups."""
    harness = await started_with_mirrors()
    await add_target(harness)
    for step in steps:
        await back_up(harness, await mirrored(harness, step, [A, B], world_size=world_size), buckets)
    return harness


async def new_cluster(lost: Harness, *, has_pool: bool = True) -> Harness:
    harness = await started_with_mirrors() if has_pool else Harness(node_ids=(A, B, C))
    if not has_pool:
        await harness.start()
    await add_target(harness, source_cluster_id=lost.controller.members.cluster.id)
    return harness


async def run_import(harness: Harness, **selected: object) -> Run:
    harness.beat()

    async def keep() -> None:
        return

    backups = harness.controller.backups
    run = Run("run", NAS, RunKind.IMPORT, "test", Selection(**selected), "", 0)  # type: ignore[arg-type]
    await backups.runs.kinds[RunKind.IMPORT](RunProgress(backups.targets.get(NAS), run, keep, harness.clock))
    return run


async def shard_records(harness: Harness) -> set[str]:
    page = await harness.store.range(keys.SHARDS, limit=1000)
    return {entry.key.split("/")[1] for entry in page.entries}


def test_a_cluster_comes_back_from_nothing_but_its_bucket(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        lost = await lost_cluster(memory_buckets, 10, 20, world_size=2)
        harness = await new_cluster(lost)
        done = await run_import(harness)
        assert (done.done_checkpoints, done.total_checkpoints, done.problems) == (2, 2, [])
        assert done.moved_bytes == done.done_bytes == done.total_bytes == 40
        assert await harness.steps() == [20, 10]
        for step in (10, 20):
            old, new = await save_of(lost, step), await save_of(harness, step)
            assert new.origin == f"{lost.controller.members.cluster.id}/{old.save_id}"
            assert (new.evicted, new.level, new.pool, new.attempt) == ("", Level.L2, FAST, old.attempt)
            assert new.committed_unix_ms == old.committed_unix_ms
            for rank in range(2):
                assert len(await on_record(harness, new, rank)) == 2
        # Whoever saves next is a later attempt than all that were imported (P1).
        await harness.save(10, pool=FAST, by=attempt(0, "another run"))
        assert (await save_of(harness, 10)).attempt == 2

    asyncio.run(run())


def test_importing_again_finds_everything_there(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10, 20))
        await run_import(harness)
        again = await run_import(harness)
        assert (again.done_checkpoints, again.skipped_checkpoints, again.moved_bytes) == (0, 2, 0)
        assert len(await shard_records(harness)) == 2

    asyncio.run(run())


def test_lazily_only_the_catalog_comes_and_a_second_import_brings_the_bytes(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10))
        done = await run_import(harness, lazy=True)
        assert (done.done_checkpoints, done.moved_bytes) == (1, 0)
        save = await save_of(harness, 10)
        assert (save.evicted, save.level, save.state) == (NAS, Level.NONE, SaveState.COMMITTED)
        assert harness.nodes.fetched == []
        assert harness.controller.tally.bytes_by_pool[FAST] == 0
        done = await run_import(harness)
        assert (done.done_checkpoints, done.moved_bytes) == (1, save.size_bytes)
        assert (await save_of(harness, 10)).evicted == ""
        assert harness.controller.tally.bytes_by_pool[FAST] == save.size_bytes

    asyncio.run(run())


def test_what_is_selected_comes_and_the_newest_comes_first(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        lost = await lost_cluster(memory_buckets)
        for step in (10, 20, 30):
            await lost.pass_time(1)
            await back_up(lost, await mirrored(lost, step, [A, B]), memory_buckets)
        harness = await new_cluster(lost)
        assert (await run_import(harness, job=JOB, step=20)).total_checkpoints == 1
        assert await harness.steps() == [20]
        assert (await run_import(harness, pool="other")).total_checkpoints == 0
        await run_import(harness, pool=FAST)
        assert harness.nodes.fetched == ["20/0/0", "30/0/0", "10/0/0"]
        with pytest.raises(NotFoundError, match="backup nas has no llm-7b step 99"):
            await run_import(harness, job=JOB, step=99)

    asyncio.run(run())


def test_a_step_that_is_here_with_other_content_is_kept_and_named(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10, 20))
        mine = await harness.save(10, pool=FAST, content="mine")
        done = await run_import(harness)
        assert (done.done_checkpoints, done.failed_checkpoints) == (1, 1)
        [problem] = done.problems
        assert f"llm-7b step 10 is here with other content (save {mine.save_id} of attempt 1)" in problem
        assert await save_of(harness, 10) == mine
        assert await harness.steps() == [20, 10]

    asyncio.run(run())


def test_the_same_content_is_known_though_nothing_says_where_it_came_from(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10))
        mine = await harness.save(10, pool=FAST)
        done = await run_import(harness)
        assert (done.skipped_checkpoints, done.problems) == (1, [])
        assert await save_of(harness, 10) == mine

    asyncio.run(run())


def test_a_running_job_keeps_its_attempt_and_what_comes_in_is_never_later(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        lost = await lost_cluster(memory_buckets)
        for number in range(1, 6):
            await back_up(lost, await lost.save(number, pool=FAST, by=attempt(number)), memory_buckets)
        harness = await new_cluster(lost)
        await harness.save(100, pool=FAST, by=attempt(0, "here"))
        await run_import(harness)
        job = await harness.controller.records.get(keys.job(JOB), Job)
        assert job
        assert (job.value.attempt, job.value.run) == (1, "here")
        assert {save.attempt for save in await harness.listed()} == {1}

    asyncio.run(run())


def test_attempts_of_a_job_that_never_ran_here_are_kept(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        lost = await lost_cluster(memory_buckets)
        for number in (1, 2, 3):
            await lost.pass_time(1)
            await back_up(lost, await lost.save(10 * number, pool=FAST, by=attempt(number)), memory_buckets)
        harness = await new_cluster(lost)
        await run_import(harness, job=JOB, step=10)
        await run_import(harness)
        assert [(save.step, save.attempt) for save in await harness.listed()] == [(30, 3), (20, 2), (10, 1)]

    asyncio.run(run())


def test_without_a_pool_of_that_name_it_goes_into_the_default_one_or_where_it_is_told(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10, 20), has_pool=False)
        await run_import(harness, job=JOB, step=10)
        assert (await save_of(harness, 10)).pool == "default"
        await harness.create_pool("elsewhere")
        await run_import(harness, into_pool="elsewhere")
        assert (await save_of(harness, 20)).pool == "elsewhere"
        with pytest.raises(NotFoundError, match="nowhere"):
            await run_import(harness, into_pool="nowhere")

    asyncio.run(run())


def test_sync_brings_back_what_is_missing_and_nothing_else(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await add_target(harness)
        for step in (10, 20, 30):
            await back_up(harness, await mirrored(harness, step, [A, B]), memory_buckets)
        [lost] = [shard.blobs[0] for shard in await harness.shards(await save_of(harness, 20))]
        harness.nodes.take(A, lost.id)
        harness.nodes.take(B, lost.id)
        await harness.controller.catalog.delete(JOB, 30, why="by mistake")
        done = await run_import(harness, missing_only=True)
        assert (done.done_checkpoints, done.skipped_checkpoints, done.moved_bytes) == (2, 1, 20)
        assert sorted(harness.nodes.fetched) == ["20/0/0", "30/0/0"]
        assert await harness.steps() == [30, 20, 10]

    asyncio.run(run())


def test_a_damaged_record_in_the_bucket_is_named_and_does_not_keep_the_others(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        lost = await lost_cluster(memory_buckets, 10, 20, 30)
        objects = memory_buckets.store().objects
        [commit] = [key for key in objects if "/checkpoints/" in key and f"{10:016d}" in key]
        objects[commit] = objects[commit][:-20]
        [shard] = [key for key in objects if f"/shards/{(await save_of(lost, 20)).save_id}" in key]
        objects[shard] = objects[shard].replace(b"content", b"damaged")
        harness = await new_cluster(lost)
        done = await run_import(harness)
        assert (done.done_checkpoints, done.failed_checkpoints, len(done.problems)) == (1, 2, 2)
        assert await harness.steps() == [30]

    asyncio.run(run())


def test_without_room_the_import_says_so_and_what_came_is_known(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10, 20))
        harness.nodes.full = {A, B, C}
        with pytest.raises(FullError, match="has no room"):
            await run_import(harness)
        assert [save.evicted for save in await harness.listed()] == [NAS, NAS]
        assert all(not held for held in harness.nodes.fragments.values())
        harness.nodes.full = set()
        assert (await run_import(harness)).done_checkpoints == 2

    asyncio.run(run())


def test_interrupted_after_any_transaction_nothing_half_is_seen_and_a_second_import_completes_it(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> int:
        """How many transactions it has."""
        lost = await lost_cluster(memory_buckets, 10, world_size=2)
        number = 0
        while True:
            number += 1
            harness = await new_cluster(lost)
            harness.store.fail(number, UnavailableError("the controller is gone"))
            try:
                await run_import(harness)
                return number
            except UnavailableError:
                harness.store.heal()
            await harness.start()
            for save in await harness.listed():
                assert len(await harness.shards(save)) == 2
            done = await run_import(harness)
            assert done.done_checkpoints + done.skipped_checkpoints == 1
            [save] = await harness.listed()
            assert save.evicted == ""
            assert await shard_records(harness) == {save.save_id}
            assert not (await harness.store.range("backup/import/", limit=10)).entries

    assert asyncio.run(run()) > 5


def test_one_that_this_cluster_evicted_is_brought_back_by_an_import(memory_buckets: MemoryBuckets) -> None:
    async def run() -> None:
        harness = await lost_cluster(memory_buckets, 10)
        save: Save = await evict(harness, await save_of(harness, 10))
        assert (await run_import(harness, job=JOB, step=10)).done_checkpoints == 1
        back = await save_of(harness, 10)
        assert (back.save_id, back.evicted) == (save.save_id, "")

    asyncio.run(run())


def test_a_step_that_is_begun_here_meanwhile_wins_and_nothing_of_the_other_is_left(
    memory_buckets: MemoryBuckets,
) -> None:
    async def run() -> None:
        harness = await new_cluster(await lost_cluster(memory_buckets, 10))
        before = harness.store.txn_count

        async def begin(number: int) -> None:
            if number == before + 2:  # the note is written, the shards are about to be
                harness.store.heal()
                await harness.begin(10, pool=FAST)

        harness.store.before = begin
        done = await run_import(harness)
        assert done.failed_checkpoints == 1
        assert "llm-7b step 10 is being saved here" in done.problems[0]
        assert await shard_records(harness) == set()

    asyncio.run(run())
