"""The data channel's server: plain sockets, a thread for each transfer, no copy that can be avoided.

Slots bound the transfers. Strangers, who have not shown a ticket yet, are bounded too: whoever speaks is served, and of
those who say nothing the oldest goes when there are too many. Nobody may take longer for a block than a stall may last:
a peer that sends or takes a byte now and then would hold its slot for ever.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from sdrs_core.checksums import BLOCK_BYTES, DIGEST_BYTES, block_count
from sdrs_core.errors import InternalError, ProtocolError, SdrsError, UnavailableError, UnsupportedError
from sdrs_proto import channel
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.logs import get_log
from sdrs_storaged.node.pacing import Background
from sdrs_storaged.node.transfers import Admission, Intent, ReadIntent, Tickets, WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore, summary_of
from sdrs_storaged.rpc.intakes import Intakes

log = get_log("data_channel")

_HELLO_SECONDS = 5.0
_MAX_STRANGERS = 64
_MAX_STRANGER_THREADS = 4 * _MAX_STRANGERS  # those who were shown the door need a moment to leave
_ACCEPT_PAUSE_SECONDS = 0.1
_MAX_SUMMARY_BYTES = 4096
_DRAIN_SECONDS = 5.0


class DataChannelServer:
    def __init__(
        self,
        blobs: BlobStore,
        intakes: Intakes,
        tickets: Tickets,
        background: Background,
        stage: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """``stage`` serves processes of this host that stage their saves."""
        self._blobs = blobs
        self._intakes = intakes
        self._tickets = tickets
        self._background = background
        self._stage = stage
        self._stranger_threads = threading.BoundedSemaphore(_MAX_STRANGER_THREADS)
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        self._listeners: list[socket.socket] = []
        self._closing = False

    def listen_tcp(self, host: str, port: int) -> str:
        """Start to accept; the address that was taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=256)
        self._accept(listener)
        return f"{host}:{listener.getsockname()[1]}"

    def listen_unix(self, path: Path) -> str:
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(256)
        self._accept(listener)
        return str(path)

    def close(self) -> None:
        self._closing = True
        for listener in self._listeners:
            # Closing alone does not wake a thread that waits in accept.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            if listener.family == socket.AF_UNIX:
                Path(listener.getsockname()).unlink(missing_ok=True)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        self._listeners.append(listener)
        threading.Thread(target=self._accept_forever, args=(listener,), name="data-accept", daemon=True).start()

    def _accept_forever(self, listener: socket.socket) -> None:
        while not self._closing:
            self._stranger_threads.acquire()
            try:
                connection, _ = listener.accept()
            except OSError as error:
                self._stranger_threads.release()
                if self._closing:
                    return
                _pause(error)
                continue
            self._admit(connection)
            try:
                threading.Thread(target=self._greet, args=(connection,), name="data-transfer", daemon=True).start()
            except RuntimeError as error:
                with connection:
                    self._dismiss(connection)
                _pause(error)

    def _admit(self, stranger: socket.socket) -> None:
        with self._lock:
            if len(self._strangers) >= _MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                with suppress(OSError):  # its thread wakes up, and closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._strangers[stranger] = None

    def _dismiss(self, stranger: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(stranger, None)
        self._stranger_threads.release()

    def _greet(self, connection: socket.socket) -> None:
        with connection:
            try:
                introduced = self._introduce(connection)
            finally:
                self._dismiss(connection)
            if introduced:
                introduced()

    def _introduce(self, connection: socket.socket) -> Callable[[], None] | None:
        """What the caller is admitted to; None if it was refused."""
        with self._answering(connection):
            channel.tune(connection, _HELLO_SECONDS)
            hello = channel.receive_bytes(connection, channel.HELLO.size, _HELLO_SECONDS)
            magic, flags, ticket = channel.HELLO.unpack(hello)
            if magic != channel.MAGIC:
                raise ProtocolError("this is the data channel of SDRS; the caller speaks another protocol")
            if flags & channel.STAGE:
                return partial(self._serve_stage, connection)
            intent, slots = self._tickets.redeem(ticket.decode("ascii", "replace"))
            return partial(self._serve_ticket, connection, intent, slots, flags)
        return None

    def _serve_ticket(self, connection: socket.socket, intent: Intent, slots: Admission, flags: int) -> None:
        try:
            with self._answering(connection):
                self._transfer(connection, intent, flags)
        finally:
            slots.give()

    def _serve_stage(self, connection: socket.socket) -> None:
        with self._answering(connection):
            if self._stage is None:
                raise UnsupportedError("staging is switched off at this daemon (node.staging_bytes)")
            self._stage(connection)

    def _transfer(self, connection: socket.socket, intent: Intent, flags: int) -> None:
        if isinstance(intent, WriteIntent):
            channel.wait_in_kernel(connection, STALL_SECONDS)
            self._receive(connection, intent)
        else:
            connection.settimeout(STALL_SECONDS)
            self._send(connection, intent, pass_fd=bool(flags & channel.PASS_FD))

    @contextmanager
    def _answering(self, connection: socket.socket) -> Iterator[None]:
        """What goes wrong is told to the peer."""
        try:
            yield
        except SdrsError as error:
            self._refuse(connection, error)
        except OSError as error:
            log.debug("peer_gone", why=str(error))
        except Exception as error:
            log.error("transfer_failed", exc_info=error)
            self._refuse(
                connection, InternalError(f"the transfer failed by a defect of storaged ({type(error).__name__})")
            )

    def _receive(self, connection: socket.socket, intent: WriteIntent) -> None:
        with self._intakes.open(intent) as intake:
            while True:
                (length,) = channel.LENGTH.unpack(channel.receive_bytes(connection, channel.LENGTH.size))
                if length == channel.END_OF_BLOCKS:
                    break
                if not 0 < length <= BLOCK_BYTES:
                    raise ProtocolError(f"a block of {length} bytes was announced: 1 to {BLOCK_BYTES} are allowed")
                digest = channel.receive_block(connection, intake.next_block()[:length], STALL_SECONDS)
                intake.commit_block(length, digest)
                intake.check_wanted()
            stored = intake.finish(_read_summary(connection, intent))
        channel.send_answer(connection, stored)

    def _send(self, connection: socket.socket, intent: ReadIntent, *, pass_fd: bool) -> None:
        with self._blobs.open(intent) as reader:
            if pass_fd and connection.family == socket.AF_UNIX:
                fd = reader.reopen_direct()
                try:
                    channel.send_answer(connection, summary_of(reader), fd)
                finally:
                    os.close(fd)
                return
            channel.send_answer(connection, summary_of(reader))
            start = intent.offset
            end = start + intent.length if intent.length else reader.size_bytes
            pace = self._background.pace() if intent.for_repair else None
            with closing(reader.pieces(start, end)) as pieces:
                for piece in pieces:
                    # Its timeout is for the whole piece, so a dripping peer is given up.
                    if pace is None:
                        connection.sendall(piece)
                        continue
                    with pace.waiting():
                        connection.sendall(piece)
                    pace.spent(len(piece))
            self._blobs.count_sent(end - start)

    def _refuse(self, connection: socket.socket, error: SdrsError) -> None:
        """Answer, then let the peer run dry: closing on unread bytes would reset the answer away."""
        if isinstance(error, UnavailableError):
            log.debug("transfer_broken", why=error.message)
        with suppress(OSError, SdrsError):
            channel.send_answer(connection, error)
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(_DRAIN_SECONDS)
            scratch = bytearray(1 << 16)
            deadline = time.monotonic() + _DRAIN_SECONDS
            while connection.recv_into(scratch) and time.monotonic() < deadline:
                pass


def _pause(error: Exception) -> None:
    """Out of descriptors or threads: they come back, and a loop without a pause would not help."""
    log.warning("accept_failed", why=str(error))
    time.sleep(_ACCEPT_PAUSE_SECONDS)


def _read_summary(connection: socket.socket, intent: WriteIntent) -> pb.BlobSummary:
    (length,) = channel.LENGTH.unpack(channel.receive_bytes(connection, channel.LENGTH.size))
    # A fragment of a code comes with the table of its blob (P9).
    most_bytes = _MAX_SUMMARY_BYTES + block_count(intent.origin.source_size_bytes) * DIGEST_BYTES
    if length > most_bytes:
        raise ProtocolError(f"a summary of {length} bytes was announced: at most {most_bytes} are allowed")
    try:
        return pb.BlobSummary.FromString(channel.receive_bytes(connection, length))
    except DecodeError as error:
        raise ProtocolError("the summary of a blob cannot be read") from error
