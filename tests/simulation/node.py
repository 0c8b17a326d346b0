"""A storage node: the production code of ``storaged``'s node role, over a model of its disks and of the network.

Production: identity, groups (the fence), the link to the controllers, everything that is written, coded, relayed,
filled up, sealed, pulled, rebuilt and verified, receipts, reports, and the service itself. Modelled: the disks, and the
sockets of the data channel (``transfers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random
from typing import Any, cast

from sdrs_core.cluster import Endpoints, Node
from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_proto.framing import Frame
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.receipts import ReceiptQueue
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.node.transfers import Slots, Tickets, WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.census import Census
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.rpc.filling import Filling
from sdrs_storaged.rpc.intakes import Intakes
from sdrs_storaged.rpc.pulling import Pulling
from sdrs_storaged.rpc.recall import Recall
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.sealing import Sealing
from sdrs_storaged.rpc.spread_seal import SpreadSeal
from sdrs_storaged.rpc.storage_service import StorageService
from sdrs_storaged.rpc.uploading import Uploading
from sdrs_storaged.rpc.verifying import Verifying
from sdrs_storaged.rpc.writing import Writing
from sdrs_storaged.store.engine import FragmentStore
from tests.simulation.disk import ModelIdentity, ModelStore
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.platter import Platter, Watcher
from tests.simulation.strands import Strands
from tests.simulation.stubs import Channels
from tests.simulation.transfers import ModelBackground, ModelPeers, ModelSources, ModelWorkers, QuickWorkers, Transfer

SLOW_SECONDS = 2.0
_SLOTS = 16


class NodeProcess:
    """One life of a node's process; its platter outlives it."""

    def __init__(
        self,
        network: Network,
        process: Process,
        strands: Strands,
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
        self._strands = strands
        self._watcher = watcher
        self._clock = clock
        self._controllers = controllers
        self._random = random
        self._domain = domain
        self._service: StorageService | None = None
        self._intakes: Intakes | None = None
        self._tickets = Tickets(strands.loop.time)
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
        if method == "receive_blocks":
            return self._receive
        behavior: Callable[[Any], Any] = getattr(self._service, method)
        if method == "write_blob":
            return partial(self._write, behavior)
        if method in ("lookup_fragments", "seal_shard"):
            return lambda request: self._fenced(behavior, request, request.group_id, request.epoch)
        if method in ("read_blob", "verify_fragment"):
            return lambda request: _gathered(behavior(request))
        return behavior

    async def _write(self, behavior: Callable[[Any], Any], frames: list[Frame]) -> Any:
        intent = pb.WriteIntent.FromString(frames[0].open)
        arriving = _arriving(frames, self.transfer_seconds())
        return await self._fenced(behavior, arriving, intent.group_id, intent.epoch)

    async def _receive(self, transfer: Transfer) -> pb.StoredBlob:
        """As the server of the data channel: one thread from the ticket to the answer."""
        ticket, blocks, summary = transfer
        intent, slots = self._tickets.redeem(ticket)
        intakes, late_seconds = self._intakes, self.transfer_seconds()
        if not isinstance(intent, WriteIntent) or intakes is None:
            raise InvalidArgumentError("this ticket is for reading")

        def receive() -> pb.StoredBlob:
            with intakes.open(intent) as intake:
                for digest, block in blocks:
                    intake.append(block, digest)
                    intake.check_wanted()
                self._strands.sleep(late_seconds)
                return intake.finish(summary)

        async def in_thread(_: Transfer) -> pb.StoredBlob:
            return await self._strands.run(receive)

        try:
            answer: pb.StoredBlob = await self._fenced(in_thread, transfer, intent.group_id, intent.epoch)
            return answer
        finally:
            slots.give()

    async def _fenced(self, behavior: Callable[[Any], Any], request: Any, group_id: str, epoch: int) -> Any:
        """I3: what was known to be over when it was asked for is not done. Checked from outside."""
        identity = self.platter.identity
        epoch_then = identity.epochs.get(cast(Any, group_id), 0) if identity and group_id else 0
        response = await behavior(request)
        if group_id:
            self._watcher.answered(self.platter.node_id, group_id, epoch, epoch_then)
        return response

    def _by_chance(self) -> float:
        """Most blobs are small and quick; some take so long that the group moves on meanwhile (P8)."""
        kind = self._random.random()
        return self._random.random() * (0.005 if kind < 0.85 else 0.5 if kind < 0.985 else 4.0)

    def _sync_later(self, sync: Callable[[], None]) -> None:
        self._strands.loop.call_later(3 * self._random.random(), sync)

    async def _run(self) -> None:
        node_id = self.platter.node_id
        channels = cast(Any, Channels(self._network, self.process))
        identity = ModelIdentity(self.platter, self._watcher)
        groups = self.groups = Groups(identity)
        client = ControllerClient(channels, self._controllers, identity, groups)
        if not identity.cluster_id:
            identity.join(await client.find_cluster())
        receipts = ReceiptQueue(client.send_receipts)
        reports = MemberReports(client.report_member, asyncio.get_running_loop().time)
        self._service = self._serve(identity, groups, receipts, reports)
        endpoints = Endpoints(f"{node_id}:1", f"{node_id}:2", "", "", node_id)
        node = Node(identity.node_id, endpoints, self._domain, 1, "simulated")
        with groups.watching(lambda: self.store.set_draining(groups.draining_disks)):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(receipts.run())
                tasks.create_task(reports.run())
                tasks.create_task(client.run(node, self.store.disks, asyncio.Event()))

    def _serve(
        self, identity: ModelIdentity, groups: Groups, receipts: ReceiptQueue, reports: MemberReports
    ) -> StorageService:
        """Wired as ``node_role`` wires it."""
        store = cast(FragmentStore, self.store)
        metrics = cast(Any, _Uncounted())
        quick, waiting = QuickWorkers(self._strands), ModelWorkers(self._strands)
        writes, members = Slots("write", _SLOTS), Slots("member", _SLOTS)
        blobs = BlobStore(store, groups, metrics)
        peers = ModelPeers(self._network, self.process, self._strands, SLOW_SECONDS)
        replication = Replication(store, groups, peers, reports, metrics)
        intakes = self._intakes = Intakes(blobs, groups, replication)
        census = Census(store, groups, peers, reports, quick)
        sources = ModelSources(store, peers, identity.node_id, self._random)
        filling = Filling(groups, peers, sources, metrics)
        background = ModelBackground(lambda: writes.taken + members.taken > 0, self._strands.loop.time)
        return StorageService(
            store,
            blobs,
            identity,
            groups,
            self._tickets,
            writing=Writing(
                blobs,
                groups,
                replication,
                intakes,
                Recall(groups, census, reports),
                self._tickets,
                slots=writes,
                member_slots=members,
                workers=waiting,
                member_workers=quick,
            ),
            sealing=Sealing(
                store,
                groups,
                replication,
                peers,
                reports,
                receipts,
                SpreadSeal(groups, census, reports, filling.fill, waiting),
                looks=quick,
                pushes=waiting,
                slow_seconds=SLOW_SECONDS,
            ),
            pulling=Pulling(store, sources, metrics, background, slots=Slots("repair", _SLOTS), workers=waiting),
            # No bucket is part of this world.
            uploading=Uploading(
                sources, metrics, background, slots=Slots("upload", _SLOTS), readers=waiting, looks=quick
            ),
            verifying=Verifying(store, sources, background, slots=Slots("verify", _SLOTS), workers=waiting),
            reads=Slots("read", _SLOTS),
            repair_reads=Slots("repair read", _SLOTS),
            read_workers=quick,
            looks=quick,
        )


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
    return [
        # What a frame's data points into is used again.
        Frame(open=r.open, data=bytes(r.data)) if isinstance(r, Frame) else r
        async for r in responses
    ]
