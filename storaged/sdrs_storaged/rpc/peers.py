"""What a node asks of other nodes: to store a copy, to say what it holds, to hand a fragment out.

Every wait on a peer has a deadline. What takes longer is a DeadlineExceededError, so that a slow peer can be told from
one that is gone.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any

from google.protobuf.message import Message

from sdrs_core.checksums import Buffer
from sdrs_core.cluster import Group, Node
from sdrs_core.errors import DeadlineExceededError, SdrsError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto import channel
from sdrs_proto.dial import CONNECT_SECONDS, open_channel
from sdrs_proto.framing import Frame
from sdrs_proto.services import STORAGE, Stub
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.blobs import write_intent_to
from sdrs_storaged.rpc.channels import Channels, call

_EXPLANATION_SECONDS = 1.0


class CopyChannel:
    """One blob on its way to one member. Used by one thread; ``shut`` may come from another, and wakes it."""

    def __init__(self, connection: socket.socket, peer: str, slow_seconds: float) -> None:
        channel.wait_in_kernel(connection, slow_seconds)
        self._connection = connection
        self._peer = peer
        self._slow_seconds = slow_seconds
        self._lock = threading.Lock()
        # Not select(): it refuses descriptors from 1024 on.
        self._answered = select.poll()
        self._answered.register(connection, select.POLLIN)

    def send_block(self, digest: bytes, block: Buffer) -> None:
        if self._answered.poll(0):
            raise self._early_answer()
        try:
            channel.send_block(self._connection, digest, block)
        except BlockingIOError:
            raise self._slow("took no bytes") from None
        except OSError as error:
            raise self._early_answer() from error

    def finish(self, summary: pb.BlobSummary) -> pb.StoredBlob:
        """What the member has made durable, by its own word (I1)."""
        try:
            self._connection.sendall(channel.end_of_blocks(summary))
            return channel.receive_answer(self._connection, pb.StoredBlob)
        except UnavailableError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise self._slow("did not answer") from None
            raise UnavailableError(f"{self._peer}: {error.message}") from error
        except BlockingIOError:
            raise self._slow("took no bytes") from None
        except OSError as error:
            if isinstance(error, SdrsError):
                raise
            raise self._early_answer() from error

    def shut(self) -> None:
        with self._lock, suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> CopyChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # not between a look at the descriptor and its shutdown: it may soon be another's
            self._connection.close()

    def _slow(self, what: str) -> DeadlineExceededError:
        return DeadlineExceededError(f"{self._peer} {what} for {self._slow_seconds:g} s")

    def _early_answer(self) -> SdrsError:
        """A node that gives up answers, then closes: its answer tells more than the broken pipe."""
        with suppress(OSError):
            self._connection.settimeout(_EXPLANATION_SECONDS)
        try:
            channel.receive_answer(self._connection, pb.StoredBlob)
        except SdrsError as error:
            return type(error)(f"{self._peer}: {error.message}", **error.facts)
        return UnavailableError(f"{self._peer} ended the transfer before all bytes were sent")


class Peers:
    """Coroutines run on the event loop; ``open_copy`` and ``open_source`` block, and are for other threads."""

    def __init__(self, channels: Channels, slow_seconds: float) -> None:
        """To be made on the event loop."""
        self._channels = channels
        self._slow_seconds = slow_seconds
        self._loop = asyncio.get_running_loop()

    async def lookup(self, node: Node, names: Sequence[pb.FragmentName], group: Group) -> Sequence[pb.HeldFragment]:
        request = pb.LookupFragmentsRequest(fragments=names, group_id=group.id, epoch=group.epoch)
        response = await call(self._stub(node).lookup_fragments, request, _title(node), self._slow_seconds)
        held: Sequence[pb.HeldFragment] = response.held
        return held

    async def write_small(self, node: Node, intent: WriteIntent, frames: Sequence[Frame]) -> None:
        """A blob of a few frames in one call; ``frames`` begins after the one that opens."""
        opening = Frame(open=_relayed(intent).SerializeToString())

        async def all_frames() -> AsyncIterator[Frame]:
            for frame in (opening, *frames):
                yield frame

        await call(self._stub(node).write_blob, all_frames(), _title(node), self._slow_seconds)

    def open_copy(self, node: Node, intent: WriteIntent) -> CopyChannel | None:
        """None: the member has the blob already (P11)."""
        request = pb.OpenWriteRequest(request_id=random_id(), intent=_relayed(intent))
        opened = self._ask(node, "open_write", request)
        if opened.already_stored:
            return None
        return CopyChannel(open_channel(node, opened.ticket), _title(node), self._slow_seconds)

    def open_source(self, node: Node, request: pb.OpenReadRequest) -> socket.socket:
        """A connection over which the node sends its summary, then the bytes."""
        opened = self._ask(node, "open_read", request)
        connection = open_channel(node, opened.ticket)
        connection.settimeout(self._slow_seconds)
        return connection

    def _ask(self, node: Node, method: str, request: Message) -> Any:
        """A call from a thread; it is made on the event loop, where its channel lives."""

        async def ask() -> Any:
            return await call(getattr(self._stub(node), method), request, _title(node), self._slow_seconds)

        if self._loop.is_closed():
            raise UnavailableError("this node shuts down: try again")
        future = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        try:
            return future.result(self._slow_seconds + CONNECT_SECONDS)
        except SdrsError:
            raise
        except (TimeoutError, CancelledError) as error:
            # The call itself has a shorter deadline: only an event loop that stops or stands still comes here.
            future.cancel()
            raise UnavailableError("this node is too busy to call another, or shuts down: try again") from error

    def _stub(self, node: Node) -> Stub:
        return self._channels.stub(node.endpoints.grpc, STORAGE)


def _relayed(intent: WriteIntent) -> pb.WriteIntent:
    return write_intent_to(intent.origin, intent.size_bytes, group_id=intent.group_id, epoch=intent.epoch, relayed=True)


def _title(node: Node) -> str:
    return f"node {node.id} at {node.endpoints.grpc}"
