"""A storage node: the production code of ``storaged``'s node role, over a model of its disk and of the bytes' way.

Production: identity, groups (the fence), the link to the controllers, writing and relaying small blobs, sealing,
receipts, reports, and the service itself. Modelled: the disk, and what runs in threads on sockets, which is the push of
a missing copy and the pull of a lost one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast

from sdrs_core.cluster import Endpoints, Group, Node
from sdrs_core.errors import CorruptDataError, NotFoundError, SaveFailedError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId
from sdrs_proto import convert
from sdrs_proto.framing import Frame
from sdrs_proto.services import STORAGE
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.receipts import ReceiptQueue
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.node.transfers import Slots, Tickets, WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore, write_intent_from
from sdrs_storaged.rpc.channels import call
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.rpc.pulling import Pulling
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.sealing import Sealing
from sdrs_storaged.rpc.storage_service import StorageService
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.rpc.writing import Writing
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import StoredFragment
from tests.simulation.disk import ModelIdentity, ModelStore, Platter, Watcher, new_identity
from tests.simulation.frames import frames_of, read_frames
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.stubs import Channels

SLOW_SECONDS = 2.0
_SLOTS = 16


class NodeProcess:
    """One life of a node's process; its platter outlives it."""

    def __init__(
        self,
        network: Network,
        process: Process,
        platter: Platter,
        watcher: Watcher,
        clock: Clock,
        controllers: tuple[str, ...],
        random: Random,
        domain: str,
    ) -> None:
        self.process = process
        self.streams: list[asyncio.Task[Any]] = []
        self.platter = platter
        self._network = network
        self._watcher = watcher
        self._clock = clock
        self._controllers = controllers
        self._random = random
        self._domain = domain
        self._service: StorageService | None = None
        self.groups: Groups | None = None
        # How long the bytes of a blob take to come in.
        self.transfer_seconds = self._by_chance
        self.store = ModelStore(platter, watcher, clock.unix_seconds, self._sync_later)
        process.on_death[self] = platter.lose_unsynced
        network.listen(platter.node_id, self)
        process.run(self._run(), network.defect)

    def find(self, method: str) -> Callable[[Any], Any]:
        if self._service is None:
            raise UnavailableError(f"node {self.platter.node_id} is starting")
        behavior: Callable[[Any], Any] = getattr(self._service, method)
        if method == "write_blob":
            return partial(self._write, behavior)
        if method in ("lookup_fragments", "seal_shard"):
            return partial(self._fenced, behavior)
        if method in ("read_blob", "verify_fragment"):
            return lambda request: _gathered(behavior(request))
        return behavior

    async def _write(self, behavior: Callable[[Any], Any], frames: list[Frame]) -> Any:
        intent = pb.WriteIntent.FromString(frames[0].open)
        return await self._fenced(lambda _: behavior(_arriving(frames, self.transfer_seconds())), intent)

    async def _fenced(self, behavior: Callable[[Any], Any], request: Any) -> Any:
        """I3: what was known to be over when it was asked for is not done. Checked from outside."""
        identity, group_id = self.platter.identity, request.group_id
        epoch_then = identity.epochs.get(group_id, 0) if identity and group_id else 0
        response = await behavior(request)
        if group_id:
            self._watcher.answered(self.platter.node_id, group_id, request.epoch, epoch_then)
        return response

    def _by_chance(self) -> float:
        """Most blobs are small and quick; some take so long that the group moves on meanwhile (P8)."""
        kind = self._random.random()
        return self._random.random() * (0.005 if kind < 0.8 else 0.5 if kind < 0.96 else 4.0)

    def _sync_later(self, sync: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(3 * self._random.random(), sync)

    async def _run(self) -> None:
        node_id = self.platter.node_id
        channels = cast(Any, Channels(self._network, self.process))
        identity = ModelIdentity(self.platter, self._watcher, new_identity(node_id, f"key of {node_id}"))
        groups = self.groups = Groups(identity)
        client = ControllerClient(channels, self._controllers, identity, groups)
        if not identity.cluster_id:
            identity.join(await client.find_cluster())
        receipts = ReceiptQueue(client.send_receipts)
        reports = MemberReports(client.report_member, asyncio.get_running_loop().time)
        store = cast(FragmentStore, self.store)
        metrics = cast(Any, _Uncounted())
        workers, tickets = Workers("any", _SLOTS), Tickets()
        blobs = BlobStore(store, groups, metrics)
        peers = Peers(channels, SLOW_SECONDS)
        replication = ModelReplication(store, groups, peers, reports, metrics, channels)
        self._service = StorageService(
            store,
            blobs,
            identity,
            groups,
            tickets,
            writing=Writing(
                blobs,
                groups,
                replication,
                tickets,
                slots=Slots("write", _SLOTS),
                member_slots=Slots("member", _SLOTS),
                workers=workers,
                member_workers=workers,
            ),
            sealing=Sealing(
                store,
                groups,
                replication,
                peers,
                reports,
                receipts,
                looks=workers,
                pushes=cast(Workers, _AwaitingWorkers()),
                slow_seconds=SLOW_SECONDS,
            ),
            pulling=cast(Pulling, ModelPulling(self.store, channels)),
            reads=Slots("read", _SLOTS),
            verifies=Slots("verify", _SLOTS),
            read_workers=workers,
            looks=workers,
        )
        endpoints = Endpoints(f"{node_id}:1", f"{node_id}:2", "", "", node_id)
        node = Node(identity.node_id, endpoints, self._domain, 1, "simulated")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(receipts.run())
            tasks.create_task(reports.run())
            tasks.create_task(client.run(node, self.store.disks, asyncio.Event()))


class ModelReplication(Replication):
    """A missing copy is pushed over the same call as a small blob, instead of from a thread through a socket."""

    def __init__(
        self, store: FragmentStore, groups: Groups, peers: Peers, reports: MemberReports, metrics: Any, channels: Any
    ) -> None:
        super().__init__(store, groups, peers, reports, metrics)
        self._channels = channels

    async def push(self, group: Group, node: Node, blob_id: BlobId) -> None:  # type: ignore[override]
        try:
            reader = self._store.open(blob_id, 0)
        except NotFoundError as error:
            raise SaveFailedError(f"blob {blob_id} is not on its primary: send it again") from error
        intent = WriteIntent(reader.meta, reader.size_bytes, group.id, group.epoch, relayed=True)
        data = b"".join(map(bytes, reader.pieces(0, reader.size_bytes)))
        await self._peers.write_small(node, intent, frames_of(data))


class ModelPulling:
    """As ``rpc.pulling``: the first source that has the blob as it is on record."""

    def __init__(self, store: ModelStore, channels: Any) -> None:
        self._store = store
        self._channels = channels

    async def pull(self, request: pb.PullFragmentRequest) -> StoredFragment:
        origin = replace(write_intent_from(request.intent).origin, fragment_index=request.fragment_index)
        held = self._store.lookup(*origin.key)
        if held is not None:
            if held.blob_hash == request.hash:
                return held
            self._store.quarantine(*origin.key, "it differs from the record")
        failures: list[SdrsError] = []
        for source in map(convert.node_from, request.sources):
            read = pb.ReadBlobRequest(blob_id=origin.blob_id, fragment_index=origin.fragment_index)
            stub = self._channels.stub(source.endpoints.grpc, STORAGE)
            try:
                data, found = read_frames(await call(stub.read_blob, read, f"node {source.id}", SLOW_SECONDS))
                if found != request.hash:
                    raise CorruptDataError(f"node {source.id} has other content")
                with self._store.create(origin) as writer:
                    for frame in frames_of(data)[:-1]:
                        writer.append(bytes(frame.data), frame.digest)
                    return writer.finish(len(data), found)
            except SdrsError as error:
                failures.append(error)
        is_lost = bool(failures) and all(isinstance(e, CorruptDataError | NotFoundError) for e in failures)
        kind = CorruptDataError if is_lost else UnavailableError
        raise kind(f"blob {origin.blob_id} could not be fetched: {'; '.join(map(str, failures))}")


class _AwaitingWorkers:
    async def run(self, work: Callable[..., Any], *args: object) -> Any:
        return await work(*args)


class _Uncounted:
    def __getattr__(self, name: str) -> _Uncounted:
        return self

    def inc(self, amount: float = 1) -> None:
        return None


async def _arriving(frames: list[Frame], seconds: float) -> AsyncIterator[Frame]:
    """Frames as they come in, the last one late."""
    for frame in frames[:-1]:
        yield frame
    await asyncio.sleep(seconds)
    yield frames[-1]


async def _gathered(responses: AsyncIterator[Any]) -> list[Any]:
    return [response async for response in responses]
