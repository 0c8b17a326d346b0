"""The connection of this process to the daemon of its host, for as long as both live (see sdrs_proto.staging)."""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import weakref
from collections import deque
from contextlib import suppress

from google.rpc.status_pb2 import Status

from sdrs.save.mapped_segment import MappedSegment
from sdrs_core.errors import ProtocolError, SdrsError, UnavailableError
from sdrs_proto.channel import receive_answer, tune
from sdrs_proto.dial import CONNECT_SECONDS
from sdrs_proto.limits import CALL_SECONDS, transfer_seconds
from sdrs_proto.staging import SILENT_SECONDS, hello, receive_message, send_message
from sdrs_proto.status import from_status
from sdrs_proto.v1.staging_pb2 import StagedShard, StageEvent, StageRequest

# News that nobody took yet; of a save's progress only the newest matter (I10).
_MAX_NEWS = 1024


class Ticket:
    """A sealed shard: what the daemon tells of it, in order. ``save_id`` as soon as it is known."""

    def __init__(self, shard: StagedShard, segment: MappedSegment) -> None:
        self.shard = shard
        self.segment = segment
        self.save_id = ""
        self._changed = threading.Condition()
        self._news: deque[StageEvent] = deque(maxlen=_MAX_NEWS)
        self._is_lost = False
        self._heard = time.monotonic()

    def put(self, event: StageEvent) -> None:
        with self._changed:
            self.save_id = event.save_id or self.save_id
            self._news.append(event)
            self._heard = time.monotonic()
            self._changed.notify_all()

    def lose(self) -> None:
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def found(self) -> None:
        with self._changed:
            self._is_lost = False
            self._heard = time.monotonic()

    def next(self, timeout_seconds: float) -> StageEvent | None:
        """None: nothing new in that time. UnavailableError once the daemon is gone or frozen, and all was told."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self._is_lost, timeout_seconds)
            if self._news:
                return self._news.popleft()
            if self._is_lost:
                raise UnavailableError("the daemon of this host is gone")
            if time.monotonic() - self._heard > SILENT_SECONDS:
                raise UnavailableError("the daemon of this host is silent")
            return None


class SilentDaemonError(UnavailableError):
    """It accepts connections, and answers nothing."""


class StageSession:
    def __init__(self, path: str) -> None:
        """Connect; raises why the daemon there does not stage for this process."""
        self.path = path
        self._connection = connect(path)
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[int, tuple[StageEvent, int | None] | None] = {}
        self._tickets: dict[str, Ticket] = {}
        self._is_over = False
        _SESSIONS.add(self)
        threading.Thread(target=self._read, name="sdrs-stage", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def reserve(self, size_bytes: int) -> MappedSegment:
        """FullError if there is no room now."""
        request = StageRequest()
        request.reserve.size_bytes = size_bytes
        # Its pages are made now, which takes its time.
        event, fd = self._call(request, transfer_seconds(size_bytes, CALL_SECONDS))
        if fd is None:
            raise ProtocolError("the daemon reserved a segment, but passed no file")
        return MappedSegment.of(event.segment_id, event.size_bytes, fd)

    def seal(self, shard: StagedShard, segment: MappedSegment) -> Ticket:
        """When this returns the daemon owns the shard."""
        ticket = Ticket(shard, segment)
        with self._changed:
            self._tickets[shard.id] = ticket
        request = StageRequest()
        request.seal.shard.CopyFrom(shard)
        try:
            self._call(request)
        except BaseException:
            self.forget(ticket)
            raise
        return ticket

    def follow(self, ticket: Ticket) -> None:
        """Of an earlier session; NotFoundError if the daemon does not know it any more."""
        with self._changed:
            self._tickets[ticket.shard.id] = ticket
        ticket.found()
        request = StageRequest()
        request.follow.staged_id = ticket.shard.id
        try:
            self._call(request)
        except BaseException:
            self.forget(ticket)
            raise

    def free(self, segment: MappedSegment) -> None:
        request = StageRequest()
        request.free.segment_id = segment.id
        self._call(request)

    def cancel(self, ticket: Ticket) -> None:
        request = StageRequest()
        request.cancel.staged_id = ticket.shard.id
        self._call(request)

    def holds(self, ticket: Ticket) -> bool:
        with self._changed:
            return not self._is_over and ticket.shard.id in self._tickets

    def forget(self, ticket: Ticket) -> None:
        with self._changed:
            self._tickets.pop(ticket.shard.id, None)

    def _call(self, request: StageRequest, timeout_seconds: float = CALL_SECONDS) -> tuple[StageEvent, int | None]:
        number = request.number = next(self._numbers)
        with self._changed:
            if self._is_over:
                raise UnavailableError("the daemon of this host is gone")
            self._answers[number] = None
        try:
            with self._sending:
                send_message(self._connection, request)
        except OSError as error:
            self.close()
            raise UnavailableError(f"the daemon of this host is gone: {error}") from error
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._answers[number] is not None, timeout_seconds)
            answer = self._answers.pop(number)
        if answer is None:
            self.close()  # what it may still answer would find nobody
            raise UnavailableError("the daemon of this host did not answer, or is gone")
        event, _ = answer
        if event.status:
            raise from_status(Status.FromString(event.status))
        return answer

    def _read(self) -> None:
        try:
            while received := receive_message(self._connection, StageEvent):
                self._take(*received)
        except (SdrsError, OSError):
            pass  # told to all who wait
        with self._changed:
            self._is_over = True
            tickets = list(self._tickets.values())
            self._changed.notify_all()
        self._connection.close()
        for ticket in tickets:
            ticket.lose()

    def _take(self, event: StageEvent, fd: int | None) -> None:
        with self._changed:
            if event.number in self._answers:
                self._answers[event.number] = (event, fd)
                self._changed.notify_all()
                return
            ticket = self._tickets.get(event.staged_id)
        if fd is not None:
            os.close(fd)
        if ticket is not None:
            ticket.put(event)

    def close(self) -> None:
        with suppress(OSError):  # its thread wakes up, and closes it
            self._connection.shutdown(socket.SHUT_RDWR)

    def drop_in_child(self) -> None:
        """A forked child must not keep the parent's connection open: its end tells that the parent is gone."""
        with suppress(OSError):
            os.close(self._connection.detach())


def connect(path: str, within_seconds: float = CONNECT_SECONDS) -> socket.socket:
    """A connection over which the daemon takes requests; raises why it serves none of this process."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        tune(connection, within_seconds)
        connection.connect(path)
        connection.sendall(hello())
        receive_answer(connection, StageEvent)
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
            raise SilentDaemonError(f"{path} does not answer") from error
        if isinstance(error, SdrsError):
            raise
        raise UnavailableError(f"{path}: {error.strerror or error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


_SESSIONS: weakref.WeakSet[StageSession] = weakref.WeakSet()


def _drop_in_child() -> None:
    for session in list(_SESSIONS):
        session.drop_in_child()


os.register_at_fork(after_in_child=_drop_in_child)
