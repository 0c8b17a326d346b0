"""I5, P9 with erasure codes and mirrors in a second pool: what is bad is made again, and damage is what cannot be."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import Verdict
from sdrs_core.ids import NodeId
from sdrs_storaged.control.verifier import Progress
from tests.support.coded_saves import (
    CODE,
    SIX,
    SIZE_BYTES,
    coded_save,
    indexes,
    looked_at,
    shard_of,
    started_with_code,
)
from tests.support.control import JOB, Harness
from tests.support.mirrors import save_of, write


async def verify(harness: Harness, step: int = 10) -> list[Progress]:
    harness.beat()
    return [progress async for progress in harness.controller.verifier.verify(JOB, step)]


async def break_fragments(harness: Harness, *broken: int, verdict: Verdict = Verdict.CORRUPT) -> None:
    blob = (await shard_of(harness, await save_of(harness, 10))).blobs[0]
    for index in broken:
        looked_at(harness).found[(SIX[index], blob.id, index)] = verdict


@pytest.mark.parametrize("broken", [(0,), (5,), (1, 4), (0, 1)])
def test_bad_fragments_go_off_the_record_while_enough_others_are_left(broken: tuple[int, ...]) -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        await break_fragments(harness, *broken)
        last = (await verify(harness))[-1]
        assert [(problem.node_id, problem.replaced) for problem in last.problems] == [
            (SIX[index], True) for index in broken
        ]
        assert last.checkpoint
        assert last.checkpoint.damage == ""
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6)) - set(broken)
        assert harness.controller.repairer._woken.is_set()

    asyncio.run(run())


def test_a_checkpoint_is_damaged_when_fewer_than_the_code_needs_are_left_and_all_stay_on_record() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        await break_fragments(harness, 0, 3, 5)
        last = (await verify(harness))[-1]
        assert last.checkpoint
        assert f"rank 0 is corrupt on node {SIX[0]} (and 2 more)" in last.checkpoint.damage
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))

    asyncio.run(run())


def test_nodes_that_are_down_leave_it_undecided_and_bad_ones_still_go() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        await break_fragments(harness, 0, 1)
        harness.silent.update(SIX[2:])
        await harness.pass_time(10)
        last = (await verify(harness))[-1]
        assert [problem.undecided for problem in last.problems] == [False] * 2 + [True] * 4
        assert (await save_of(harness, 10)).damage == ""
        assert indexes((await shard_of(harness, save)).blobs[0]) == {2, 3, 4, 5}

    asyncio.run(run())


def test_parity_is_computed_anew_from_all_data_fragments_and_only_from_good_ones() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        await verify(harness)
        data = tuple(range(CODE.data))
        assert looked_at(harness).read_sources == [*((n, ()) for n in data), (4, data), (5, data)]

        blob = (await shard_of(harness, save)).blobs[0]
        looked_at(harness).wrong_parity.add((SIX[5], blob.id, 5))
        last = (await verify(harness))[-1]
        assert [(problem.node_id, problem.replaced) for problem in last.problems] == [(SIX[5], True)]

        looked_at(harness).read_sources.clear()
        await break_fragments(harness, 2)
        await verify(harness)
        assert looked_at(harness).read_sources[-1] == (4, ())

    asyncio.run(run())


# Mirrors in another pool


def test_fragments_of_a_mirror_are_read_too_and_go_off_the_record() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10, mirrored_on=SIX[:2])
        mirror = (await shard_of(harness, save)).mirrors[0]
        looked_at(harness).found[(SIX[1], mirror.id, 0)] = Verdict.CORRUPT
        last = (await verify(harness))[-1]
        assert [(problem.blob_id, problem.node_id, problem.replaced) for problem in last.problems] == [
            (mirror.id, SIX[1], True)
        ]
        assert [holder.node_id for holder in (await shard_of(harness, save)).mirrors[0].holders] == [SIX[0]]

    asyncio.run(run())


def test_a_good_mirror_keeps_a_checkpoint_from_being_damaged_and_all_bad_ones_go() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10, mirrored_on=SIX[:2])
        await break_fragments(harness, *range(6))
        last = (await verify(harness))[-1]
        assert last.checkpoint
        assert last.checkpoint.damage == ""
        assert all(problem.replaced for problem in last.problems)
        assert (await shard_of(harness, save)).blobs[0].holders == ()
        # Its mirror is all that is left of it: that one is not let go.
        mirror = (await shard_of(harness, save)).mirrors[0]
        for node_id in SIX[:2]:
            looked_at(harness).found[(node_id, mirror.id, 0)] = Verdict.CORRUPT
        assert "is corrupt" in str((await verify(harness))[-1].checkpoint)
        assert len((await shard_of(harness, save)).mirrors[0].holders) == 2

    asyncio.run(run())


def test_a_mirror_that_cannot_be_looked_at_leaves_all_on_record_and_nothing_damaged() -> None:
    async def run() -> None:
        spare = (NodeId("s1"), NodeId("s2"))
        harness = await started_with_code((*SIX, *spare))
        save = await coded_save(harness, 10, on=dict(enumerate(SIX)), mirrored_on=spare)
        await break_fragments(harness, 0, 1, 2)
        harness.silent.update(spare)
        await harness.pass_time(10)
        last = (await verify(harness))[-1]
        assert not any(problem.replaced or problem.is_fatal for problem in last.problems)
        assert (await save_of(harness, 10)).damage == ""
        assert indexes((await shard_of(harness, save)).blobs[0]) == set(range(6))

    asyncio.run(run())


# What changes meanwhile


def test_what_would_be_lost_is_looked_at_again_if_its_holders_changed_meanwhile() -> None:
    """All on record were let go by the book while they were looked at, for others that are good."""

    async def run() -> None:
        others = tuple(NodeId(f"m{number}") for number in range(6))
        harness = await started_with_code((*SIX, *others))
        save = await coded_save(harness, 10, on=dict(enumerate(SIX)))
        await break_fragments(harness, *range(6), verdict=Verdict.MISSING)
        moved = await coded_save(harness, 20, on=dict(enumerate(others)))
        elsewhere = (await shard_of(harness, moved)).blobs[0].holders
        shard = await shard_of(harness, save)
        for holder in elsewhere:
            looked_at(harness).place(holder.node_id, shard.blobs[0], holder.fragment_index, save, 0)
        harness.beat()
        last = None
        async for progress in harness.controller.verifier.verify(JOB, 10):
            last = progress
            await write(harness, replace(shard, blobs=(replace(shard.blobs[0], holders=elsewhere),)))
        assert last
        assert last.problems == ()
        assert last.checkpoint
        assert last.checkpoint.damage == ""

    asyncio.run(run())


def test_progress_counts_each_blob_once_however_many_fragments_and_mirrors_it_has() -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 10, world_size=2, mirrored_on=SIX[:2])
        found = await verify(harness)
        seen = [progress.checked_bytes for progress in found]
        assert seen == sorted(seen)
        assert len(set(seen)) > 10, "fragment by fragment"
        last = found[-1]
        assert (last.checked_bytes, last.total_bytes, last.checked_blobs) == (2 * SIZE_BYTES, 2 * SIZE_BYTES, 2)

    asyncio.run(run())


# Reports of readers


def test_a_report_that_names_a_bad_fragment_has_it_replaced_and_one_that_names_a_good_one_nothing() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        blob = (await shard_of(harness, save)).blobs[0]
        await break_fragments(harness, 1)
        report = harness.controller.verifier.check_reported
        await report(JOB, 10, save.save_id, 0, blob.id, node_id=SIX[0])
        assert looked_at(harness).reads == [(SIX[0], blob.id, 0)]
        await report(JOB, 10, save.save_id, 0, blob.id, node_id=SIX[1])
        assert indexes((await shard_of(harness, save)).blobs[0]) == {0, 2, 3, 4, 5}

    asyncio.run(run())


def test_a_report_that_names_parity_has_it_computed_anew() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        blob = (await shard_of(harness, save)).blobs[0]
        looked_at(harness).wrong_parity.add((SIX[4], blob.id, 4))
        await harness.controller.verifier.check_reported(JOB, 10, save.save_id, 0, blob.id, node_id=SIX[4])
        assert indexes((await shard_of(harness, save)).blobs[0]) == {0, 1, 2, 3, 5}

    asyncio.run(run())


def test_a_blob_that_nobody_is_on_record_for_is_damage() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10)
        shard = await shard_of(harness, save)
        await write(harness, replace(shard, blobs=(replace(shard.blobs[0], holders=()),)))
        last = (await verify(harness))[-1]
        assert last.checkpoint
        assert last.checkpoint.damage.startswith("rank 0 is missing: no node is on record")

    asyncio.run(run())
