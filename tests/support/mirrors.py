"""Checkpoints with several holders, written straight into the records of a Harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder, Save, Shard
from sdrs_core.cluster import Pool
from sdrs_core.ids import DiskId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_storaged.control import keys
from sdrs_storaged.control.records import put
from tests.support.control import JOB, Harness

A, B, C, D = (NodeId(f"node-{name}") for name in "abcd")
FAST = PoolName("fast")
DISK = DiskId("d" * 32)
LONG_SECONDS = 61.0  # longer than a node that went down is waited for


async def started_with_mirrors(
    node_ids: tuple[NodeId, ...] = (A, B, C, D), *, mirrors: int = 2, kind: type[Harness] = Harness
) -> Harness:
    harness = kind(node_ids=node_ids)
    await harness.start()
    await harness.controller.pools.create(Pool(FAST, Level.L2, mirrors=mirrors), request_id="fast")
    return harness


async def mirrored(
    harness: Harness, step: int, on: Sequence[NodeId], *, world_size: int = 1, level: Level = Level.L2
) -> Save:
    """A checkpoint whose blobs lie on ``on``, each rank with one."""
    save = await harness.save(step, world_size=world_size, pool=FAST)
    for shard in await harness.shards(save):
        blobs = []
        for blob in shard.blobs:
            for node_id in harness.nodes.having(blob.id) - set(on):
                harness.nodes.take(node_id, blob.id)
            for node_id in on:
                harness.nodes.put(node_id, blob.id, save.save_id, harness.clock.unix_ms())
            blobs.append(replace(blob, holders=tuple(holder(node_id) for node_id in on)))
        await write(harness, replace(shard, blobs=tuple(blobs)))
    stored = await harness.controller.catalog.get(JOB, step)
    changed = replace(stored.value, level=level)
    await harness.controller.records.commit([], [put(stored.key, changed)])
    return changed


def holder(node_id: NodeId, *, dropping: bool = False) -> Holder:
    return Holder(node_id, DISK, 0, "content", dropping)


async def write(harness: Harness, shard: Shard) -> None:
    await harness.controller.records.commit([], [put(keys.shard(shard.save_id, shard.rank), shard)])


async def blob_of(harness: Harness, save: Save, rank: int = 0) -> Blob:
    return (await harness.shards(save))[rank].blobs[0]


async def on_record(harness: Harness, save: Save, rank: int = 0) -> set[NodeId]:
    """Who counts as a holder."""
    return {h.node_id for h in (await blob_of(harness, save, rank)).holders if not h.dropping}


async def save_of(harness: Harness, step: int) -> Save:
    return (await harness.controller.catalog.get(JOB, step)).value


async def repair(harness: Harness, times: int = 1) -> None:
    for _ in range(times):
        harness.beat()
        await harness.controller.repairer.pass_once()


async def go_down(harness: Harness, *node_ids: NodeId, seconds: float = LONG_SECONDS) -> None:
    harness.silent.update(node_ids)
    await harness.pass_time(seconds)


async def come_back(harness: Harness, *node_ids: NodeId) -> None:
    harness.silent.difference_update(node_ids)
    harness.beat()
