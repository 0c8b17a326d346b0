"""Who may stage, and what a session leaves behind, over a real unix socket."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs.save.stage_session import StageSession
from sdrs_core.errors import FullError, NotFoundError, PermissionDeniedError, SdrsError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto import channel
from sdrs_proto.staging import SEGMENT_ALIGN_BYTES as UNIT
from sdrs_proto.v1.staging_pb2 import STAGE_PHASE_IN, StagedBlob, StagedShard, StageEvent
from sdrs_storaged.staging.segments import Segment, Segments
from sdrs_storaged.staging.sessions import Sessions
from sdrs_storaged.staging.work import Listener
from tests.support.waiting import wait_for


class Carried:
    """In the stager's place: what was sealed waits until the test says that it is in."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.sealed: dict[str, tuple[Segment, Listener]] = {}
        self.left: list[Listener] = []

    def submit(self, shard: StagedShard, segment: Segment, listener: Listener) -> None:
        self.sealed[shard.id] = (segment, listener)

    def bring_in(self, staged_id: str) -> None:
        segment, listener = self.sealed.pop(staged_id)
        self._segments.release(segment)
        listener.tell(StageEvent(staged_id=staged_id, phase=STAGE_PHASE_IN, save_id="5" * 32))

    def follow(self, staged_id: str, listener: Listener) -> None:
        if staged_id not in self.sealed:
            raise NotFoundError("unknown")

    def leave(self, listener: Listener) -> None:
        self.left.append(listener)


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "data.sock")
        self.segments = Segments(folder / "staging", 4 * UNIT, lambda: 1 << 40)
        self.carried = Carried(self.segments)
        self.sessions = Sessions(self.segments, self.carried)  # type: ignore[arg-type]
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            channel.receive_bytes(connection, channel.HELLO.size)
            try:
                self.sessions.serve(connection)
            except SdrsError as error:
                channel.send_answer(connection, error)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.sessions.close()
        wait_for(lambda: not self.sessions._open, "the sessions to end")
        self.segments.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="sdrs-"))  # not pytest's own, which other users cannot enter
    daemon = Daemon(folder)
    yield daemon
    daemon.close()
    shutil.rmtree(folder)


def shard_of(segment_id: str) -> StagedShard:
    return StagedShard(id=random_id(), segment_id=segment_id, blobs=[StagedBlob(size_bytes=4)])


def test_what_a_process_writes_is_what_the_daemon_reads_and_its_news_come_back(daemon: Daemon) -> None:
    session = StageSession(daemon.path)
    segment = session.reserve(UNIT)
    segment.memory[:4] = b"abcd"
    ticket = session.seal(shard_of(segment.id), segment)
    sealed, _ = daemon.carried.sealed[ticket.shard.id]
    read = bytearray(4)
    sealed.read_into(memoryview(read), 0)
    assert read == b"abcd"
    daemon.carried.bring_in(ticket.shard.id)
    event = ticket.next(10)
    assert event is not None
    assert (event.phase, ticket.save_id) == (STAGE_PHASE_IN, "5" * 32)
    session.seal(shard_of(segment.id), segment)  # the same one again
    session.close()


def test_no_room_is_an_answer_and_not_the_end_of_the_session(daemon: Daemon) -> None:
    session = StageSession(daemon.path)
    with pytest.raises(FullError):
        session.reserve(5 * UNIT)
    segment = session.reserve(4 * UNIT)
    session.free(segment)
    session.reserve(4 * UNIT)
    session.close()


def test_one_session_cannot_seal_or_free_what_is_anothers(daemon: Daemon) -> None:
    mine, other = StageSession(daemon.path), StageSession(daemon.path)
    segment = mine.reserve(UNIT)
    with pytest.raises(NotFoundError):
        other.seal(shard_of(segment.id), segment)
    with pytest.raises(NotFoundError):
        other.free(segment)
    mine.close()
    other.close()


def test_the_end_of_a_session_frees_what_was_not_sealed(daemon: Daemon) -> None:
    session = StageSession(daemon.path)
    sealed = session.reserve(UNIT)
    session.reserve(UNIT)
    ticket = session.seal(shard_of(sealed.id), sealed)
    assert daemon.segments.taken_bytes == 2 * UNIT
    session.close()
    wait_for(lambda: daemon.carried.left, "the daemon to notice")
    assert daemon.segments.taken_bytes == UNIT
    with pytest.raises(UnavailableError):
        ticket.next(10)
    daemon.carried.bring_in(ticket.shard.id)
    assert daemon.segments.taken_bytes == 0


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can be another user")
def test_another_users_process_is_refused(daemon: Daemon) -> None:
    os.chmod(Path(daemon.path).parent, 0o755)
    os.chmod(daemon.path, 0o666)  # as if the socket's own rights did not keep it out
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.setresuid(65534, 65534, 65534)
            StageSession(daemon.path)
            os.write(writing, b"served")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        answer = told.read()
    os.waitpid(child, 0)
    assert answer.startswith(PermissionDeniedError.__name__), answer
    assert "stages for that user only, not 65534" in answer
