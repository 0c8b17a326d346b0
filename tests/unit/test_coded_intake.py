"""A coded blob on its way in, with members that fail, lag or never come; over real files, without other nodes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from sdrs_core.checksums import BLOCK_BYTES, block_spans, digest
from sdrs_core.cluster import Endpoints, Group, Node, Pool
from sdrs_core.errors import FullError, RefusedError, SdrsError, StaleEpochError, UnavailableError
from sdrs_core.ids import ClusterId, GroupId, NodeId, PoolName, random_id
from sdrs_core.levels import Level
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc import coded_intake
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.coded_intake import CodedIntake
from sdrs_storaged.rpc.intake import Intake
from sdrs_storaged.rpc.intakes import Intakes
from sdrs_storaged.rpc.peers import CopyChannel
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.store.engine import FragmentStore
from tests.support.stores import hash_of, opened, origin, payload

ID = GroupId("prod:g")
MIB = BLOCK_BYTES
FOUR = ("n1", "n2", "n3", "n4")


class Member:
    """What a member answers with, once it has all: as a CopyChannel does."""

    def __init__(self, blob_id: str) -> None:
        self.blob_id = blob_id
        self.sent: list[bytes] = []

    def send_block(self, checksum: bytes, block: memoryview) -> None:
        assert digest(block) == checksum
        self.sent.append(bytes(block))

    def finish(self, summary: pb.BlobSummary) -> pb.StoredBlob:
        return pb.StoredBlob(blob_id=self.blob_id, hash=summary.hash)

    def shut(self) -> None:
        return None

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@dataclass
class Stage:
    """This node is n1; ``open_copy`` is what the others do."""

    store: FragmentStore
    groups: Groups
    open_copy: Callable[[Node, WriteIntent], Any]
    reported: list[NodeId]

    def form(self, *members: str, epoch: int = 1, pool: Pool | None = None) -> None:
        ids = tuple(map(NodeId, members))
        told = pool or Pool(PoolName("prod"), Level.L3, data_fragments=2, parity_fragments=2)
        nodes = [Node(node, Endpoints("", "", "", "", ""), f"host-{node}", 1, "1") for node in ids]
        asyncio.run(self.groups.adopt([Group(ID, told.name, epoch, ids, ids[0])], nodes, [told]))

    def open(self, size_bytes: int, **facts: Any) -> Intake:
        uncounted = cast(Any, _Uncounted())
        blobs = BlobStore(self.store, self.groups, uncounted)
        replication = Replication(self.store, self.groups, cast(Any, self), cast(Any, self), uncounted)
        blob = origin(random_id())
        return Intakes(blobs, self.groups, replication).open(WriteIntent(blob, size_bytes, ID, 1, **facts))

    # As MemberReports

    def note(self, group: Group, member_id: NodeId, error: SdrsError) -> None:
        self.reported.append(member_id)

    def is_full(self, member_id: NodeId) -> bool:
        return False

    def is_spared(self, group: Group, member_id: NodeId) -> bool:
        return False

    def held(self) -> list[int]:
        return [stored.fragment_index for stored in self.store.list(None, 100)]


class _Uncounted:
    def __getattr__(self, name: str) -> _Uncounted:
        return self

    def inc(self, amount: float = 1) -> None:
        return None


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(coded_intake, "_MOVE_SECONDS", 0.05)
    identity = Identity.open(tmp_path / "node.json", "n1")
    identity.join(ClusterId("c" * 32))
    with opened(tmp_path / "disk") as store:
        yield Stage(store, Groups(identity), lambda node, intent: Member(intent.origin.blob_id), [])


def _send(intake: Intake, data: bytes) -> None:
    for start, end in block_spans(0, len(data)):
        intake.next_block()[: end - start] = data[start:end]
        intake.commit_block(end - start, digest(data[start:end]))
        intake.check_wanted()


def _finish(intake: Intake, data: bytes) -> pb.StoredBlob:
    return intake.finish(pb.BlobSummary(size_bytes=len(data), hash=hash_of(data)))


def _absent(*names: str) -> Callable[[Node, WriteIntent], Any]:
    def open_copy(node: Node, intent: WriteIntent) -> Any:
        if node.id in names:
            raise UnavailableError(f"{node.id} is not there")
        return Member(intent.origin.blob_id)

    return open_copy


def test_a_member_that_is_not_there_costs_its_fragment(stage: Stage) -> None:
    stage.form(*FOUR)
    stage.open_copy = _absent("n3")
    data = payload(5 * MIB)
    with stage.open(len(data)) as intake:
        assert isinstance(intake, CodedIntake)
        _send(intake, data)
        assert _finish(intake, data).hash == hash_of(data)
    assert stage.reported == ["n3"]
    assert stage.held() == [0]


def test_without_two_of_four_the_rest_is_not_even_taken(stage: Stage) -> None:
    stage.form(*FOUR)
    stage.open_copy = _absent("n2", "n3")
    data = payload(64 * MIB)
    with stage.open(len(data)) as intake, pytest.raises(UnavailableError, match="2 of 4 fragments"):
        _send(intake, data)
    assert stage.held() == []


def test_where_the_pool_says_so_what_can_be_read_is_enough(stage: Stage) -> None:
    pool = Pool(PoolName("prod"), Level.L3, data_fragments=2, parity_fragments=2, allow_degraded=True)
    stage.form(*FOUR, pool=pool)
    stage.open_copy = _absent("n2", "n3")
    data = payload(5 * MIB)
    with stage.open(len(data)) as intake:
        _send(intake, data)
        assert _finish(intake, data).hash == hash_of(data)


def test_of_two_nodes_each_stores_two_and_this_one_keeps_both_when_the_epoch_moved(stage: Stage) -> None:
    """P8, P10."""
    stage.form("n1", "n2")
    data = payload(5 * MIB)
    with stage.open(len(data)) as intake:
        _send(intake, data)
        stage.form("n1", "n2", epoch=2)
        with pytest.raises(StaleEpochError):
            _finish(intake, data)
    assert len(stage.held()) == 2


def test_who_is_out_of_the_group_keeps_nothing(stage: Stage) -> None:
    stage.form("n1", "n2")
    data = payload(5 * MIB)
    with stage.open(len(data)) as intake:
        _send(intake, data)
        asyncio.run(stage.groups.adopt([], []))
        with pytest.raises(StaleEpochError):
            _finish(intake, data)
    assert stage.held() == []


def test_what_was_held_of_another_content_does_not_count(stage: Stage) -> None:
    stage.form(*FOUR)
    data = payload(5 * MIB)
    held = ((0, NodeId("n1")), (1, NodeId("n2")))
    for held_hash, is_enough in ((hash_of(data), True), (hash_of(b"other"), False)):
        with stage.open(len(data), resent=True, held=held, held_hash=held_hash) as intake:
            _send(intake, data)
            if is_enough:
                assert _finish(intake, data).hash == hash_of(data)
            else:
                with pytest.raises(UnavailableError, match="2 of 4 fragments"):
                    _finish(intake, data)
    assert stage.held() == []  # it has its own already


def test_a_group_in_too_few_domains_takes_nothing(stage: Stage) -> None:
    stage.form("n1")
    with pytest.raises(UnavailableError, match="2 of 4 fragments"):
        stage.open(5 * MIB)


def test_who_gives_up_from_elsewhere_wakes_who_waits_for_a_member(stage: Stage) -> None:
    stage.form(*FOUR)
    never = threading.Event()

    def open_copy(node: Node, intent: WriteIntent) -> CopyChannel | None:
        never.wait(30)
        raise UnavailableError("it never came")

    stage.open_copy = open_copy
    data = payload(40 * MIB)
    intake = stage.open(len(data))
    refused: list[Exception] = []

    def send() -> None:
        try:
            _send(intake, data)
        except SdrsError as error:
            refused.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    sending.join(0.2)  # long enough to be stuck: nobody takes more than two blocks
    began = time.monotonic()
    intake.close()
    sending.join(10)
    assert time.monotonic() - began < 10
    assert isinstance(refused[0], RefusedError)
    never.set()
    assert stage.held() == []


def test_a_full_disk_of_the_primary_fails_the_write(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.form(*FOUR)

    def full(*_: object) -> None:
        raise FullError("no room")

    monkeypatch.setattr(stage.store, "create", full)
    with pytest.raises(FullError):
        stage.open(5 * MIB)
    assert stage.held() == []
