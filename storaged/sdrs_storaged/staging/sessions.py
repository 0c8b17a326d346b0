"""Connections of processes that stage: a thread for each, from its hello to the end of its process."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress

from sdrs_core.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ProtocolError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_proto import channel
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.staging import receive_message, send_message
from sdrs_proto.status import to_status
from sdrs_proto.v1.staging_pb2 import ReadStaged, StageEvent, StageRequest
from sdrs_storaged.logs import get_log
from sdrs_storaged.metrics import StagingMetrics
from sdrs_storaged.staging.segments import Segments
from sdrs_storaged.staging.stager import Stager

log = get_log("staging")

MAX_SESSIONS = 256
# pid, uid, gid of whoever connected, by the kernel's word.
_CREDENTIALS = struct.Struct("iII")
# seconds, microseconds
_TIME = struct.Struct("ll")
_SEND_SECONDS = 1


class Session:
    """One process. News come from other threads than answers: each is sent whole."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def tell(self, event: StageEvent, pass_fd: int | None = None) -> None:
        """Never waits for long: a process that is stopped has room in its socket for all the news of its saves."""
        try:
            with self._sending:
                send_message(self._connection, event, pass_fd)
        except OSError as error:
            log.debug("session_gone", why=str(error))
            self.hang_up()

    def hang_up(self) -> None:
        with suppress(OSError):  # its thread wakes up, and closes it
            self._connection.shutdown(socket.SHUT_RDWR)


class Sessions:
    def __init__(self, segments: Segments, stager: Stager, metrics: StagingMetrics) -> None:
        self._segments = segments
        self._stager = stager
        self._metrics = metrics
        self._lock = threading.Lock()
        self._open: set[Session] = set()
        self._is_closed = False

    def serve(self, connection: socket.socket) -> None:
        """Until the process hangs up; raises if it is not served at all."""
        check_peer(connection)
        session = Session(connection)
        with self._lock:
            if self._is_closed or len(self._open) >= MAX_SESSIONS:
                raise UnavailableError("this daemon stages for no more processes now")
            self._open.add(session)
        try:
            channel.send_answer(connection, StageEvent())
            # It may be silent for hours between two saves; that its process died is told by the socket.
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(_SEND_SECONDS, 0))
            while received := receive_message(connection, StageRequest):
                self._answer(session, received[0])
        except UnavailableError as error:
            log.debug("session_broken", why=error.message)
        finally:
            with self._lock:
                self._open.discard(session)
            # In this order: what is released meanwhile has no owner any more, and is removed.
            self._segments.end(session)
            self._stager.leave(session)

    def _answer(self, session: Session, request: StageRequest) -> None:
        try:
            self._obey(session, request)
        except SdrsError as error:
            session.tell(StageEvent(number=request.number, status=to_status(error).SerializeToString()))

    def _obey(self, session: Session, request: StageRequest) -> None:
        kind = request.WhichOneof("kind")
        done = StageEvent(number=request.number)
        if kind == "reserve":
            segment = self._segments.reserve(session, request.reserve.size_bytes)
            done.segment_id, done.size_bytes = segment.id, segment.size_bytes
            session.tell(done, segment.fd)
            return
        if kind == "read":
            self._lend(session, done, request.read)
            return
        if kind == "seal":
            if request.seal.shard.registered_save_id:
                raise InvalidArgumentError("a shard that is just sealed is not registered yet")
            segment = self._segments.seal(session, request.seal.shard)
            self._stager.submit(request.seal.shard, segment, session)
        elif kind == "free":
            self._segments.free(session, request.free.segment_id)
        elif kind == "follow":
            self._stager.follow(request.follow.staged_id, session)
        elif kind == "cancel":
            self._stager.cancel(request.cancel.staged_id, session)
        else:
            raise UnsupportedError("this daemon does not know this request: it is older than its caller")
        session.tell(done)

    def _lend(self, session: Session, done: StageEvent, wanted: ReadStaged) -> None:
        lent, blob, table = self._segments.lend(wanted.save_id, wanted.rank, wanted.ordinal)
        done.segment_id, done.offset, done.size_bytes, done.table = lent.id, blob.offset, blob.size_bytes, table
        try:
            session.tell(done, lent.fd)
        finally:
            os.close(lent.fd)
        self._metrics.reads.inc()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            sessions = list(self._open)
        for session in sessions:
            session.hang_up()


def check_peer(connection: socket.socket) -> None:
    """Only processes of the daemon's own user: what they stage is read with the daemon's rights."""
    if connection.family != socket.AF_UNIX:
        raise ProtocolError("staging is for processes of this host: use the unix socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    if uid != os.geteuid():
        raise PermissionDeniedError(f"this daemon runs as user {os.geteuid()} and stages for that user only, not {uid}")
    connection.settimeout(STALL_SECONDS)
