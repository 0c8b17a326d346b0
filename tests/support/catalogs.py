"""Whole catalogs on any MetaStore, what nodes would hold of them, and nodes that answer a rebuild."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

import xxhash

from sdrs_core.checkpoints import ContentKind, Save, Shard
from sdrs_core.cluster import Authority, Node, Retention
from sdrs_core.errors import SdrsError, UnavailableError
from sdrs_core.ids import BlobId, ClusterId, DiskId, NodeId, SaveId, random_id
from sdrs_core.snapshots import SnapshotId
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control import keys
from sdrs_storaged.control.archive import is_content
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.export import Exporter
from sdrs_storaged.control.imports import Imported, Importer
from sdrs_storaged.control.meta.store import MetaStore
from sdrs_storaged.control.rebuild import Rebuilder, Step
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.replacement import Replacement
from sdrs_storaged.control.witnesses import Testimony, WitnessedFragment
from tests.support.control import JOB, Harness, attempt, node


@dataclass
class Cluster(Harness):
    """A control plane on a store of any kind."""

    any_store: MetaStore | None = None

    async def start(self) -> Controller:
        store = self.any_store or self.store
        if self.current:
            await store.resign(self.current.records.term)
        term = await store.campaign(f"controller-{random_id()}")
        self.current = await Controller.start(store, term, self.clock, self.nodes, self.config)
        if not self.current.records.frozen_because:
            await self.register()
        return self.current

    @property
    def records(self) -> Records:
        return self.controller.records


async def cluster_on(store: MetaStore | None = None, *, node_ids: Sequence[str] = ("node-1",)) -> Cluster:
    cluster = Cluster(node_ids=tuple(NodeId(name) for name in node_ids), any_store=store)
    await cluster.start()
    return cluster


async def empty_on(store: MetaStore | None = None) -> Cluster:
    return await cluster_on(store, node_ids=())


async def fill(cluster: Cluster) -> None:
    """Records of every kind: saves pending, committed, held, set aside, deleted and aborted, a round, pools,
    what a scheduler keeps.
    """
    await cluster.create_pool("fast")
    await cluster.retain(Retention(keep_last=5))
    await cluster.save(10, world_size=3)
    await cluster.save(20, by=attempt(1))
    await cluster.save(20, by=attempt(2))
    await cluster.save(30, by=attempt(2), pool="fast")
    await cluster.controller.catalog.hold(JOB, 20, held=True)
    await cluster.save(40, by=attempt(2))
    await cluster.controller.catalog.delete(JOB, 40, why="by request")
    begun = await cluster.begin(50, by=attempt(2), world_size=2)
    await cluster.seal(begun, rank=1)
    aborted = await cluster.begin(60, by=attempt(2))
    await cluster.controller.commits.abort(aborted.save.save_id, aborted.capability, "given up")
    await cluster.join(by=attempt(2), step=20, world_size=2)
    kept = {"schedule/job/llm-7b-1a2b": b'{"state": "running"}', "schedule/node/node-1": bytes(range(256))}
    await cluster.controller.schedule_records.change({}, kept, [], request_id="fill")


async def contents(store: MetaStore) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    after, more = "", True
    while more:
        page = await store.range("", after=after)
        found |= {entry.key: entry.value for entry in page.entries if is_content(entry.key)}
        after, more = (page.entries[-1].key if page.entries else after), page.more
    return found


async def exported(cluster: Cluster, *, seal: bool = False, with_secrets: bool = True) -> bytes:
    exporter = Exporter(cluster.records, cluster.clock)
    if seal:
        await exporter.seal()
    async with aclosing(exporter.export(with_secrets=with_secrets)) as pieces:
        return b"".join([piece async for piece in pieces])


async def imported(cluster: Cluster, file: bytes, folder: Path, *, piece_bytes: int = 1000) -> Imported:
    """Into the cluster's controller, which then starts anew as a leadership would have it."""
    replaced: list[bool] = []
    importer = Importer(Replacement(cluster.records, lambda: replaced.append(True)), folder)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(file), piece_bytes):
            yield file[start : start + piece_bytes]

    result = await importer.run(pieces())
    assert replaced == [True]
    await cluster.start()
    return result


# Nodes that are asked


@dataclass
class FakeWitness:
    node: Node
    cluster_id: ClusterId
    authority: Authority
    fragments: list[WitnessedFragment] = field(default_factory=list)
    snapshots: dict[SnapshotId, bytes] = field(default_factory=dict)


