"""The data channel's wire: what runs over the plain socket once a ticket is handed out.

::

    client → node   b"SDRSDC1\\n", flags (1 byte), ticket (32 bytes)
    write:  client → node   for each block: length (u32), digest (16 bytes), the bytes
                            then END_OF_BLOCKS (u32), length (u32) and bytes of a BlobSummary without its table, but
                            with that of the blob, if it is a fragment of a code
            node → client   answer
    read:   node → client   answer carrying the summary;  then the bytes of the range, as they lie on disk
            with PASS_FD on a unix socket the open file is passed instead of its bytes
    stage:  with STAGE, on a unix socket and without a ticket: see staging.py

An answer is a u8 (0 done, 1 failed), a u32 length, and a serialized message: StoredBlob or BlobSummary when done,
google.rpc.Status when failed. A node that fails in mid-write answers at once; the writer looks for that between blocks.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status

from sdrs_core.checksums import DIGEST_BYTES, Buffer
from sdrs_core.errors import ProtocolError, SdrsError, UnavailableError
from sdrs_proto.status import from_status, to_status

MAGIC = b"SDRSDC1\n"
TICKET_CHARS = 32
HELLO = struct.Struct(f"<{len(MAGIC)}sB{TICKET_CHARS}s")
PASS_FD = 1
STAGE = 2
# Fragment files have their payload from here on: what a reader of a passed file must skip.
PAYLOAD_OFFSET = 4096

BLOCK = struct.Struct(f"<I{DIGEST_BYTES}s")
END_OF_BLOCKS = 0xFFFFFFFF

LENGTH = struct.Struct("<I")
_TIMEVAL = struct.Struct("@ll")

_ANSWER = struct.Struct("<BI")
_DONE, _FAILED = 0, 1
# The largest answer is a summary with the table of a 16 TiB blob.
_MAX_ANSWER_BYTES = 300 << 20
# A block, which the kernel doubles. Measured: four cost a fifth more CPU time at both ends together.
_SOCKET_BUFFER_BYTES = 1 << 20

M = TypeVar("M", bound=Message)


def tune(connection: socket.socket, timeout_seconds: float) -> None:
    connection.settimeout(timeout_seconds)
    if connection.family == socket.AF_UNIX:
        # Fewer, larger hand-overs; TCP sizes its own windows better than a fixed size would.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    else:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def wait_in_kernel(connection: socket.socket, timeout_seconds: float) -> None:
    """For bulk: the timeout is the kernel's, and one system call moves a whole block. With one of Python's the thread
    would wake up for each piece of it, and each time wait for the interpreter. ``settimeout`` undoes this.
    """
    connection.settimeout(None)
    seconds, fraction = divmod(timeout_seconds, 1)
    limit = _TIMEVAL.pack(int(seconds), int(fraction * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def send_block(connection: socket.socket, digest: bytes, block: Buffer) -> None:
    """Header and block in one system call where the socket takes them, without joining them."""
    header = BLOCK.pack(len(block), digest)
    count = connection.sendmsg([header, block])
    if count < len(header):
        connection.sendall(header[count:])
        count = len(header)
    if count < len(header) + len(block):
        connection.sendall(memoryview(block)[count - len(header) :])


def receive_block(connection: socket.socket, into: memoryview, within_seconds: float) -> bytes:
    """What follows the length of a block: its bytes into ``into``, and its digest."""
    digest = bytearray(DIGEST_BYTES)
    _receive(connection, [memoryview(digest), into], within_seconds)
    return bytes(digest)


def receive_exactly(connection: socket.socket, into: memoryview, within_seconds: float | None = None) -> None:
    """Fill ``into``; UnavailableError if the peer goes away, stalls, or has not sent it all ``within_seconds``."""
    _receive(connection, [into], within_seconds)


def _receive(connection: socket.socket, parts: list[memoryview], within_seconds: float | None) -> None:
    deadline = None if within_seconds is None else time.monotonic() + within_seconds
    missing = sum(map(len, parts))
    try:
        while missing:
            count = connection.recvmsg_into(parts, 0, socket.MSG_WAITALL)[0]
            if count == 0:
                raise UnavailableError("the peer closed the data channel in mid-transfer: it may have died")
            missing -= count
            if missing:
                parts = _after(parts, count)
                if deadline is not None and time.monotonic() > deadline:
                    raise TimeoutError
    except (TimeoutError, BlockingIOError) as error:  # Python's timeout, or the kernel's
        raise UnavailableError("the data channel stalled: the peer sent nothing in time") from error
    except OSError as error:
        if isinstance(error, SdrsError):
            raise
        raise UnavailableError(f"the data channel broke: {error}") from error


def _after(parts: list[memoryview], count: int) -> list[memoryview]:
    """What is left of them after the first ``count`` bytes."""
    left = []
    for part in parts:
        left.append(part[count:])
        count = max(0, count - len(part))
    return left


def receive_bytes(connection: socket.socket, count: int, within_seconds: float | None = None) -> bytes:
    buffer = bytearray(count)
    receive_exactly(connection, memoryview(buffer), within_seconds)
    return bytes(buffer)


def end_of_blocks(summary: Message) -> bytes:
    payload = summary.SerializeToString()
    return LENGTH.pack(END_OF_BLOCKS) + LENGTH.pack(len(payload)) + payload


def send_answer(connection: socket.socket, answer: Message | SdrsError, pass_fd: int | None = None) -> None:
    failed = isinstance(answer, SdrsError)
    message = to_status(answer) if isinstance(answer, SdrsError) else answer
    payload = message.SerializeToString()
    head = _ANSWER.pack(_FAILED if failed else _DONE, len(payload))
    if pass_fd is None:
        connection.sendall(head + payload)
    else:
        # The descriptor rides on the first byte; it must not be split off by a short send.
        socket.send_fds(connection, [head[:1]], [pass_fd])
        connection.sendall(head[1:] + payload)


def receive_answer(connection: socket.socket, kind: type[M]) -> M:
    """The peer's answer, or the error it sent."""
    return _finish_answer(connection, receive_bytes(connection, _ANSWER.size), kind)


def receive_answer_with_fd(connection: socket.socket, kind: type[M]) -> tuple[M, int | None]:
    """As ``receive_answer``, with the descriptor that came along, which the caller must close."""
    try:
        first, fds, _, _ = socket.recv_fds(connection, 1, 1)
    except OSError as error:
        raise UnavailableError(f"the data channel broke: {error}") from error
    if not first:
        raise UnavailableError("the peer closed the data channel without an answer: it may have died")
    try:
        message = _finish_answer(connection, first + receive_bytes(connection, _ANSWER.size - 1), kind)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return message, (fds[0] if fds else None)


def _finish_answer(connection: socket.socket, head: bytes, kind: type[M]) -> M:
    verdict, length = _ANSWER.unpack(head)
    if verdict not in (_DONE, _FAILED) or length > _MAX_ANSWER_BYTES:
        raise ProtocolError("the peer does not speak the data channel's protocol")
    payload = receive_bytes(connection, length)
    try:
        if verdict == _FAILED:
            raise from_status(Status.FromString(payload))
        return kind.FromString(payload)
    except DecodeError as error:
        raise ProtocolError("the peer sent an answer that cannot be read") from error
