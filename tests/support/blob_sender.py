"""A blob sent to a node by hand, step by step, so that a test can do something in between."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc

from sdrs_core.checksums import block_spans, digest
from sdrs_core.cluster import Group, Node
from sdrs_core.ids import random_id
from sdrs_proto import channel
from sdrs_proto.dial import open_channel
from sdrs_proto.framing import Frame
from sdrs_proto.limits import CHANNEL_OPTIONS
from sdrs_proto.services import STORAGE, Stub
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1 import checkpoint_pb2
from sdrs_proto.v1 import storage_pb2 as pb
from tests.support.stores import hash_of

CALL_SECONDS = 30


class StorageCalls:
    """The service ``Storage`` of one node, with our errors."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._channel = grpc.insecure_channel(node.endpoints.grpc, options=CHANNEL_OPTIONS)
        self._stub = Stub(self._channel, STORAGE)

    def open_write(self, intent: pb.WriteIntent) -> pb.OpenWriteResponse:
        return self.call("open_write", pb.OpenWriteRequest(intent=intent))

    def call(self, method: str, request: Any, timeout_seconds: float = CALL_SECONDS) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_seconds)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"node {self.node.id}") from None

    def held(self, *blob_ids: str) -> dict[str, str]:
        """The hashes of those that are durable here."""
        names = [pb.FragmentName(blob_id=blob_id) for blob_id in blob_ids]
        response = self.call("lookup_fragments", pb.LookupFragmentsRequest(fragments=names))
        return {held.blob_id: held.hash for held in response.held}

    def write_over_grpc(self, intent: pb.WriteIntent, data: bytes) -> pb.StoredBlob:
        frames = [Frame(open=intent.SerializeToString())]
        frames += [Frame(digest=digest(data[start:end]), data=data[start:end]) for start, end in _spans(data)]
        summary = pb.BlobSummary(size_bytes=len(data), hash=hash_of(data))
        return self.call("write_blob", iter([*frames, Frame(end=summary.SerializeToString())])).stored

    @contextmanager
    def writing(self, intent: pb.WriteIntent, data: bytes) -> Iterator[BlobSender]:
        opened = self.call("open_write", pb.OpenWriteRequest(intent=intent))
        assert not opened.already_stored
        with open_channel(self.node, opened.ticket) as connection:
            yield BlobSender(connection, data)

    def write(self, intent: pb.WriteIntent, data: bytes) -> pb.StoredBlob:
        with self.writing(intent, data) as sender:
            sender.send_blocks()
            return sender.finish()

    def write_unless_stored(self, intent: pb.WriteIntent, data: bytes) -> bool:
        """Whether it had to be sent."""
        opened = self.open_write(intent)
        if opened.already_stored:
            assert opened.stored.hash == hash_of(data)
            return False
        with open_channel(self.node, opened.ticket) as connection:
            sender = BlobSender(connection, data)
            sender.send_blocks()
            sender.finish()
        return True

    def seal(self, group: Group, intents: list[pb.WriteIntent], blobs: list[bytes]) -> None:
        shard = checkpoint_pb2.Shard(
            save_id=intents[0].save_id,
            kind=checkpoint_pb2.CONTENT_KIND_STATE,
            blobs=[
                checkpoint_pb2.Blob(id=intent.blob_id, ordinal=number, size_bytes=len(data), hash=hash_of(data))
                for number, (intent, data) in enumerate(zip(intents, blobs, strict=True))
            ],
        )
        self.call("seal_shard", pb.SealShardRequest(group_id=group.id, epoch=group.epoch, job="told", shard=shard))

    def close(self) -> None:
        self._channel.close()


class BlobSender:
    def __init__(self, connection: socket.socket, data: bytes) -> None:
        self._connection = connection
        self._data = data
        self._spans = _spans(data)

    def send_blocks(self, count: int | None = None) -> None:
        """The next ``count`` blocks; all that are left, unless told."""
        for start, end in self._spans[:count]:
            block = self._data[start:end]
            self._connection.sendall(channel.BLOCK.pack(len(block), digest(block)) + block)
        self._spans = [] if count is None else self._spans[count:]

    def finish(self) -> pb.StoredBlob:
        summary = pb.BlobSummary(size_bytes=len(self._data), hash=hash_of(self._data))
        self._connection.sendall(channel.end_of_blocks(summary))
        return channel.receive_answer(self._connection, pb.StoredBlob)

    def send_rest(self) -> pb.StoredBlob:
        """All that is left, to a node that may refuse it in the middle: its answer is what counts."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.send_blocks()
            return self.finish()
        return channel.receive_answer(self._connection, pb.StoredBlob)


def _spans(data: bytes) -> list[tuple[int, int]]:
    return list(block_spans(0, len(data)))


def intent_of(group: Group, size_bytes: int, *, save_id: str = "", relayed: bool = False) -> pb.WriteIntent:
    return pb.WriteIntent(
        save_id=save_id or random_id(),
        blob_id=random_id(),
        size_bytes=size_bytes,
        job="told",
        step=1,
        attempt=1,
        group_id=group.id,
        epoch=group.epoch,
        world_size=1,
        blob_count=1,
        kind=checkpoint_pb2.CONTENT_KIND_STATE,
        pool="told",
        relayed=relayed,
    )
