"""Blobs over gRPC alone: the complete path, and the only one where just the gRPC port can be reached."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from sdrs.forks import GATE
from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.nodes import NodeCalls
from sdrs.save.payload import PayloadBlob, blocks
from sdrs.transfer import FragmentRange, OpenRange, PendingWrite, Sent, Summary
from sdrs.transfer.data_channel import check_stored, summary_of
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.errors import ProtocolError, UnavailableError
from sdrs_proto.framing import Frame
from sdrs_proto.limits import STALL_SECONDS, transfer_seconds
from sdrs_proto.status import from_rpc_error
from sdrs_proto.v1.storage_pb2 import BlobSummary, ReadBlobRequest, WriteIntent

# What is taken from gRPC before it is asked for: one is copied while the next comes.
_FRAMES_AHEAD = 2


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
        cutoff = Cutoff()
        frames = self._calls.stream("read_blob", request, size_bytes=fragment.size_bytes, cutoff=cutoff)
        return FrameRange(frames, cutoff, self._calls.peer, stall_seconds)


class FrameRange:
    """A thread takes the frames as they come, a few ahead: who waits for gRPC itself cannot wait for a while only."""

    def __init__(
        self, frames: Generator[Frame, None, None], cutoff: Cutoff, peer: str, stall_seconds: float = STALL_SECONDS
    ) -> None:
        self._cutoff = cutoff
        self._peer = peer
        self._stall_seconds = stall_seconds
        self.last_heard = 0.0
        self._news = threading.Condition()
        self._ahead: deque[Frame] = deque()
        self._end: Exception | None = None
        self._is_closed = False
        # What a frame brought beyond the last read: frames need not be cut as the blocks are.
        self._rest = memoryview(b"")
        self._filled = 0
        threading.Thread(target=self._take, args=(frames,), name="sdrs-frames", daemon=True).start()
        try:
            first = self._next(stall_seconds)
            if first is None:
                raise self._stalled()
            self.summary: Summary = summary_of(BlobSummary.FromString(first.open))
        except DecodeError as error:
            self.close()
            raise ProtocolError(f"{peer} sent a summary that cannot be read") from error
        except BaseException:
            self.close()
            raise

    def read_into(self, target: memoryview, size_bytes: int, within_seconds: float | None = None) -> bool:
        deadline = time.monotonic() + (self._stall_seconds if within_seconds is None else within_seconds)
        while self._filled < size_bytes:
            if not self._rest:
                frame = self._next(deadline - time.monotonic())
                if frame is None:
                    if within_seconds is None:
                        raise self._stalled()
                    return False
                self._rest = memoryview(frame.data)
            piece = self._rest[: size_bytes - self._filled]
            target[self._filled : self._filled + len(piece)] = piece
            self._rest = self._rest[len(piece) :]
            self._filled += len(piece)
        self._filled = 0
        return True

    def close(self) -> None:
        with self._news:
            self._is_closed = True
            self._ahead.clear()
            self._news.notify_all()
        self._cutoff.cut(UnavailableError(f"nobody reads from {self._peer} any more"))

    def _take(self, frames: Generator[Frame, None, None]) -> None:
        end: Exception = ProtocolError(f"{self._peer} ended the stream before all bytes were sent")
        try:
            with closing(frames):
                for frame in frames:
                    with self._news:
                        self._ahead.append(frame)
                        self.last_heard = time.monotonic()
                        self._news.notify_all()
                        self._news.wait_for(lambda: len(self._ahead) < _FRAMES_AHEAD or self._is_closed)
                        if self._is_closed:
                            break
        except Exception as error:  # raised where it is waited for
            end = error
        with self._news:
            self._end = end
            self._news.notify_all()

    def _next(self, within_seconds: float) -> Frame | None:
        """The next frame; None if it does not come in time."""
        with self._news:
            self._news.wait_for(lambda: self._ahead or self._end, max(within_seconds, 0.0))
            if self._ahead:
                self._news.notify_all()
                return self._ahead.popleft()
            if self._end is not None:
                raise self._end
            return None

    def _stalled(self) -> UnavailableError:
        return UnavailableError(f"{self._peer} sent nothing for {self._stall_seconds:g} s")
