"""What a daemon decides about a staged shard when its group moves, its primary fails, or the controller refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sdrs_core.checkpoints import SaveState, content_hash
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.cluster import Endpoints, Group, Node
from sdrs_core.errors import (
    AlreadyExistsError,
    FullError,
    NotFoundError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
)
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_proto.convert import group_to, node_to
from sdrs_proto.v1 import checkpoint_pb2, control_pb2
from sdrs_proto.v1.staging_pb2 import STAGE_PHASE_FAILED, STAGE_PHASE_IN, StagedBlob, StagedShard, StageEvent
from sdrs_proto.v1.storage_pb2 import SealShardRequest, WriteIntent
from sdrs_storaged.staging.carrier import Carrier
from sdrs_storaged.staging.segment import Segment
from sdrs_storaged.staging.sending import BlockSource, Sent
from sdrs_storaged.staging.work import DaemonStopsError, Work

SAVE_ID = "5" * 32
CONTENT = b"0123456789"
HASH = blob_hash(len(CONTENT), digest(CONTENT))
GONE = UnavailableError("connection refused", peer="node")


class Bytes:
    """A segment of two blobs."""

    blocks, table = Segment.blocks, Segment.table

    def read_into(self, target: memoryview, offset: int) -> None:
        target[:] = (CONTENT + CONTENT)[offset : offset + len(target)]


@dataclass
class Controller:
    """Names ``nodes`` in turn, those that are to be avoided left out."""

    nodes: list[str] = field(default_factory=lambda: ["own"])
    answers: list[SdrsError] = field(default_factory=list)  # what begin raises first
    registered_hash: str = ""
    takes_packed: bool = True
    begun: list[control_pb2.BeginSaveRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    async def ask(self, method: str, request: Any, wait_ms: int = 0) -> Any:
        await asyncio.sleep(0)
        if method == "abort_save":
            self.aborted.append(request.reason)
            return None
        if method == "get_cluster":
            return control_pb2.GetClusterResponse(save_ttl_seconds=600)
        if method == "watch_map":
            await asyncio.Event().wait()
        assert method == "begin_save"
        self.begun.append(request)
        if self.answers:
            raise self.answers.pop(0)
        left = [name for name in self.nodes if name not in request.avoid_node_ids]
        if not left:
            raise UnavailableError("no node is left to try")
        node = Node(NodeId(left[0]), Endpoints(f"{left[0]}:1", "", "", "", ""), "", 1, "")
        group = Group(GroupId(f"g-{left[0]}"), PoolName("fast"), len(self.begun), (node.id,), node.id)
        return control_pb2.BeginSaveResponse(
            save_id=SAVE_ID,
            attempt=1,
            capability="c",
            group=group_to(group),
            primary=node_to(node),
            shard_registered=bool(self.registered_hash),
            shard_content_hash=self.registered_hash,
            state=checkpoint_pb2.SAVE_STATE_PENDING,
            takes_packed=self.takes_packed,
        )


@dataclass
class Nodes:
    """Each send or seal meets the next of ``failures``, until there are no more."""

    sends: list[SdrsError | None] = field(default_factory=list)
    seals: list[SdrsError | None] = field(default_factory=list)
    sent: list[tuple[str, WriteIntent]] = field(default_factory=list)
    sealed: list[SealShardRequest] = field(default_factory=list)
    node_id: NodeId = field(default=NodeId("own"))

    async def send(self, primary: Node, intent: WriteIntent, blob: BlockSource, passed: Any, _: Any) -> Sent:
        self.sent.append((primary.id, intent))
        await asyncio.sleep(0)
        if self.sends and (failure := self.sends.pop(0)):
            raise failure
        passed(blob.size_bytes)
        return Sent(HASH, digest(CONTENT))

    async def seal(self, primary: Node, request: SealShardRequest) -> SaveState:
        if self.seals and (failure := self.seals.pop(0)):
            raise failure
        self.sealed.append(request)
        return SaveState.COMMITTED


@dataclass
class Told:
    events: list[StageEvent] = field(default_factory=list)

    def tell(self, event: StageEvent) -> None:
        self.events.append(event)


class InPlace:
    async def run_through(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)


def make_work(told: Told | None = None, *, world_size: int = 1) -> Work:
    order = control_pb2.BeginSaveRequest(
        job="j", step=7, world_size=world_size, pool="fast", kind=checkpoint_pb2.CONTENT_KIND_STATE
    )
    blobs = [StagedBlob(offset=0, size_bytes=10), StagedBlob(offset=10, size_bytes=10)]
    shard = StagedShard(id="a" * 32, segment_id="b" * 32, order=order, blobs=blobs, patience_ms=100)
    work = Work(shard, Bytes(), told or Told(), lambda: 0.0)  # type: ignore[arg-type]
    return work


def carry(controller: Controller, nodes: Nodes, work: Work | None = None) -> tuple[str, SaveState]:
    async def run() -> tuple[str, SaveState]:
        carrier = Carrier(controller, nodes, InPlace())  # type: ignore[arg-type]
        return await carrier.carry(work or make_work())

    return asyncio.run(run())


def test_a_shard_is_sent_to_its_own_node_first_and_sealed_with_all_its_blobs() -> None:
    controller, nodes, told = Controller(), Nodes(), Told()
    assert carry(controller, nodes, make_work(told)) == (SAVE_ID, SaveState.COMMITTED)
    assert controller.begun[0].prefer_node_id == "own"
    assert controller.begun[0].size_bytes == 20
    (request,) = nodes.sealed
    assert [(blob.ordinal, blob.hash) for blob in request.shard.blobs] == [(0, HASH), (1, HASH)]
    assert request.shard.content_hash == content_hash([(10, HASH), (10, HASH)])
    assert told.events[-1].sent_bytes == 20
    assert told.events[-1].save_id == SAVE_ID
    assert controller.aborted == []


def test_the_checksums_that_were_sent_are_kept_for_those_who_read_the_segment() -> None:
    work = make_work()
    carry(Controller(), Nodes(), work)
    assert work.tables == {0: digest(CONTENT), 1: digest(CONTENT)}


class Zeros:
    blocks, table = Segment.blocks, Segment.table

    def read_into(self, target: memoryview, offset: int) -> None:
        target[:] = bytes(len(target))


def make_compressed(size_bytes: int) -> Work:
    work = make_work()
    work.shard.compression = "zstd"
    del work.shard.blobs[1:]
    work.shard.blobs[0].size_bytes = work.total_bytes = size_bytes
    work.segment = Zeros()  # type: ignore[assignment]
    return work


def test_what_is_to_be_compressed_is_announced_and_sealed_as_it_is_stored_and_counted_as_it_was() -> None:
    controller, nodes, work = Controller(), Nodes(seals=[StaleEpochError("moved")]), make_compressed(3 << 20)
    work.follow(told := Told())
    carry(controller, nodes, work)
    (_, first), (_, again) = nodes.sent
    assert first.size_bytes == again.size_bytes < 2000
    (request,) = nodes.sealed
    (blob,) = request.shard.blobs
    assert (blob.size_bytes, blob.packing) == (first.size_bytes, first.packing) == (again.size_bytes, again.packing)
    assert blob.packing.startswith(f"zstd:{3 << 20}:")
    raw_hash = blob_hash(3 << 20, digest(bytes(1 << 20)) * 3)
    assert request.shard.content_hash == content_hash([(3 << 20, raw_hash)])
    assert told.events[-1].sent_bytes == 3 << 20
    assert work.tables == {0: digest(bytes(1 << 20)) * 3}, "who reads the segment gets what was saved"


def test_a_controller_that_would_forget_how_a_blob_is_packed_gets_it_as_it_is() -> None:
    controller, nodes = Controller(takes_packed=False), Nodes()
    carry(controller, nodes, make_compressed(3 << 20))
    ((_, intent),) = nodes.sent
    assert (intent.size_bytes, intent.packing) == (3 << 20, "")


def test_a_group_that_moved_is_asked_for_again_and_what_it_has_keeps_its_name() -> None:
    controller, nodes = Controller(), Nodes(seals=[StaleEpochError("moved")])
    carry(controller, nodes)
    assert [request.avoid_node_ids for request in controller.begun] == [[], []]
    first, again = nodes.sent[:2], nodes.sent[2:]
    assert sorted(intent.blob_id for _, intent in first) == sorted(intent.blob_id for _, intent in again)
    assert not any(intent.resent for _, intent in first)
    assert all(intent.resent for _, intent in again)  # P11
    assert [intent.epoch for _, intent in nodes.sent] == [1, 1, 2, 2]


def test_a_node_that_fails_is_avoided_and_another_one_gets_the_shard() -> None:
    controller, nodes = Controller(nodes=["own", "other"]), Nodes(sends=[GONE])
    carry(controller, nodes)
    assert list(controller.begun[-1].avoid_node_ids) == ["own"]
    assert [node for node, _ in nodes.sent[-2:]] == ["other", "other"]
    names = {intent.blob_id for _, intent in nodes.sent}
    assert len(names) == 4  # another group's blobs have other names (P2)


def test_a_full_node_with_no_other_is_the_error_that_is_told() -> None:
    controller, nodes = Controller(), Nodes(sends=[FullError("the disk is full")] * 9)
    with pytest.raises(FullError, match="disk is full"):
        carry(controller, nodes)
    assert "gave up: the disk is full" in controller.aborted[0]


def test_blobs_that_were_lost_before_the_seal_are_sent_under_new_names() -> None:
    controller, nodes = Controller(), Nodes(seals=[SaveFailedError("blob is not durable: send it again")])
    carry(controller, nodes)
    assert len({intent.blob_id for _, intent in nodes.sent}) == 4


def test_a_pool_that_is_short_of_nodes_is_waited_for_and_other_refusals_are_not() -> None:
    short = RefusedError("pool needs a node", pool="fast")
    controller = Controller(answers=[short, short])
    carry(controller, Nodes())
    assert len(controller.begun) == 3
    with pytest.raises(RefusedError, match="paused"):
        carry(Controller(answers=[RefusedError("paused")]), Nodes())


def test_a_controller_out_of_reach_is_waited_for_as_long_as_the_process_wants() -> None:
    controller = Controller(answers=[UnavailableError("x", peer="c")])
    carry(controller, Nodes())
    with pytest.raises(UnavailableError, match="out of reach"):
        carry(Controller(answers=[UnavailableError("out of reach", peer="c")] * 50), Nodes())


def test_what_will_never_work_is_not_tried_again() -> None:
    controller = Controller(answers=[NotFoundError("no such pool")])
    with pytest.raises(NotFoundError):
        carry(controller, Nodes())
    assert len(controller.begun) == 1


def test_a_shard_that_is_registered_already_is_in_if_it_is_the_same() -> None:
    """P6: the answer to its registration was lost, with this daemon perhaps."""
    nodes = Nodes()
    registered = content_hash([(10, HASH), (10, HASH)])
    assert carry(Controller(registered_hash=registered), nodes)[0] == SAVE_ID
    assert nodes.sent == []
    controller = Controller(registered_hash="other")
    with pytest.raises(AlreadyExistsError, match='step 7 of job "j" was already saved'):
        carry(controller, nodes)
    assert controller.aborted == []  # what is there is somebody's


def test_a_failed_rank_leaves_the_others_work_alone() -> None:
    controller = Controller()
    with pytest.raises(FullError):
        carry(controller, Nodes(sends=[FullError("full")] * 9), make_work(world_size=2))
    assert controller.aborted == []


def test_a_daemon_that_stops_gives_nothing_up() -> None:
    controller, work = Controller(), make_work()
    work.stop(DaemonStopsError("stopping"))
    with pytest.raises(DaemonStopsError):
        carry(controller, Nodes(), work)
    assert controller.aborted == []


def test_news_of_a_large_save_are_few_and_the_last_one_is_told() -> None:
    told = Told()
    order = control_pb2.BeginSaveRequest(job="j", step=7, world_size=1)
    shard = StagedShard(id="a" * 32, order=order, blobs=[StagedBlob(size_bytes=100 << 30)])
    work = Work(shard, None, told, lambda: 0.0)
    for _ in range(100 << 10):
        work.passed(1 << 20)
    assert len(told.events) <= 257
    assert told.events[-1].sent_bytes == 100 << 30
    work.end(None)
    assert told.events[-1].phase == STAGE_PHASE_IN
    work.end(SaveFailedError("no"))
    assert told.events[-1].phase == STAGE_PHASE_FAILED
