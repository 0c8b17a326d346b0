"""The bytes' way between nodes: what production code does in threads runs in strands, and a call over the simulated
network stands for each socket.

Production: relays, pushes, pulls, fillings, the reading and computing of stripes. Modelled: that a transfer arrives
whole or not at all, and late; what is read may break off in the middle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar, cast

from sdrs_core.checksums import Buffer
from sdrs_core.cluster import Node
from sdrs_core.errors import UnavailableError
from sdrs_core.ids import BlobId, NodeId, random_id
from sdrs_proto.services import STORAGE
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.pacing import Background, Pace
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.blobs import write_intent_to
from sdrs_storaged.rpc.channels import call
from sdrs_storaged.rpc.peers import CopyChannel, Peers
from sdrs_storaged.rpc.sources import Opened, Source, Sources
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.engine import FragmentStore
from tests.simulation.frames import Blocks
from tests.simulation.loop import Process
from tests.simulation.network import Network
from tests.simulation.strands import Strands
from tests.simulation.stubs import Channels

T = TypeVar("T")

# A transfer over the data channel: its ticket, the blocks, and the summary that ends them.
Transfer = tuple[str, Blocks, pb.BlobSummary]
_BREAK_OFF = 0.02


class ModelWorkers(Workers):
    """Threads that may wait for others."""

    def __init__(self, strands: Strands) -> None:
        self._strands = strands

    async def run(self, work: Callable[..., T], *args: object) -> T:
        return await self._strands.run(partial(work, *args), self._strands.loop.executor_seconds())

    def _close_late(self, opening: asyncio.Future[Any]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._strands.start(partial(opening.result().__exit__, None, None, None))


class QuickWorkers(ModelWorkers):
    """Threads that wait for nobody: what they do is done at one instant."""

    async def run(self, work: Callable[..., T], *args: object) -> T:
        return await self._strands.loop.run_in_executor(None, partial(work, *args))  # type: ignore[no-any-return]


class ModelPeers(Peers):
    def __init__(self, network: Network, process: Process, strands: Strands, slow_seconds: float) -> None:
        super().__init__(cast(Any, Channels(network, process)), slow_seconds)
        self._network = network
        self._process = process
        self._strands = strands

    def _ask(self, node: Node, method: str, request: Any) -> Any:
        behavior = getattr(self._channels.stub(node.endpoints.grpc, STORAGE), method)
        asking = call(behavior, request, f"node {node.id}", self._slow_seconds)
        return self._strands.wait_for(self._loop.create_task(asking))

    def open_copy(self, node: Node, intent: WriteIntent) -> CopyChannel | None:
        relayed = write_intent_to(
            intent.origin, intent.size_bytes, group_id=intent.group_id, epoch=intent.epoch, relayed=True
        )
        opened = self._ask(node, "open_write", pb.OpenWriteRequest(request_id=random_id(), intent=relayed))
        return None if opened.already_stored else cast(CopyChannel, ModelCopyChannel(self, node.id, opened.ticket))

    def transfer(self, node_id: NodeId, transfer: Transfer) -> asyncio.Future[pb.StoredBlob]:
        return self._network.call(self._process, node_id, "receive_blocks", transfer, self._slow_seconds)

    def wait_for(self, future: asyncio.Future[T]) -> T:
        return self._strands.wait_for(future)

    def read(self, node: Node, request: pb.ReadBlobRequest) -> Sequence[Any]:
        frames: Sequence[Any] = self._ask(node, "read_blob", request)
        return frames


class ModelCopyChannel:
    """As ``rpc.peers.CopyChannel``."""

    def __init__(self, peers: ModelPeers, node_id: NodeId, ticket: str) -> None:
        self._peers = peers
        self._node_id = node_id
        self._ticket = ticket
        self._blocks: Blocks = []
        self._answer: asyncio.Future[pb.StoredBlob] | None = None
        self._is_shut = False

    def send_block(self, digest: bytes, block: Buffer) -> None:
        self._check_open()
        self._blocks.append((digest, bytes(block)))

    def finish(self, summary: pb.BlobSummary) -> pb.StoredBlob:
        self._check_open()
        self._answer = self._peers.transfer(self._node_id, (self._ticket, self._blocks, summary))
        try:
            return self._peers.wait_for(self._answer)
        except asyncio.CancelledError:
            self._check_open()
            raise

    def shut(self) -> None:
        self._is_shut = True
        if self._answer is not None:
            self._answer.cancel()

    def _check_open(self) -> None:
        if self._is_shut:
            raise UnavailableError(f"the transfer to node {self._node_id} was shut")

    def __enter__(self) -> ModelCopyChannel:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class ModelSources(Sources):
    def __init__(self, store: FragmentStore, peers: ModelPeers, node_id: NodeId, random: Random) -> None:
        super().__init__(store, peers, node_id, for_repair=True)
        self._reads = peers
        self._random = random

    def open(self, source: Source, blob_id: BlobId, offset: int) -> tuple[pb.BlobSummary, Opened]:
        if source.node.id == self._node_id:
            return super().open(source, blob_id, offset)
        request = pb.ReadBlobRequest(blob_id=blob_id, fragment_index=source.fragment_index, offset=offset)
        frames = self._reads.read(source.node, request)
        data = b"".join(bytes(frame.data) for frame in frames[1:])
        if self._random.random() < _BREAK_OFF:
            data = data[: self._random.randrange(len(data) + 1)]
        return pb.BlobSummary.FromString(frames[0].open), _Received(data, source)


class _Received:
    """What came of a fragment, perhaps not all of it."""

    def __init__(self, data: bytes, source: Source) -> None:
        self._data = data
        self._source = source

    def receive(self, into: memoryview) -> None:
        if len(self._data) < len(into):
            raise UnavailableError(f"{self._source}: connection lost")
        into[:], self._data = self._data[: len(into)], self._data[len(into) :]

    def close(self) -> None:
        return None


class ModelBackground(Background):
    """Its pace is that of virtual time."""

    def __init__(self, is_busy: Callable[[], bool], clock: Callable[[], float]) -> None:
        super().__init__(is_busy)
        self._clock = clock

    def pace(self, max_bytes_per_second: int = 0) -> Pace:
        return Pace(
            max_bytes_per_second, self._is_busy, clock=self._clock, processor_clock=lambda: 0.0, sleep=self._rest
        )
