"""Reading around holders that fail, stall, are damaged or have moved; with nodes that live in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sdrs.process import Process
from sdrs.restore.holders import HolderBook
from sdrs.restore.range_reading import STALLS_SECONDS
from sdrs.restore.recalls import Recalls
from sdrs.restore.reports import MAX_THREADS, DamageReports
from sdrs.restore.shard_reader import ShardReader
from sdrs.restore.targets import ByteCount, MemoryTarget
from sdrs.rpc.control import Control
from sdrs.transfer import FragmentRange, Summary
from sdrs_core.checkpoints import Blob, ContentKind, Holder, Save, SaveState, Shard
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, digest
from sdrs_core.cluster import Endpoints, Node, NodeState, ReadPolicy
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_proto.convert import node_to, read_policy_to, shard_to
from sdrs_proto.v1.backup_pb2 import RecallCheckpointResponse
from sdrs_proto.v1.control_pb2 import ListShardsResponse, ReportDamageRequest
from tests.support.nothing_staged import NothingStaged
from tests.support.waiting import wait_for

CONTENT = bytes(range(256)) * (BLOCK_BYTES // 256) + b"the end"
TABLE = b"".join(digest(CONTENT[at : at + BLOCK_BYTES]) for at in range(0, len(CONTENT), BLOCK_BYTES))
HASH = blob_hash(len(CONTENT), TABLE)
SAVE = Save(
    SaveId("5" * 32),
    JobName("j"),
    7,
    1,
    1,
    PoolName("fast"),
    ContentKind.STATE,
    SaveState.COMMITTED,
    Level.L2,
    len(CONTENT),
    0,
)
GONE = UnavailableError("connection refused")


def record(
    holders: str, *, down: str = "", policy: ReadPolicy = ReadPolicy.ROUND_ROBIN, blob_count: int = 1
) -> ListShardsResponse:
    """One shard whose blobs are all held by the nodes that ``holders`` names, a letter each."""
    held = tuple(Holder(NodeId(name), DiskId("d"), 0, HASH) for name in holders)
    blobs = tuple(
        Blob(BlobId(f"{number:032}"), number, len(CONTENT), HASH, holders=held) for number in range(blob_count)
    )
    nodes = [
        Node(
            NodeId(name),
            Endpoints(name, name, "", "", ""),
            "d",
            1,
            "v",
            NodeState.DOWN if name in down else NodeState.UP,
        )
        for name in holders
    ]
    shard = Shard(SAVE.save_id, 0, ContentKind.STATE, len(CONTENT), "hash", blobs)
    return ListShardsResponse(
        shards=[shard_to(shard)], nodes=[node_to(node) for node in nodes], read_policy=read_policy_to(policy)
    )


@dataclass
class Range:
    content: bytes
    summary: Summary = field(default_factory=lambda: Summary.of_copy(len(CONTENT), HASH, TABLE))
    position: int = 0
    last_heard: float = 0.0

    def read_into(self, target: memoryview, size_bytes: int, within_seconds: float | None = None) -> bool:
        target[:size_bytes] = self.content[self.position : self.position + size_bytes]
        self.position += size_bytes
        return True

    def close(self) -> None:
        pass


class FakeProcess:
    """``nodes``: what each holder does when it is asked; those not in there serve."""

    def __init__(self, **nodes: SdrsError | bytes) -> None:
        self.nodes = nodes
        self.asked: list[tuple[str, float]] = []
        self.control = self.routes = self
        self.stage = NothingStaged()
        self.holders = HolderBook()
        self.reports = DamageReports(cast(Control, self))
        self.recalls = Recalls(cast(Control, self))
        # What the backup does, and how often it was asked for.
        self.backup: SdrsError | ListShardsResponse = NotFoundError("no backup has it")
        self.recall_count = 0
        self.reported: list[ReportDamageRequest] = []
        self.on_report: Callable[[], object] = lambda: None
        self.newer_record: ListShardsResponse | SdrsError = UnavailableError("no controller")
        self.list_count = 0
        self._lock = threading.Lock()

    def open(self, node: Node, fragment: FragmentRange, stall_seconds: float) -> Range:
        with self._lock:
            self.asked.append((node.id, stall_seconds))
        does = self.nodes.get(node.id, CONTENT)
        if isinstance(does, SdrsError):
            raise does
        return Range(does, position=fragment.offset)

    def stream(self, method: str, request: Any, **options: Any) -> Iterator[RecallCheckpointResponse]:
        assert (method, request.save_id) == ("recall_checkpoint", SAVE.save_id)
        self.recall_count += 1
        yield RecallCheckpointResponse(target="nas", total_bytes=len(CONTENT))
        if isinstance(self.backup, SdrsError):
            raise self.backup
        self.newer_record = self.backup
        yield RecallCheckpointResponse(target="nas", done_bytes=len(CONTENT), total_bytes=len(CONTENT), is_done=True)

    def call(self, method: str, request: Any, **options: Any) -> Any:
        if method == "report_damage":
            self.reported.append(request)
            self.on_report()
            return None
        assert method == "list_shards"
        self.list_count += 1
        if isinstance(self.newer_record, SdrsError):
            raise self.newer_record
        return self.newer_record

    def read(self, response: ListShardsResponse) -> None:
        """Read everything, and see that it is right."""
        reader = ShardReader(cast(Process, self), SAVE, response, ByteCount(None, len(CONTENT)))
        blobs = reader.shard.blobs
        target = MemoryTarget(blobs)
        reader.read(blobs, target)
        for blob in blobs:
            assert target.buffer(blob) == CONTENT

    @property
    def asked_names(self) -> str:
        return "".join(name for name, _ in self.asked)


@pytest.fixture(autouse=True)
def no_races(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a holder look slow."""
    monkeypatch.setattr("sdrs.restore.pace.LEAST_SECONDS", 30.0)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sdrs.restore.range_reading.PAUSES_SECONDS", (0.0, 0.001, 0.001))


