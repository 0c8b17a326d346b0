"""Moving, copying and rebuilding a catalog over real sockets: a controller's service, two nodes', and their clients."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from sdrs_core.cluster import Authority, Node
from sdrs_core.errors import CorruptDataError, RefusedError, SdrsError
from sdrs_core.ids import NodeId
from sdrs_proto import convert
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import CONTROL, STORAGE, Stub, handler
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1 import control_pb2, storage_pb2
from sdrs_storaged.control.export import Exporter
from sdrs_storaged.control.imports import Importer
from sdrs_storaged.control.rebuild import Rebuilder
from sdrs_storaged.control.replacement import Replacement
from sdrs_storaged.control.snapshots import Snapshots
from sdrs_storaged.control.witnesses import WitnessedFragment
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.snapshots import SnapshotShelf
from sdrs_storaged.rpc.channels import Channels
from sdrs_storaged.rpc.edge import serve
from sdrs_storaged.rpc.meta_service import MetaService
from sdrs_storaged.rpc.snapshot_service import SnapshotService
from sdrs_storaged.rpc.witness_client import WitnessClient
from tests.support.catalogs import Cluster, cluster_on, empty_on, fill, fragments_by_node
from tests.support.control import attempt, node

NODES = ("node-1", "node-2")


class StorageNode(SnapshotService):
    """The real keeper of copies, beside fragments that a test names."""

    def __init__(self, folder: Path, cluster: Cluster, name: str) -> None:
        self.identity = Identity.open(folder / f"{name}.json", name)
        self.identity.join(cluster.controller.members.cluster.id)
        self.identity.obey(Authority(1, 1, 1))
        self.address = ""
        self.fragments: list[WitnessedFragment] = []
        super().__init__(SnapshotShelf(folder / f"{name}-snapshots", self.identity), self.identity, self.describe)

    def describe(self) -> Node:
        known = node(self.identity.node_id)
        return replace(known, endpoints=replace(known.endpoints, grpc=self.address), domain="rack")

    async def list_fragments(self, request: storage_pb2.ListFragmentsRequest) -> storage_pb2.ListFragmentsResponse:
        assert request.with_origin
        left = [fragment for fragment in self.fragments if fragment.blob_id > request.page_token]
        held = sorted(left, key=lambda fragment: fragment.blob_id)[:2]
        return storage_pb2.ListFragmentsResponse(
            fragments=[info_of(fragment) for fragment in held], next_page_token=held[-1].blob_id if held else ""
        )


def info_of(fragment: WitnessedFragment) -> storage_pb2.FragmentInfo:
    origin = storage_pb2.WriteIntent(
        job=fragment.job,
        step=fragment.step,
        attempt=fragment.attempt,
        rank=fragment.rank,
        ordinal=fragment.ordinal,
        world_size=fragment.world_size,
        blob_count=fragment.blob_count,
        kind=convert.kind_to(fragment.kind),
        pool=fragment.pool,
    )
    return storage_pb2.FragmentInfo(
        blob_id=fragment.blob_id,
        fragment_index=fragment.fragment_index,
        save_id=fragment.save_id,
        size_bytes=fragment.size_bytes,
        created_unix_ms=fragment.created_unix_ms,
        hash=fragment.hash,
        disk_id=fragment.disk_id,
        origin=origin,
    )


class Network:
    """Servers on free ports, and stubs to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cleanup = AsyncExitStack()
        self.channels = Channels()
        self.cleanup.push_async_callback(self.channels.close)

    async def _serve(self, handlers: grpc.GenericRpcHandler) -> str:
        server = grpc.aio.server(options=CHANNEL_OPTIONS)
        server.add_generic_rpc_handlers([handlers])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self.cleanup.push_async_callback(server.stop, None)
        return f"127.0.0.1:{port}"

    async def controller(self, cluster: Cluster) -> Stub:
        replacement = Replacement(cluster.records, lambda: None)
        service = MetaService(
            Exporter(cluster.records, cluster.clock),
            Importer(replacement, self.folder),
            Rebuilder(replacement, WitnessClient(self.channels), cluster.clock, self.folder),
        )
        return self.channels.stub(await self._serve(handler(CONTROL, service, serve)), CONTROL)

    async def node(self, cluster: Cluster, name: str) -> StorageNode:
        service = StorageNode(self.folder, cluster, name)
        service.address = await self._serve(handler(STORAGE, service, serve))
        await cluster.controller.members.register(service.describe(), f"key of {name}", seen=Authority())
        return service


