"""I7, P13 with erasure codes and mirrors in a second pool: names are blob and index, and what may be needed stays."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.codes import MIRROR
from sdrs_core.ids import BlobId, NodeId
from tests.support.coded_saves import SIX, coded_blob, coded_save, looked_at, place, shard_of, started_with_code
from tests.support.control import GRACE_SECONDS, JOB, Harness
from tests.support.mirrors import write

SEVENTH = NodeId("n6")


async def held(harness: Harness) -> set[tuple[NodeId, BlobId, int]]:
    return {(node_id, name[0], name[1]) for node_id in harness.node_ids for name in harness.nodes.names(node_id)}


def test_a_deleted_checkpoint_goes_with_all_its_fragments_and_its_mirrors() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10, world_size=2, mirrored_on=SIX[:2])
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert await held(harness) == set()
        assert (await harness.trash(), await harness.shards(save)) == ([], [])

    asyncio.run(run())


def test_holders_of_mirrors_are_marked_before_their_nodes_are_told_p14() -> None:
    async def run() -> None:
        harness = await started_with_code()
        save = await coded_save(harness, 10, mirrored_on=SIX[:2])
        await harness.controller.catalog.delete(JOB, 10, why="test")
        await harness.pass_time(GRACE_SECONDS + 1)
        harness.nodes.broken.update(SIX)
        await harness.collect()
        shard = await shard_of(harness, save)
        assert len(shard.mirrors[0].holders) == 2
        assert all(holder.dropping for blob in shard.all_blobs for holder in blob.holders)

    asyncio.run(run())


@pytest.mark.parametrize("index", [0, 5])
def test_an_index_that_is_on_record_for_another_node_is_an_orphan_here_after_two_scans(index: int) -> None:
    async def run() -> None:
        harness = await started_with_code((*SIX, SEVENTH))
        save = await coded_save(harness, 10, on=dict(enumerate(SIX)))
        blob = (await shard_of(harness, save)).blobs[0]
        before = await held(harness)
        looked_at(harness).place(SEVENTH, blob, index, save, harness.clock.unix_ms())
        looked_at(harness).place(SIX[1], blob, index, save, harness.clock.unix_ms())  # beside its own
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        assert len(await held(harness)) == 8
        await harness.collect()
        assert await held(harness) == before

    asyncio.run(run())


@pytest.mark.parametrize(("down_count", "stays"), [(2, False), (3, True)])
def test_nothing_of_a_blob_is_dropped_while_those_on_record_do_not_bring_it_back(down_count: int, stays: bool) -> None:
    async def run() -> None:
        harness = await started_with_code((*SIX, SEVENTH))
        save = await coded_save(harness, 10, on=dict(enumerate(SIX)))
        blob = (await shard_of(harness, save)).blobs[0]
        looked_at(harness).place(SEVENTH, blob, 0, save, harness.clock.unix_ms())
        harness.silent.update(SIX[:down_count])
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert ((blob.id, 0) in harness.nodes.names(SEVENTH)) is stays
        harness.silent.clear()
        await harness.collect(2)
        assert (blob.id, 0) not in harness.nodes.names(SEVENTH)

    asyncio.run(run())


def test_a_mirror_that_is_on_record_is_no_orphan() -> None:
    async def run() -> None:
        harness = await started_with_code()
        await coded_save(harness, 10, mirrored_on=SIX[:2])
        before = await held(harness)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert await held(harness) == before

    asyncio.run(run())


def test_what_a_blob_was_before_it_was_stored_in_another_form_goes_once_the_new_form_can_be_read() -> None:
    """P2: the old form is on no record any more. While the new one cannot be read it may be all there is."""

    async def run() -> None:
        harness = await started_with_code((*SIX, SEVENTH))
        save = await coded_save(harness, 10, on=dict(enumerate(SIX)))
        shard = await shard_of(harness, save)
        old = replace(coded_blob({}, code=MIRROR))
        looked_at(harness).place(SEVENTH, old, 0, save, harness.clock.unix_ms())
        harness.silent.update(SIX[:3])
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect(3)
        assert (old.id, 0) in harness.nodes.names(SEVENTH)
        harness.silent.clear()
        await harness.collect(2)
        assert harness.nodes.names(SEVENTH) == set()
        assert len(await held(harness)) == len(shard.blobs[0].holders)

    asyncio.run(run())


def test_a_fragment_that_came_on_record_between_two_scans_stays() -> None:
    async def run() -> None:
        harness = await started_with_code((*SIX, SEVENTH))
        save = await coded_save(harness, 10, on=dict(enumerate(SIX[:5])))
        shard = await shard_of(harness, save)
        blob = shard.blobs[0]
        whole = replace(coded_blob({5: SEVENTH}), id=blob.id)
        place(harness, blob, whole.holders[0], save)
        await harness.pass_time(GRACE_SECONDS + 1)
        await harness.collect()
        recorded = replace(blob, holders=(*blob.holders, *whole.holders))
        await write(harness, replace(shard, blobs=(recorded,)))
        await harness.collect(2)
        assert (blob.id, 5) in harness.nodes.names(SEVENTH)

    asyncio.run(run())