def test_what_no_holder_can_serve_is_brought_back_from_the_backup_once_for_all_ranges_and_that_is_said(
    no_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    process = FakeProcess(a=GONE)
    process.backup = record("b", blob_count=6)
    process.newer_record = record("a", down="a", blob_count=6)
    with caplog.at_level(logging.WARNING, "sdrs"):
        process.read(record("a", blob_count=6))
    assert process.recall_count == 1
    assert [one.message for one in caplog.records if "backup" in one.message] == ["restoring j step 7 from backup nas"]


def test_what_the_backup_alone_has_is_not_looked_for_on_nodes(no_pauses: None) -> None:
    process = FakeProcess()
    process.backup = record("b")
    process.newer_record = record("")
    process.read(record(""))
    assert (process.asked_names, process.recall_count) == ("b", 1)


def test_if_the_backup_fails_too_the_error_names_both(no_pauses: None) -> None:
    process = FakeProcess(a=GONE)
    process.backup = UnavailableError("backup nas: the store does not answer")
    with pytest.raises(UnavailableError, match=r"out of reach: connection refused; and from the backup: backup nas"):
        process.read(record("a"))
    damaged = FakeProcess(a=flipped(0))
    damaged.backup = CorruptDataError("backup nas: an object is damaged")
    with pytest.raises(CorruptDataError, match=r"is damaged.*and from the backup: backup nas"):
        damaged.read(record("a"))
    # Lost here, but the backup may be back in a moment.
    damaged = FakeProcess(a=flipped(0))
    damaged.backup = UnavailableError("backup nas: the store does not answer")
    with pytest.raises(UnavailableError, match="and from the backup"):
        damaged.read(record("a"))


def flipped(at: int) -> bytes:
    return CONTENT[:at] + bytes([CONTENT[at] ^ 1]) + CONTENT[at + 1 :]


def test_blobs_are_read_from_all_holders_in_turn() -> None:
    process = FakeProcess()
    process.read(record("abc", blob_count=9))
    assert {name: process.asked_names.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}


def test_the_pools_policy_is_followed() -> None:
    process = FakeProcess()
    process.holders.note_read(NodeId("a"), 3.0, 1, 0.0)
    process.holders.note_read(NodeId("c"), 2.0, 1, 0.0)
    process.holders.note_read(NodeId("b"), 0.0, 1, 0.0)
    for _ in range(4):
        process.read(record("abc", policy=ReadPolicy.LEAST_RESPONSE_TIME))
    assert process.asked_names == "bbbb"


def test_a_holder_that_is_down_is_asked_last_but_asked() -> None:
    process = FakeProcess()
    for _ in range(4):
        process.read(record("ab", down="a"))
    assert process.asked_names == "bbbb"
    process = FakeProcess(b=GONE)
    process.read(record("ab", down="a"))
    assert process.asked_names == "ba"


def test_the_next_holder_serves_when_one_is_gone_and_the_next_blobs_go_there_first() -> None:
    process = FakeProcess(a=GONE)
    for _ in range(6):
        process.read(record("ab"))
    assert process.asked_names.count("a") == 1
    assert process.list_count == 0


def test_a_holder_is_given_little_time_only_while_another_is_left(no_pauses: None) -> None:
    process = FakeProcess(a=GONE, b=GONE)
    with pytest.raises(UnavailableError, match="out of reach"):
        process.read(record("ab"))
    assert [seconds for _, seconds in process.asked] == [s for s in STALLS_SECONDS for _ in "ab"]
    alone = FakeProcess(a=GONE)
    with pytest.raises(UnavailableError):
        alone.read(record("a"))
    assert {seconds for _, seconds in alone.asked} == {STALLS_SECONDS[-1]}
    damaged = FakeProcess(a=flipped(0), b=GONE)
    with pytest.raises(UnavailableError):
        damaged.read(record("ab"))
    assert all(seconds == STALLS_SECONDS[-1] for name, seconds in damaged.asked[2:] if name == "b")


@pytest.mark.parametrize("at", [0, BLOCK_BYTES - 1, len(CONTENT) - 1])
def test_a_bad_block_is_read_elsewhere_and_reported_with_its_holder(at: int) -> None:
    process = FakeProcess(a=flipped(at))
    for _ in range(2):  # one of them begins with a
        process.read(record("ab"))
    wait_for(lambda: process.reported, "the report")
    report = process.reported[0]
    assert (report.save_id, report.job, report.step, report.node_id) == (SAVE.save_id, "j", 7, "a")
    assert report.blob_id == f"{0:032}"


def test_a_read_does_not_wait_for_the_report_of_what_was_bad() -> None:
    process = FakeProcess(a=flipped(5))
    read, was_read_first = threading.Event(), []
    process.on_report = lambda: was_read_first.append(read.wait(20))
    for _ in range(2):
        process.read(record("ab"))
    read.set()
    wait_for(lambda: was_read_first, "the report")
    assert was_read_first == [True]


def test_a_read_that_found_no_good_copy_fails_after_all_were_reported(no_pauses: None) -> None:
    process = FakeProcess(a=flipped(5), b=NotFoundError("no such fragment"))
    with pytest.raises(CorruptDataError, match="blob 0"):
        process.read(record("ab"))
    assert {report.node_id for report in process.reported} == {"a", "b"}


def test_a_copy_that_may_be_good_makes_it_unavailable_not_damaged(no_pauses: None) -> None:
    process = FakeProcess(a=flipped(5), b=GONE)
    with pytest.raises(UnavailableError, match="out of reach"):
        process.read(record("ab"))


def test_the_record_is_read_again_when_repair_has_moved_the_blob(no_pauses: None) -> None:
    process = FakeProcess(a=NotFoundError("moved"), b=GONE)
    process.newer_record = record("bc", down="b")
    process.read(record("ab"))
    assert process.asked_names[-1] == "c"
    assert process.list_count == 1
    wait_for(lambda: process.reported, "the report of what is missing")
    process.read(record("c"))


def test_what_was_learnt_is_used_for_the_next_blobs(no_pauses: None) -> None:
    process = FakeProcess(a=NotFoundError("moved"))
    process.newer_record = record("c", blob_count=12)
    process.read(record("a", blob_count=12))
    # Those that are under way at the same time may each ask before the first has learnt it.
    assert process.list_count < 12, "each blob asked for the record again"


def test_a_node_that_came_back_under_another_state_is_found(no_pauses: None) -> None:
    process = FakeProcess(a=GONE)
    process.newer_record = record("a")

    def comes_back(node: Node, fragment: FragmentRange, stall_seconds: float) -> Range:
        if len(process.asked) == 1:
            process.nodes.clear()
        return FakeProcess.open(process, node, fragment, stall_seconds)

    process.routes = cast(Any, type("Routes", (), {"open": staticmethod(comes_back)}))
    process.read(record("a", down="a"))
    assert process.asked_names == "aa"


def test_damage_is_told_once_while_it_is_looked_at_and_by_few_threads() -> None:
    process = FakeProcess()
    answered = threading.Event()
    under_way, most = [0], [0]
    lock = threading.Lock()

    def look() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        assert answered.wait(30)
        with lock:
            under_way[0] -= 1

    process.on_report = look
    events = [
        process.reports.send(ReportDamageRequest(save_id="s", blob_id=str(number % 20), node_id="a"), 1000)
        for number in range(60)
    ]
    wait_for(lambda: under_way[0] == MAX_THREADS, "the threads to be busy")
    answered.set()
    assert all(event.wait(30) for event in events)
    assert (len(process.reported), most[0]) == (20, MAX_THREADS)


def test_a_report_that_fails_is_over_all_the_same() -> None:
    process = FakeProcess()

    def fail() -> None:
        raise UnavailableError("no controller")

    process.on_report = fail
    assert process.reports.send(ReportDamageRequest(save_id="s", blob_id="b", node_id="a"), 1000).wait(30)
    wait_for(lambda: not any(thread.name == "sdrs-report" for thread in threading.enumerate()), "the thread to end")
