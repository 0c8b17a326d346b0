"""Checkpoints in pools of level L3, saved through a Harness; what has become of them, and nodes that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Save
from sdrs_core.cluster import Pool
from sdrs_core.codes import MIRROR, Code
from sdrs_core.ids import DiskId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.redundancy import Standing, present_form, standing
from sdrs_core.soundness import counted
from sdrs_storaged.control.tables import NodeRecord
from tests.support.control import GRACE_SECONDS, JOB, Harness

MIB = 1 << 20
BLOB_BYTES = 16 * MIB
DEEP = PoolName("deep")
SPARE = PoolName("spare")
NODES = tuple(NodeId(f"n{number}") for number in range(12))
FOUR_TWO = Code(4, 2)


async def started_deep(
    node_count: int = 8,
    *,
    code: Code = FOUR_TWO,
    kind: type[Harness] = Harness,
    mirror_ratio: float = 0.0,
    mirrors: int = 2,
    allow_degraded: bool = False,
) -> Harness:
    """Pool ``deep`` is coded, and mirrored in ``spare`` if a ratio is given."""
    harness = kind(node_ids=NODES[:node_count], capacity_bytes=10_000 * MIB)
    await harness.start()
    pools = harness.controller.pools
    await pools.create(Pool(SPARE, Level.L2, mirrors=mirrors), request_id="spare")
    deep = Pool(
        DEEP,
        Level.L3,
        data_fragments=code.data,
        parity_fragments=code.parity,
        allow_degraded=allow_degraded,
        mirror_pool=SPARE if mirror_ratio else "",
        mirror_ratio=mirror_ratio,
    )
    await pools.create(deep, request_id="deep")
    return harness


async def save_deep(harness: Harness, step: int, *, world_size: int = 1, blob_bytes: int = BLOB_BYTES) -> Save:
    harness.clock.advance(1)
    harness.beat()
    return await harness.save(step, world_size=world_size, pool=DEEP, blob_bytes=blob_bytes)


async def look(harness: Harness, step: int) -> Save:
    return (await harness.controller.catalog.get(JOB, step)).value


async def blob_at(harness: Harness, step: int, rank: int = 0) -> Blob:
    return (await harness.shards(await look(harness, step)))[rank].blobs[0]


async def mirror_at(harness: Harness, step: int, rank: int = 0) -> Blob | None:
    mirrors = (await harness.shards(await look(harness, step)))[rank].mirrors
    return mirrors[0] if mirrors else None


def places(blob: Blob) -> set[tuple[NodeId, int]]:
    """Who counts for which fragment."""
    return {(holder.node_id, holder.fragment_index) for holder in counted(blob)}


def nodes_of(blob: Blob) -> set[NodeId]:
    return {node_id for node_id, _ in places(blob)}


def stands(harness: Harness, blob: Blob, pool: PoolName = DEEP) -> Standing:
    """With whoever is up and counts, and has it in truth."""
    members = harness.controller.members
    live = [
        holder
        for holder in counted(blob)
        if holder.node_id not in harness.silent
        and (blob.id, holder.fragment_index) in harness.nodes.names(holder.node_id)
    ]
    return standing(present_form(blob, members.pool(pool)), live, members.domains())


async def drain(harness: Harness, node_id: NodeId, *disks: DiskId) -> None:
    """The node, or only these disks of it."""

    def edit(record: NodeRecord) -> NodeRecord:
        if disks:
            return replace(record, draining_disks=disks)
        return replace(record, node=replace(record.node, draining=True))

    await _change(harness, node_id, edit(harness.controller.tables.nodes[node_id].value))


async def retire(harness: Harness, node_id: NodeId, *disks: DiskId) -> None:
    record = harness.controller.tables.nodes[node_id].value
    await _change(harness, node_id, replace(record, retired_disks=disks))


async def _change(harness: Harness, node_id: NodeId, record: NodeRecord) -> None:
    async with harness.controller.tables.change():
        await harness.controller.members.store_node(record)
        await harness.controller.groups.plan()
    harness.beat()


async def nothing_else_is_stored(harness: Harness) -> None:
    """What is on record is all that any node has, once leftovers were collected."""
    await harness.pass_time(GRACE_SECONDS + 1)
    await harness.collect(3)
    recorded: set[tuple[NodeId, str, int]] = set()
    for save in await harness.listed(all_states=True):
        for shard in await harness.shards(save):
            for blob in shard.all_blobs:
                assert not any(holder.dropping for holder in blob.holders)
                recorded |= {(node_id, blob.id, index) for node_id, index in places(blob)}
    held = {(node_id, *name) for node_id in harness.node_ids for name in harness.nodes.names(node_id)}
    assert held == recorded


def is_mirror(blob: Blob | None) -> bool:
    return blob is not None and blob.code == MIRROR


def names(*numbers: int) -> Sequence[NodeId]:
    return [NODES[number] for number in numbers]
