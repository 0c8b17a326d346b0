"""P14, I7: copies beyond the wanted number go, and nothing goes that somebody may need."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.support.mirrors import (
    A,
    B,
    C,
    D,
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


def test_a_node_that_comes_back_counts_again_and_one_copy_too_many_is_dropped() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B])
        await go_down(harness, B)
        await repair(harness)
        await come_back(harness, B)
        await repair(harness)
        blob = await blob_of(harness, save)
        assert len(blob.holders) == 2
        assert not any(h.dropping for h in blob.holders)
        assert harness.nodes.having(blob.id) == {h.node_id for h in blob.holders}
        assert len(harness.nodes.pulls) == 1

    asyncio.run(run())


def test_a_copy_is_not_dropped_for_one_that_is_only_on_record() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B, C])
        await repair(harness)  # nobody has been asked about this one since
        save = await mirrored(harness, 20, [A, B, C])
        blob = await blob_of(harness, save)
        for node_id in (A, B):
            harness.nodes.take(node_id, blob.id)
        await repair(harness)
        assert C in harness.nodes.having(blob.id)
        await harness.pass_time(10)
        await repair(harness, times=3)
        having = harness.nodes.having(blob.id)
        assert len(having) == 2
        assert await on_record(harness, save) == having

    asyncio.run(run())


def test_a_dropping_copy_is_finished_when_its_node_is_back_and_never_counts() -> None:
    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B, C])
        harness.nodes.broken.update({A, B, C, D})
        [shard] = await harness.shards(save)
        blob = replace(shard.blobs[0], holders=(holder(A), holder(B), holder(C, dropping=True)))
        await write(harness, replace(shard, blobs=(blob,)))
        await go_down(harness, C)
        harness.nodes.broken.clear()
        await repair(harness)
        assert C in harness.nodes.having(blob.id)
        await come_back(harness, C)
        await repair(harness)
        assert harness.nodes.having(blob.id) == {A, B} == {h.node_id for h in (await blob_of(harness, save)).holders}
        assert harness.nodes.pulls == []

    asyncio.run(run())


def test_a_drop_that_was_begun_is_not_finished_for_copies_that_are_only_on_record() -> None:
    """I7: what was dispensable when the drop began is by now the only copy."""

    async def run() -> None:
        harness = await started_with_mirrors()
        save = await mirrored(harness, 10, [A, B, C])
        await repair(harness)  # nobody has been asked about what follows
        [shard] = await harness.shards(save)
        blob = replace(shard.blobs[0], holders=(holder(A), holder(B), holder(C, dropping=True)))
        await write(harness, replace(shard, blobs=(blob,)))
        harness.nodes.put(C, blob.id, save.save_id, 0)
        for node_id in (A, B):
            harness.nodes.take(node_id, blob.id)
        await repair(harness, times=3)
        assert C in harness.nodes.having(blob.id)

    asyncio.run(run())
