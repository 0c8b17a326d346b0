"""I4: what is out of reach is named and never forgotten, until an operator gives it up in so many words."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sdrs_core.checkpoints import SaveState
from sdrs_core.errors import RefusedError
from sdrs_core.ids import BlobId, NodeId
from tests.support.control import JOB
from tests.support.mirrors import (
    FAST,
    A,
    B,
    C,
    blob_of,
    come_back,
    go_down,
    holder,
    mirrored,
    on_record,
    repair,
    started_with_mirrors,
    write,
)


def test_a_checkpoint_out_of_reach_is_named_until_its_node_returns() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await repair(harness)
        lost = await mirrored(harness, 10, [A, B])
        await mirrored(harness, 20, [A, C])
        await go_down(harness, A, B)
        await repair(harness)
        repairer = harness.controller.repairer
        assert [save.step for save in repairer.unavailable.values()] == [10]
        assert repairer.totals.unavailable_count == 1
        named = [stored.value for stored in await harness.controller.losses.unavailable(FAST)]
        assert named == [replace(lost, degraded=True)]
        await come_back(harness, B)
        await repair(harness)
        assert (repairer.unavailable, repairer.totals.unavailable_count) == ({}, 0)
        assert await harness.controller.losses.unavailable(FAST) == []

    asyncio.run(run())


def test_a_good_copy_that_is_on_no_record_is_found_when_all_on_record_are_out_of_reach() -> None:
    """The controller died between the pull and the record, and then the source."""

    async def run() -> None:
        harness = await started_with_mirrors()
        save, lost = await mirrored(harness, 10, [A]), await mirrored(harness, 20, [A])
        blob_id, bad_id = (await blob_of(harness, save)).id, (await blob_of(harness, lost)).id
        await repair(harness)
        for one in (save, lost):
            [shard] = await harness.shards(one)
            await write(harness, replace(shard, blobs=(replace(shard.blobs[0], holders=(holder(A),)),)))
        for node_id in harness.nodes.having(bad_id) - {A}:
            harness.nodes.hashes[(node_id, (bad_id, 0))] = "something else"
        [stray] = harness.nodes.having(blob_id) - {A}
        await go_down(harness, A)
        await repair(harness)
        assert await on_record(harness, save) == {A, stray}
        assert await on_record(harness, lost) == {A}
        assert [save.step for save in harness.controller.repairer.unavailable.values()] == [20]
        asked = len(harness.nodes.looked_up)
        await repair(harness, times=2)
        assert len(await on_record(harness, save)) == 3
        assert len(harness.nodes.looked_up) == asked  # nobody came or went

    asyncio.run(run())


def test_before_a_checkpoint_is_given_up_everybody_is_asked_for_it() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A])
        harness.nodes.put(B, (await blob_of(harness, save)).id, save.save_id, harness.clock.unix_ms())
        await go_down(harness, A)
        assert await harness.controller.losses.unavailable(FAST) == []
        assert await on_record(harness, save) == {A, B}

    asyncio.run(run())


def test_a_defect_that_one_blob_brings_out_keeps_no_other() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        bad, good = await mirrored(harness, 10, [A]), await mirrored(harness, 20, [A])
        bad_id = (await blob_of(harness, bad)).id

        async def fail(_: NodeId, blob_id: BlobId) -> None:
            if blob_id == bad_id:
                raise ZeroDivisionError

        harness.nodes.on_pull = fail
        await repair(harness)
        assert (len(await on_record(harness, good)), len(await on_record(harness, bad))) == (2, 1)

    asyncio.run(run())


def test_a_node_that_was_not_heard_yet_makes_a_loss_undecidable() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        harness.silent.update({A, B})
        await harness.start()
        with pytest.raises(RefusedError, match="not heard yet"):
            await harness.controller.losses.unavailable(FAST)
        await repair(harness)
        assert harness.controller.repairer.totals.unavailable_count == 0

    asyncio.run(run())


def test_what_is_given_up_lies_in_the_trash_and_can_be_brought_back() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        lost = await mirrored(harness, 10, [A, B])
        await mirrored(harness, 20, [A, C])
        await go_down(harness, A, B)
        losses = harness.controller.losses
        given_up = await losses.give_up(await losses.unavailable(FAST), "the operator accepts the loss")
        assert [save.step for save in given_up] == [10]
        assert await harness.steps() == [20]
        assert [(save.state, save.note) for save in await harness.trash()] == [
            (SaveState.DELETED, "the operator accepts the loss")
        ]
        assert await harness.controller.catalog.undelete(JOB, 10) == lost

    asyncio.run(run())


def test_what_came_into_reach_again_meanwhile_is_not_given_up() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B])
        await go_down(harness, A, B)
        losses = harness.controller.losses
        found = await losses.unavailable(FAST)
        await come_back(harness, A)
        assert await losses.give_up(found, "test") == []
        assert await harness.steps() == [10]

    asyncio.run(run())


def test_a_held_checkpoint_is_not_given_up_and_neither_are_the_others_with_it() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        for step in (10, 20):
            await mirrored(harness, step, [A, B])
        await harness.controller.catalog.hold(JOB, 10, held=True)
        await go_down(harness, A, B)
        losses = harness.controller.losses
        with pytest.raises(RefusedError, match="held"):
            await losses.give_up(await losses.unavailable(FAST), "test")
        assert await harness.steps() == [20, 10]

    asyncio.run(run())
