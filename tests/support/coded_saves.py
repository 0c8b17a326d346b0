"""Checkpoints whose blobs are in an erasure code, written straight into the records of a Harness."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder, Save, Shard, Verdict
from sdrs_core.cluster import Node, Pool
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.ids import BlobId, DiskId, NodeId, PoolName, random_id
from sdrs_core.levels import Level
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control import keys
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.collector import Fragment
from sdrs_storaged.control.copier import HeldFragment
from sdrs_storaged.control.looks import FragmentCheck
from sdrs_storaged.control.records import put
from tests.support.control import JOB, FakeNodes, Harness
from tests.support.mirrors import DISK, write

DEEP = PoolName("deep")
SPARE = PoolName("spare")
SIX = tuple(NodeId(f"n{number}") for number in range(6))
CODE = Code(4, 2)
SIZE_BYTES = CODE.stripe_bytes + 1000


class LookedAtNodes(FakeNodes):
    """Nodes that are asked how their fragments are: what each finds when it reads one, and what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[NodeId, BlobId, int], Verdict] = {}
        # Parity that is wrong and has good checksums: found only by whoever computes it anew (P9).
        self.wrong_parity: set[tuple[NodeId, BlobId, int]] = set()
        self.reads: list[tuple[NodeId, BlobId, int]] = []
        self.read_sources: list[tuple[int, tuple[int, ...]]] = []
        self.limits: list[int] = []
        self.sizes: dict[FragmentName, int] = {}
        self.page_size = 1000

    def place(self, node_id: NodeId, blob: Blob, index: int, save: Save, created_unix_ms: int) -> None:
        name = (blob.id, index)
        self.fragments.setdefault(node_id, {})[name] = Fragment(blob.id, index, save.save_id, created_unix_ms)
        self.hashes[(node_id, name)] = hash_of(blob.code, index)
        self.sizes[name] = fragment_bytes(blob, index)

    def _held(self, node_id: NodeId, name: FragmentName) -> HeldFragment:
        return replace(super()._held(node_id, name), size_bytes=self.sizes[name])

    def lose(self, node_id: NodeId, blob: Blob, index: int) -> None:
        del self.fragments[node_id][(blob.id, index)]

    async def verify_fragment(
        self,
        node: Node,
        blob_id: BlobId,
        index: int,
        expected_hash: str,
        *,
        code: str = MIRROR,
        sources: Sequence[tuple[Node, Holder]] = (),
        max_bytes_per_second: int = 0,
    ) -> AsyncIterator[FragmentCheck]:
        place = (node.id, blob_id, index)
        self.reads.append(place)
        self.read_sources.append((index, tuple(holder.fragment_index for _, holder in sources)))
        self.limits.append(max_bytes_per_second)
        yield FragmentCheck(1000, None, "")
        verdict = self.found.get(place, Verdict.OK)
        if (blob_id, index) not in self.fragments.get(node.id, {}):
            verdict = Verdict.MISSING
        elif self.hashes.get((node.id, (blob_id, index)), "content") != expected_hash or (
            place in self.wrong_parity and sources
        ):
            verdict = Verdict.CORRUPT
        if verdict is Verdict.CORRUPT:
            del self.fragments[node.id][(blob_id, index)]  # as a node quarantines it
        yield FragmentCheck(2000, verdict, "as the test says")


def hash_of(code: str, index: int) -> str:
    return "content" if code == MIRROR else f"{code} fragment {index}"


async def started_with_code(node_ids: Sequence[NodeId] = SIX, *, nodes: LookedAtNodes | None = None) -> Harness:
    harness = Harness(node_ids=tuple(node_ids), nodes=nodes or LookedAtNodes())
    await harness.start()
    coded = Pool(DEEP, Level.L3, data_fragments=CODE.data, parity_fragments=CODE.parity)
    await harness.controller.pools.create(coded, request_id="deep")
    await harness.controller.pools.create(Pool(SPARE, Level.L2, mirrors=2), request_id="spare")
    return harness


def looked_at(harness: Harness) -> LookedAtNodes:
    assert isinstance(harness.nodes, LookedAtNodes)
    return harness.nodes


async def coded_save(
    harness: Harness,
    step: int,
    *,
    on: Mapping[int, NodeId] | None = None,
    world_size: int = 1,
    mirrored_on: Sequence[NodeId] = (),
) -> Save:
    """One blob a rank. ``on``: which node has which fragment, each one by default; ``mirrored_on``: who has a copy."""
    made = await harness.save(step, world_size=world_size)
    save = replace(made, pool=DEEP, level=Level.L3, size_bytes=world_size * SIZE_BYTES)
    await harness.controller.records.commit([], [put(keys.save(JOB, step, save.attempt), save)])
    for shard in await harness.shards(save):
        for node_id in harness.nodes.having(shard.blobs[0].id):
            harness.nodes.take(node_id, shard.blobs[0].id)
        blob = coded_blob(on or dict(enumerate(harness.node_ids)))
        mirror = replace(blob, id=BlobId(random_id()), code=MIRROR, holders=())
        mirror = replace(mirror, holders=tuple(holder_of(mirror, node_id, 0) for node_id in mirrored_on))
        mirrors = (mirror,) if mirrored_on else ()
        for one in (blob, *mirrors):
            for holder in one.holders:
                place(harness, one, holder, save)
        await write(harness, replace(shard, size_bytes=SIZE_BYTES, blobs=(blob,), mirrors=mirrors))
    return save


def coded_blob(on: Mapping[int, NodeId], code: str = str(CODE), ordinal: int = 0) -> Blob:
    blob = Blob(BlobId(random_id()), ordinal, SIZE_BYTES, "content", code)
    return replace(blob, holders=tuple(holder_of(blob, node_id, index) for index, node_id in on.items()))


def holder_of(blob: Blob, node_id: NodeId, index: int, *, disk_id: DiskId = DISK) -> Holder:
    return Holder(node_id, disk_id, index, hash_of(blob.code, index))


def place(harness: Harness, blob: Blob, holder: Holder, save: Save) -> None:
    looked_at(harness).place(holder.node_id, blob, holder.fragment_index, save, harness.clock.unix_ms())


async def shard_of(harness: Harness, save: Save, rank: int = 0) -> Shard:
    return (await harness.shards(save))[rank]


def indexes(blob: Blob) -> set[int]:
    """Which fragments are on record."""
    return {holder.fragment_index for holder in blob.holders if not holder.dropping}


def parity_of(code: str) -> range:
    parsed = parse_code(code)
    assert parsed
    return range(parsed.data, parsed.total)
