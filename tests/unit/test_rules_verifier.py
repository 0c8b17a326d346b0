"""I5: a bad copy is no damage while there is a better one; with none left it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Verdict
from sdrs_core.ids import BlobId, NodeId
from sdrs_storaged.control.verifier import Progress
from tests.support.control import JOB, Harness
from tests.support.mirrors import A, B, C, blob_of, holder, mirrored, on_record, save_of, started_with_mirrors, write


async def verify(harness: Harness, step: int = 10) -> list[Progress]:
    harness.beat()
    return [progress async for progress in harness.controller.verifier.verify(JOB, step)]


async def bad_at(harness: Harness, *node_ids: NodeId, verdict: Verdict = Verdict.CORRUPT) -> BlobId:
    blob_id = (await blob_of(harness, await save_of(harness, 10))).id
    for node_id in node_ids:
        harness.nodes.verdicts_at[(node_id, blob_id)] = verdict
    return blob_id


@pytest.mark.parametrize("verdict", [Verdict.CORRUPT, Verdict.MISSING])
def test_a_bad_copy_is_replaced_and_the_checkpoint_is_not_damaged(verdict: Verdict) -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await harness.controller.repairer.pass_once()
        blob_id = await bad_at(harness, B, verdict=verdict)
        harness.nodes.take(B, blob_id)  # as its node quarantines it
        last = (await verify(harness))[-1]
        [problem] = last.problems
        assert (problem.node_id, problem.undecided, problem.replaced) == (B, False, True)
        assert problem.text.startswith(f"{verdict}: ")
        assert "being replaced" in problem.text
        assert last.checkpoint
        assert last.checkpoint.damage == ""
        assert await on_record(harness, save) == {A}
        assert harness.controller.repairer._woken.is_set()
        await harness.controller.repairer.pass_once()
        assert len(await on_record(harness, save)) == 2
        harness.nodes.verdicts_at.clear()
        assert (await verify(harness))[-1].problems == ()

    asyncio.run(run())


def test_a_checkpoint_is_damaged_when_no_copy_is_good_and_all_stay_on_record() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await bad_at(harness, A, B)
        last = (await verify(harness))[-1]
        assert last.checkpoint
        assert "rank 0 is corrupt" in last.checkpoint.damage
        assert len(last.problems) == 2
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_a_bad_copy_beside_one_that_cannot_be_looked_at_is_no_damage_yet() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await bad_at(harness, A)
        harness.silent.add(B)
        await harness.pass_time(10)
        last = (await verify(harness))[-1]
        assert [problem.undecided for problem in last.problems] == [False, True]
        assert (await save_of(harness, 10)).damage == ""
        assert await on_record(harness, save) == {B}

    asyncio.run(run())


def test_a_good_copy_lifts_a_mark_that_was_set_before() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await harness.controller.catalog.mark_damage(JOB, 10, save.save_id, "known before")
        await bad_at(harness, B)
        await verify(harness)
        assert (await save_of(harness, 10)).damage == ""

    asyncio.run(run())


def test_a_copy_that_is_being_dropped_is_not_looked_at() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await bad_at(harness, B, verdict=Verdict.MISSING)
        [shard] = await harness.shards(save)
        dropping = replace(shard.blobs[0], holders=(holder(A), holder(B, dropping=True)))
        await write(harness, replace(shard, blobs=(dropping,)))
        assert (await verify(harness))[-1].problems == ()
        assert (await blob_of(harness, save)) == dropping

    asyncio.run(run())


def test_a_copy_that_was_dropped_meanwhile_is_no_problem() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob_id = await bad_at(harness, B, verdict=Verdict.MISSING)
        [shard] = await harness.shards(save)
        gone = replace(shard.blobs[0], holders=(holder(A),))
        found = []
        async for progress in harness.controller.verifier.verify(JOB, 10):
            found.append(progress)
            await write(harness, replace(shard, blobs=(gone,)))
        assert found[-1].problems == ()
        assert (blob_id, await on_record(harness, save)) == (gone.id, {A})

    asyncio.run(run())


def test_progress_counts_each_blob_once_however_many_copies_are_read() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B, C], world_size=2)
        seen = [progress.checked_bytes for progress in await verify(harness)]
        assert seen == sorted(seen)
        last = (await verify(harness))[-1]
        assert (last.checked_bytes, last.total_bytes, last.checked_blobs) == (20, 20, 2)

    asyncio.run(run())


def test_a_report_that_names_a_good_copy_moves_nothing() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob_id = await bad_at(harness, B)
        report = harness.controller.verifier.check_reported
        assert (await report(JOB, 10, save.save_id, 0, blob_id, node_id=A)).damage == ""
        assert await on_record(harness, save) == {A, B}
        assert (await report(JOB, 10, save.save_id, 0, blob_id, node_id=B)).damage == ""
        assert await on_record(harness, save) == {A}
        assert harness.controller.repairer._woken.is_set()

    asyncio.run(run())


def test_a_report_without_a_name_or_of_an_unknown_node_has_all_copies_looked_at() -> None:
    async def run(node_id: str) -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob_id = await bad_at(harness, B)
        await harness.controller.verifier.check_reported(JOB, 10, save.save_id, 0, blob_id, node_id=node_id)
        assert await on_record(harness, save) == {A}

    asyncio.run(run(""))
    asyncio.run(run("stranger"))


def test_a_report_about_the_last_good_copy_marks_the_damage() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        blob_id = await bad_at(harness, A, B)
        report = harness.controller.verifier.check_reported
        assert "corrupt" in (await report(JOB, 10, save.save_id, 0, blob_id, node_id=A)).damage
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())