def play(folder: Path, test: Callable[[Network], Awaitable[None]]) -> None:
    async def run() -> None:
        network = Network(folder)
        async with asyncio.timeout(60), network.cleanup:
            await test(network)

    asyncio.run(run())


async def export(controller: Stub, *, seal: bool) -> list[bytes]:
    request = control_pb2.ExportMetaRequest(request_id="r", seal=seal)
    return [chunk.data async for chunk in controller.export_meta(request, timeout=30)]


async def chunks(pieces: list[bytes]) -> AsyncIterator[control_pb2.MetaChunk]:
    for piece in pieces:
        yield control_pb2.MetaChunk(data=piece)


async def refused(call: Awaitable[Any]) -> SdrsError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value, "controller")


def test_a_catalog_is_exported_and_imported_over_the_wire(tmp_path: Path) -> None:
    async def run(network: Network) -> None:
        source, target = await cluster_on(), await empty_on()
        await fill(source)
        here, there = await network.controller(source), await network.controller(target)
        pieces = await export(here, seal=True)
        torn = [*pieces[:-1], pieces[-1][:-9]]
        assert isinstance(await refused(there.import_meta(chunks(torn))), CorruptDataError)
        response = await there.import_meta(chunks(pieces), timeout=30)
        cluster = source.controller.members.cluster
        assert (response.cluster_id, response.incarnation) == (cluster.id, cluster.incarnation + 1)
        assert response.record_count > 20
        assert isinstance(await refused(here.import_meta(chunks(pieces))), RefusedError)
        await target.start()
        assert await target.states() == await source.states()

    play(tmp_path, run)


def test_a_catalog_is_kept_by_nodes_and_rebuilt_from_them_over_the_wire(tmp_path: Path) -> None:
    async def run(network: Network) -> None:
        lost = await cluster_on(node_ids=NODES)
        nodes = [await network.node(lost, name) for name in NODES]
        await lost.save(10, world_size=2)
        await lost.controller.catalog.hold(lost.request(10).job, 10, held=True)
        lost.beat()
        witnesses = WitnessClient(network.channels)
        snapshots = Snapshots(lost.records, lost.controller.members, witnesses, lost.clock, tmp_path)
        assert [keeper.id for keeper in await snapshots.pass_once()] == list(NODES)
        await lost.create_pool("made-since")
        given = gzip.compress(b"".join(await export(await network.controller(lost), seal=False)))
        await lost.save(20, by=attempt(1))
        held = await fragments_by_node(lost)
        for name, service in zip(NODES, nodes, strict=True):
            service.fragments = held.get(NodeId(name), [])
        fresh = await empty_on()
        controller = await network.controller(fresh)
        request = control_pb2.RebuildMetaRequest(
            request_id="r", node_addresses=[n.address for n in nodes], snapshot=given
        )
        steps = [step async for step in controller.rebuild_meta(request, timeout=30)]
        assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
        assert (steps[-1].checkpoint_count, list(steps[-1].problems)) == (2, [])
        await fresh.start()
        assert await fresh.steps() == [20, 10]
        assert fresh.controller.members.pool("made-since")
        assert (await fresh.listed())[1].held
        members = fresh.controller.members
        assert members.cluster.incarnation == 2
        assert [(n.endpoints.grpc, n.domain) for n in members.nodes()] == [(n.address, "rack") for n in nodes]

    play(tmp_path, run)


def test_a_node_refuses_a_stream_that_is_no_snapshot(tmp_path: Path) -> None:
    async def run(network: Network) -> None:
        service = await network.node(await cluster_on(node_ids=()), "node-1")
        stub = network.channels.stub(service.address, STORAGE)

        async def nameless() -> AsyncIterator[storage_pb2.SnapshotChunk]:
            yield storage_pb2.SnapshotChunk(data=b"x")

        async def empty() -> AsyncIterator[storage_pb2.SnapshotChunk]:
            return
            yield

        for stream in (nameless(), empty()):
            assert (await refused(stub.store_snapshot(stream, timeout=30))).reason == "PROTOCOL"
        request = storage_pb2.ReadSnapshotRequest(id=storage_pb2.SnapshotId(cluster_id="c", revision=1))
        assert (await refused(stub.read_snapshot(request, timeout=30).read())).reason == "NOT_FOUND"

    play(tmp_path, run)
