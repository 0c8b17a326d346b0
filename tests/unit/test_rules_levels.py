"""I6: the level of a save rises when all its copies are there, and never falls."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sdrs_core.levels import Level
from tests.support.mirrors import (
    A,
    B,
    come_back,
    go_down,
    holder,
    mirrored,
    repair,
    save_of,
    started_with_mirrors,
    write,
)


def test_a_save_below_its_level_rises_when_all_its_copies_are_there() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A], world_size=2, level=Level.L1)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L2

    asyncio.run(run())


def test_a_level_does_not_rise_while_one_blob_is_short_and_never_falls() -> None:
    async def run() -> None:
        harness = await started_with_mirrors(node_ids=(A, B))
        degraded = await mirrored(harness, 10, [A, B], world_size=2, level=Level.L1)
        full = await mirrored(harness, 20, [A, B])
        shards = await harness.shards(degraded)
        lone = replace(shards[1].blobs[0], holders=(holder(A),))
        await write(harness, replace(shards[1], blobs=(lone,)))
        await go_down(harness, B)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L1
        assert await save_of(harness, 20) == replace(full, degraded=True)
        await come_back(harness, B)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L2

    asyncio.run(run())


def test_a_level_does_not_rise_on_the_word_of_a_node_that_was_not_asked() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        await mirrored(harness, 10, [A, B], level=Level.L1)
        harness.nodes.broken.add(B)
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L1
        harness.nodes.broken.clear()
        await repair(harness)
        assert (await save_of(harness, 10)).level is Level.L2

    asyncio.run(run())
