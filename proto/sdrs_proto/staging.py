"""The wire of staging: a connection to a daemon's unix socket that its process holds for as long as it lives.

::

    process → daemon   hello with STAGE and an empty ticket; whom the daemon serves is told by the socket's credentials
    daemon → process   an answer (see channel.py) that carries an empty StageEvent, or why not
    process → daemon   length (u32) and bytes of a StageRequest
    daemon → process   length (u32) and bytes of a StageEvent: answers, and news of what was sealed, as they come; with
                       a reservation the descriptor of its segment rides on the first byte

The end of the connection means that the process is gone: what it reserved and did not seal is freed.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from sdrs_core.errors import ProtocolError, SdrsError, UnavailableError
from sdrs_proto.channel import HELLO, LENGTH, MAGIC, STAGE, TICKET_CHARS, receive_bytes

# A seal names up to MAX_BLOBS_PER_SHARD blobs, a few bytes each, and its order.
MAX_MESSAGE_BYTES = 1 << 20
# Segments are whole pages of the size that large mappings use; blobs begin at pages, so that a copy of one is aligned.
SEGMENT_ALIGN_BYTES = 2 << 20
BLOB_ALIGN_BYTES = 4096
# Of a shard that is not in yet the daemon tells something at least so often; a process that hears nothing for longer
# takes it for frozen.
BEAT_SECONDS = 1.0
SILENT_SECONDS = 8.0

M = TypeVar("M", bound=Message)


def hello() -> bytes:
    return HELLO.pack(MAGIC, STAGE, bytes(TICKET_CHARS))


def send_message(connection: socket.socket, message: Message, pass_fd: int | None = None) -> None:
    payload = message.SerializeToString()
    framed = LENGTH.pack(len(payload)) + payload
    if pass_fd is None:
        connection.sendall(framed)
        return
    # The descriptor rides on the first byte; it must not be split off by a short send.
    socket.send_fds(connection, [framed[:1]], [pass_fd])
    connection.sendall(framed[1:])


def receive_message(connection: socket.socket, kind: type[M]) -> tuple[M, int | None] | None:
    """The next message, with the descriptor that came along, which the caller must close; None at the end."""
    try:
        first, fds, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"the staging connection broke: {error}") from error
    if not first:
        return None
    try:
        (length,) = LENGTH.unpack(first + receive_bytes(connection, LENGTH.size - 1))
        if length > MAX_MESSAGE_BYTES:
            raise ProtocolError(f"a message of {length} bytes was announced: at most {MAX_MESSAGE_BYTES} are allowed")
        return kind.FromString(receive_bytes(connection, length)), (fds[0] if fds else None)
    except DecodeError as error:
        _close(fds)
        raise ProtocolError(f"a {kind.__name__} cannot be read") from error
    except (SdrsError, OSError):
        _close(fds)
        raise


def _close(fds: list[int]) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def round_up(size_bytes: int, unit_bytes: int) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes
