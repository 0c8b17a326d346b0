"""Blobs over gRPC alone: the complete path, and the only one where just the gRPC port can be reached."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from sdrs.forks import GATE
from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.nodes import NodeCalls, transfer_seconds
from sdrs.save.payload import PayloadBlob, blocks
from sdrs.transfer import FragmentRange, OpenRange, PendingWrite, Sent, Summary
from sdrs.transfer.data_channel import check_stored, summary_of
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.errors import ProtocolError, UnavailableError
from sdrs_proto.framing import Frame
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1.storage_pb2 import BlobSummary, ReadBlobRequest, WriteIntent


class GrpcSink:
    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    def send(self, intent: WriteIntent, blob: PayloadBlob, sent: Sent, cutoff: Cutoff | None = None) -> PendingWrite:
        return StreamedWrite(self._calls, intent, blob, sent, cutoff)


class StreamedWrite:
    """gRPC takes the frames in a thread of its own, each when it has sent the last."""

    def __init__(
        self, calls: NodeCalls, intent: WriteIntent, blob: PayloadBlob, sent: Sent, cutoff: Cutoff | None
    ) -> None:
        self._peer = calls.peer
        self._blob = blob
        self._sent = sent
        self._hash = ""
        self._failure: Exception | None = None
        with ExitStack() as ending:
            ending.enter_context(GATE.call())
            self._future: Any = calls.stub.write_blob.future(
                self._frames(intent.SerializeToString()), timeout=transfer_seconds(blob.size_bytes)
            )
            if cutoff is not None:
                ending.enter_context(cutoff.breaking(self._future.cancel))
            self._ending = ending.pop_all()

    def _frames(self, intent: bytes) -> Iterator[Frame]:
        try:
            yield Frame(open=intent)
            table = bytearray()
            for block in blocks(self._blob):
                checksum = digest(block)
                yield Frame(digest=checksum, data=block)
                table += checksum
                self._sent(len(block))
            self._hash = blob_hash(self._blob.size_bytes, table)
            summary = BlobSummary(size_bytes=self._blob.size_bytes, hash=self._hash)
            yield Frame(end=summary.SerializeToString())
        except Exception as error:  # gRPC would swallow it; without `end` the node keeps nothing
            self._failure = error

    def result(self) -> str:
        with self._ending:
            try:
                stored = self._future.result().stored
            except grpc.FutureCancelledError as error:
                raise self._failure or UnavailableError(f"{self._peer} stopped the transfer of a blob") from error
            except grpc.RpcError as error:
                raise self._failure or from_rpc_error(error, self._peer) from error
        return check_stored(stored, self._hash, self._peer)


class GrpcSource:
    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    def open(self, fragment: FragmentRange, stall_seconds: float = STALL_SECONDS) -> OpenRange:
        request = ReadBlobRequest(
            blob_id=fragment.blob_id,
            fragment_index=fragment.fragment_index,
            offset=fragment.offset,
            length=fragment.size_bytes,
        )
        frames = self._calls.stream("read_blob", request, size_bytes=fragment.size_bytes, stall_seconds=stall_seconds)
        return FrameRange(frames, self._calls.peer)


class FrameRange:
    def __init__(self, frames: Generator[Frame, None, None], peer: str) -> None:
        self._frames = frames
        self._peer = peer
        # What a frame brought beyond the last read: frames need not be cut as the blocks are.
        self._rest = memoryview(b"")
        try:
            self.summary: Summary = summary_of(BlobSummary.FromString(self._next().open))
        except DecodeError as error:
            self.close()
            raise ProtocolError(f"{peer} sent a summary that cannot be read") from error

    def read_into(self, target: memoryview, size_bytes: int) -> None:
        filled = 0
        while filled < size_bytes:
            if not self._rest:
                self._rest = memoryview(self._next().data)
            piece = self._rest[: size_bytes - filled]
            target[filled : filled + len(piece)] = piece
            self._rest = self._rest[len(piece) :]
            filled += len(piece)

    def _next(self) -> Frame:
        frame = next(self._frames, None)
        if frame is None:
            raise ProtocolError(f"{self._peer} ended the stream before all bytes were sent")
        return frame

    def close(self) -> None:
        self._frames.close()
