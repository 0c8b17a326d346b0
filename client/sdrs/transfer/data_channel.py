"""Blobs over the data channel: a ticket by gRPC, the bytes over a plain socket (see sdrs_proto.channel)."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.nodes import NodeCalls
from sdrs.save.payload import PayloadBlob, blocks
from sdrs.transfer import FragmentRange, OpenRange, PendingWrite, Sent, Summary
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.errors import CorruptDataError, PermissionDeniedError, SdrsError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto.channel import end_of_blocks, receive_answer, send_block, wait_in_kernel
from sdrs_proto.dial import open_channel
from sdrs_proto.limits import CALL_SECONDS, STALL_SECONDS
from sdrs_proto.v1.storage_pb2 import (
    BlobSummary,
    OpenReadRequest,
    OpenWriteRequest,
    StoredBlob,
    WriteIntent,
)

# The answer follows an fsync, which may take its time on a busy disk.
ANSWER_SECONDS = 2 * STALL_SECONDS
_EXPLANATION_SECONDS = 1.0
# A timeout of zero would mean a socket that never waits.
_LEAST_WAIT_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class AlreadyStored:
    """The node had the blob from an earlier try (P11)."""

    hash: str

    def result(self) -> str:
        return self.hash


@dataclass(frozen=True, slots=True)
class AwaitedAnswer:
    ending: ExitStack  # closes the connection
    connection: socket.socket
    peer: str
    hash: str

    def result(self) -> str:
        with self.ending:
            self.connection.settimeout(ANSWER_SECONDS)
            with ticket_renewable(self.peer):
                stored = receive_answer(self.connection, StoredBlob)
            return check_stored(stored, self.hash, self.peer)


class DataChannelSink:
    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    def send(self, intent: WriteIntent, blob: PayloadBlob, sent: Sent, cutoff: Cutoff | None = None) -> PendingWrite:
        request = OpenWriteRequest(request_id=random_id(), intent=intent)
        opened = self._calls.call("open_write", request, cutoff=cutoff)
        if opened.already_stored:
            sent(blob.size_bytes)
            return AlreadyStored(opened.stored.hash)
        with ExitStack() as ending:
            connection = ending.enter_context(open_channel(self._calls.node, opened.ticket))
            if cutoff is not None:
                ending.enter_context(cutoff.breaking(partial(_hang_up, connection)))
            whole = self._send(connection, blob, sent)
            return AwaitedAnswer(ending.pop_all(), connection, self._calls.peer, whole)

    def _send(self, connection: socket.socket, blob: PayloadBlob, sent: Sent) -> str:
        wait_in_kernel(connection, STALL_SECONDS)
        # Not select(): it refuses descriptors from 1024 on, which a training process may well have.
        answered = select.poll()
        answered.register(connection, select.POLLIN)
        table = bytearray()
        for block in blocks(blob):
            if answered.poll(0):
                raise _early_answer(connection, self._calls.peer)
            checksum = digest(block)
            with self._explained(connection):
                send_block(connection, checksum, block)
            table += checksum
            sent(len(block))
        whole = blob_hash(blob.size_bytes, table)
        with self._explained(connection):
            connection.sendall(end_of_blocks(BlobSummary(size_bytes=blob.size_bytes, hash=whole)))
        return whole

    @contextmanager
    def _explained(self, connection: socket.socket) -> Iterator[None]:
        """A node that gives up answers, then closes: its answer tells more than the broken pipe."""
        try:
            yield
        except BlockingIOError as error:
            raise UnavailableError(
                f"{self._calls.peer} took no bytes for {STALL_SECONDS} s: the transfer stalled"
            ) from error
        except OSError as error:
            raise _early_answer(connection, self._calls.peer) from error


def _hang_up(connection: socket.socket) -> None:
    """Wake whoever sends or receives; closing would not."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _early_answer(connection: socket.socket, peer: str) -> SdrsError:
    with suppress(OSError):
        connection.settimeout(_EXPLANATION_SECONDS)
    try:
        with ticket_renewable(peer):
            receive_answer(connection, StoredBlob)
    except SdrsError as error:
        return error
    return UnavailableError(f"{peer} ended the transfer before all bytes were sent")


@contextmanager
def ticket_renewable(peer: str) -> Iterator[None]:
    """A ticket that was fine when we got it is refused after the node was restarted, or we were stopped for a while:
    the next try asks for another.
    """
    try:
        yield
    except PermissionDeniedError as error:
        raise UnavailableError(f"{peer}: {error.message}") from error


def check_stored(stored: StoredBlob, expected_hash: str, peer: str) -> str:
    """I1: only a blob whose hash the node found the same counts."""
    if stored.hash != expected_hash:
        raise CorruptDataError(f"{peer} stored blob {stored.blob_id} with another hash: it changed on its way")
    return stored.hash


class DataChannelSource:
    def __init__(self, calls: NodeCalls) -> None:
        self._calls = calls

    def open(self, fragment: FragmentRange, stall_seconds: float = STALL_SECONDS) -> OpenRange:
        connection = open_channel(self._calls.node, read_ticket(self._calls, fragment, stall_seconds))
        try:
            connection.settimeout(stall_seconds)
            with ticket_renewable(self._calls.peer):
                answer = receive_answer(connection, BlobSummary)
            return SocketRange(connection, summary_of(answer), stall_seconds, self._calls.peer)
        except BaseException:
            connection.close()
            raise


@dataclass(slots=True)
class SocketRange:
    connection: socket.socket
    summary: Summary
    stall_seconds: float
    peer: str
    last_heard: float = 0.0
    # How much of the block that was asked for has come.
    _filled: int = 0

    def read_into(self, target: memoryview, size_bytes: int, within_seconds: float | None = None) -> bool:
        patience_seconds = self.stall_seconds if within_seconds is None else within_seconds
        deadline = time.monotonic() + patience_seconds
        try:
            while self._filled < size_bytes:
                self.connection.settimeout(max(patience_seconds, _LEAST_WAIT_SECONDS))
                count = self.connection.recv_into(target[self._filled : size_bytes])
                if count == 0:
                    raise UnavailableError(f"{self.peer} closed the data channel in mid-transfer: it may have died")
                self._filled += count
                self.last_heard = time.monotonic()
                patience_seconds = deadline - self.last_heard
        except TimeoutError as error:
            if within_seconds is not None:
                return False
            raise UnavailableError(f"{self.peer} sent nothing for {self.stall_seconds:g} s") from error
        except OSError as error:
            if isinstance(error, SdrsError):
                raise
            raise UnavailableError(f"the data channel of {self.peer} broke: {error}") from error
        self._filled = 0
        return True

    def close(self) -> None:
        self.connection.close()


def read_ticket(calls: NodeCalls, fragment: FragmentRange, stall_seconds: float) -> str:
    request = OpenReadRequest(
        blob_id=fragment.blob_id,
        fragment_index=fragment.fragment_index,
        offset=fragment.offset,
        length=fragment.size_bytes,
    )
    ticket: str = calls.call("open_read", request, timeout_seconds=min(CALL_SECONDS, stall_seconds)).ticket
    return ticket


def summary_of(message: BlobSummary) -> Summary:
    if not message.source_hash:
        return Summary.of_copy(message.size_bytes, message.hash, message.table)
    return Summary(
        message.size_bytes,
        message.hash,
        message.table,
        message.source_size_bytes,
        message.source_hash,
        message.source_table,
    )