class FakeWitnesses:
    """By address, which is the node's name. ``broken``: those that do not answer."""

    def __init__(self) -> None:
        self.by_address: dict[str, FakeWitness] = {}
        self.broken: set[str] = set()

    def __getitem__(self, name: str) -> FakeWitness:
        return self.by_address[name]

    async def meet(self, cluster: Cluster) -> None:
        """Each node of the cluster, holding what the catalog says, and having seen its newest revision."""
        authority = cluster.controller.members.authority()
        held = await fragments_by_node(cluster)
        for node_id in cluster.node_ids:
            known = self.by_address.get(node_id)
            self.by_address[node_id] = FakeWitness(
                node(node_id),
                cluster.controller.members.cluster.id,
                authority,
                held.get(node_id, []),
                known.snapshots if known else {},
            )

    async def store_snapshot(self, node: Node, snapshot: SnapshotId, pieces: AsyncIterator[bytes]) -> None:
        content = b"".join([piece async for piece in pieces])
        if node.id in self.broken:
            raise UnavailableError(f"node {node.id} does not answer")
        assert (len(content), xxhash.xxh3_128_hexdigest(content)) == (snapshot.size_bytes, snapshot.hash)
        self.by_address[node.id].snapshots[snapshot] = content

    async def ask(self, address: str) -> Testimony:
        if address in self.broken:
            raise UnavailableError(f"node at {address} does not answer")
        known = self.by_address[address]
        return Testimony(known.node, known.cluster_id, known.authority, tuple(known.snapshots))

    async def read_snapshot(self, address: str, snapshot: SnapshotId) -> AsyncIterator[bytes]:
        content = self.by_address[address].snapshots[snapshot]
        for start in range(0, len(content), 700):
            yield content[start : start + 700]

    async def list_fragments(self, address: str, after: str) -> tuple[list[WitnessedFragment], str]:
        held = sorted((f"{f.blob_id}.{f.fragment_index}", f) for f in self.by_address[address].fragments)
        page = [entry for entry in held if entry[0] > after][:3]
        return [fragment for _, fragment in page], page[-1][0] if page else ""


async def fragments_by_node(cluster: Cluster, mirror_pool: str = "spare") -> dict[NodeId, list[WitnessedFragment]]:
    """What the headers of all fragments would say, by the node that holds them."""
    saves: dict[SaveId, Save] = {}
    for prefix in (keys.SAVES, keys.TRASH):
        saves |= {stored.value.save_id: stored.value async for stored in cluster.records.all(prefix, Save)}
    found: dict[NodeId, list[WitnessedFragment]] = {}
    async for stored in cluster.records.all(keys.SHARDS, Shard):
        save, shard = saves[stored.value.save_id], stored.value
        for blob in shard.all_blobs:
            for holder in blob.holders:
                fragment = witnessed(save, blob.id, shard.rank, blob.ordinal, shard.blob_count, holder.fragment_hash)
                fragment = replace(
                    fragment,
                    fragment_index=holder.fragment_index,
                    size_bytes=fragment_bytes(blob, holder.fragment_index),
                    disk_id=holder.disk_id,
                    code=blob.code,
                    source_size_bytes=blob.size_bytes,
                    source_hash=blob.hash,
                )
                if blob in shard.mirrors:
                    fragment = replace(fragment, pool=mirror_pool, save_pool=save.pool)
                found.setdefault(holder.node_id, []).append(fragment)
    return found


def witnessed(
    save: Save, blob_id: BlobId, rank: int = 0, ordinal: int = 0, blob_count: int = 1, blob_hash: str = "content"
) -> WitnessedFragment:
    return WitnessedFragment(
        blob_id=blob_id,
        fragment_index=0,
        save_id=save.save_id,
        disk_id=DiskId("d" * 32),
        size_bytes=10,
        hash=blob_hash,
        created_unix_ms=save.created_unix_ms + 5,
        job=save.job,
        step=save.step,
        attempt=save.attempt,
        rank=rank,
        ordinal=ordinal,
        world_size=save.world_size,
        blob_count=blob_count,
        kind=ContentKind.STATE,
        pool=save.pool,
    )


def unpacked(snapshot: bytes) -> str:
    return gzip.decompress(snapshot).decode()


async def rebuilt(
    witnesses: FakeWitnesses,
    folder: Path,
    *,
    asking: Sequence[str] = (),
    node_ids: Sequence[str] = (),
    given: bytes = b"",
) -> tuple[Cluster, Step]:
    """A new controller, whose catalog is rebuilt from nodes that then register with it."""
    cluster = await empty_on()
    last = await rebuild(cluster, witnesses, folder, asking=asking, given=given)
    assert last.done
    cluster.node_ids = tuple(NodeId(name) for name in node_ids or witnesses.by_address)
    await cluster.start()
    return cluster, last


async def rebuild(
    cluster: Cluster, witnesses: FakeWitnesses, folder: Path, *, asking: Sequence[str] = (), given: bytes = b""
) -> Step:
    rebuilder = Rebuilder(Replacement(cluster.records, lambda: None), witnesses, cluster.clock, folder)
    async with aclosing(rebuilder.run(list(asking or witnesses.by_address), given)) as steps:
        return [step async for step in steps][-1]


async def refusal(
    cluster: Cluster, witnesses: FakeWitnesses, folder: Path, *, asking: Sequence[str] = (), given: bytes = b""
) -> SdrsError:
    try:
        await rebuild(cluster, witnesses, folder, asking=asking, given=given)
    except SdrsError as error:
        return error
    raise AssertionError("the rebuild was not refused")
