"""Who may stage, and what a session leaves behind, over a real unix socket."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from sdrs.memory import allocate
from sdrs.restore.staged import StagedCopies
from sdrs.save.stage_session import StageSession
from sdrs.transfer.local_file import FileRange
from sdrs.transfer.staged_copy import open_staged
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.cluster import Endpoints, Node, NodeState
from sdrs_core.errors import FullError, NotFoundError, PermissionDeniedError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, NodeId, SaveId, random_id
from sdrs_proto import channel
from sdrs_proto.staging import SEGMENT_ALIGN_BYTES as UNIT
from sdrs_proto.v1.staging_pb2 import STAGE_PHASE_IN, StagedBlob, StagedShard, StageEvent
from sdrs_storaged.metrics import StagingMetrics
from sdrs_storaged.staging.segment import Copy, Segment
from sdrs_storaged.staging.segments import Segments
from sdrs_storaged.staging.sessions import Sessions
from sdrs_storaged.staging.work import Listener
from tests.support.waiting import wait_for

SAVE_ID = "5" * 32


class Carried:
    """In the stager's place: what was sealed waits until the test says that it is in."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.sealed: dict[str, tuple[StagedShard, Segment, Listener]] = {}
        self.left: list[Listener] = []

    def submit(self, shard: StagedShard, segment: Segment, listener: Listener) -> None:
        self.sealed[shard.id] = (shard, segment, listener)

    def bring_in(self, staged_id: str) -> None:
        shard, segment, listener = self.sealed.pop(staged_id)
        copy = Copy(SAVE_ID, shard.order.rank, shard.blobs, {})
        self._segments.release(segment, copy)
        listener.tell(StageEvent(staged_id=staged_id, phase=STAGE_PHASE_IN, save_id=SAVE_ID))

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
        self.sessions = Sessions(self.segments, self.carried, StagingMetrics(CollectorRegistry()))  # type: ignore[arg-type]
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
    _, sealed, _ = daemon.carried.sealed[ticket.shard.id]
    read = bytearray(4)
    sealed.read_into(memoryview(read), 0)
    assert read == b"abcd"
    daemon.carried.bring_in(ticket.shard.id)
    event = ticket.next(10)
    assert event is not None
    assert (event.phase, ticket.save_id) == (STAGE_PHASE_IN, SAVE_ID)
    session.seal(shard_of(segment.id), segment)  # the same one again
    session.close()


BLOB = Blob(BlobId("b"), 0, 4, blob_hash(4, digest(b"abcd")))


def node_of(daemon: Daemon) -> Node:
    ends = Endpoints("", "", daemon.path, "", "")
    return Node(NodeId("n"), ends, "d", pid=1, version="1", state=NodeState.UP)


def read_staged(daemon: Daemon, save_id: str = SAVE_ID, rank: int = 0) -> FileRange:
    opened = open_staged(node_of(daemon), SaveId(save_id), rank, BLOB, 0)
    assert isinstance(opened, FileRange)
    return opened


@pytest.mark.usefixtures("staged_first")
@pytest.mark.parametrize("refused_by", ["nobody", "another user's daemon", "a daemon that is gone"])
def test_a_reader_that_is_refused_goes_on_without_a_word(
    daemon: Daemon, refused_by: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = StageSession(daemon.path)
    segment = session.reserve(UNIT)
    segment.memory[:4] = b"abcd"
    daemon.carried.bring_in(session.seal(shard_of(segment.id), segment).shard.id)
    if refused_by == "another user's daemon":
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    elif refused_by == "a daemon that is gone":
        os.unlink(daemon.path)
    save = SimpleNamespace(save_id=SAVE_ID, title="a save")
    stage = SimpleNamespace(nodes=lambda rank: [node_of(daemon)])
    copies = StagedCopies(stage, save, 0)  # type: ignore[arg-type]
    read: list[bytes] = []
    with caplog.at_level(logging.INFO, logger="sdrs"):
        copies.read(
            BLOB, 0, 4, lambda start, end: allocate(end - start), lambda _, block: read.append(bytes(block)), Event()
        )
    assert read == ([b"abcd"] if refused_by == "nobody" else [])
    assert ("from the memory of this host" in caplog.text) == bool(read)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    session.close()


def test_what_is_in_can_be_read_but_not_written_until_its_owner_seals_anew(daemon: Daemon) -> None:
    session = StageSession(daemon.path)
    segment = session.reserve(UNIT)
    segment.memory[:4] = b"abcd"
    ticket = session.seal(shard_of(segment.id), segment)
    with pytest.raises(NotFoundError, match="not staged here"):
        read_staged(daemon)  # sealed, and perhaps never stored
    daemon.carried.bring_in(ticket.shard.id)
    opened = read_staged(daemon)
    read = bytearray(4)
    assert opened.read_into(memoryview(read), 4)
    assert (read, opened.summary.table) == (b"abcd", digest(b"abcd"))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(opened.fd, b"x", 0)
    opened.close()
    for other in ({"save_id": "6" * 32}, {"rank": 1}):
        with pytest.raises(NotFoundError):
            read_staged(daemon, **other)  # type: ignore[arg-type]
    session.seal(shard_of(segment.id), segment)
    with pytest.raises(NotFoundError):
        read_staged(daemon)
    session.close()


def test_what_is_in_can_be_read_after_its_process_is_gone(daemon: Daemon) -> None:
    session = StageSession(daemon.path)
    segment = session.reserve(UNIT)
    segment.memory[:4] = b"abcd"
    ticket = session.seal(shard_of(segment.id), segment)
    daemon.carried.bring_in(ticket.shard.id)
    session.close()
    wait_for(lambda: daemon.segments.kept_bytes == UNIT, "the daemon to notice")
    read_staged(daemon).close()


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
    assert daemon.segments.taken_bytes == daemon.segments.kept_bytes == UNIT  # to be read, until somebody needs room


@pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="only root can be another user")
@pytest.mark.parametrize("ask", [lambda daemon: StageSession(daemon.path), read_staged], ids=["to stage", "to read"])
def test_another_users_process_is_refused(daemon: Daemon, ask: Callable[[Daemon], object]) -> None:
    os.chmod(Path(daemon.path).parent, 0o755)
    os.chmod(daemon.path, 0o666)  # as if the socket's own rights did not keep it out
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            os.setresuid(65534, 65534, 65534)
            ask(daemon)
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
