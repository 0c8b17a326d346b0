"""What an upload decides when its group moves, its primary fails, or the controller refuses; with fake peers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from sdrs.rpc.control import Control
from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.map import Maps, Moved
from sdrs.save.order import SaveOrder
from sdrs.save.payload import PayloadBlob
from sdrs.save.upload import REFUSED_SECONDS, Upload
from sdrs.saving import Saving
from sdrs.transfer.routes import Routes
from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import ContentKind, Reference
from sdrs_core.cluster import Endpoints, Group, Node
from sdrs_core.errors import (
    DeadlineExceededError,
    FullError,
    InternalError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.trouble import PATIENCE_SECONDS
from sdrs_proto.convert import group_to, node_to, reference_to
from sdrs_proto.v1.control_pb2 import BeginSaveRequest, BeginSaveResponse
from sdrs_proto.v1.storage_pb2 import SealShardRequest, WriteIntent

POOL = PoolName("fast")
SAVE_ID = "5" * 32
MOVED = StaleEpochError("the group is at another epoch")
GONE = UnavailableError("connection refused", peer="node")


class Clock:
    """Passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@dataclass
class Blob:
    content: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.content)

    def segments(self) -> Iterator[memoryview]:
        yield memoryview(self.content)


@dataclass
class Payload:
    blobs: list[Blob]

    @property
    def total_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


@dataclass
class FakeCluster:
    """Groups as (id, epoch, primary); ``answers`` are what the next begins raise or are given, the last for ever."""

    answers: list[tuple[str, int, str] | SdrsError]
    begins: list[BeginSaveRequest] = field(default_factory=list)
    sent: list[WriteIntent] = field(default_factory=list)
    seals: list[SealShardRequest] = field(default_factory=list)
    seal_seconds: list[float] = field(default_factory=list)
    other_calls: list[str] = field(default_factory=list)
    # What becomes of a blob or a seal at (node, epoch), if not success.
    on_send: Callable[[str, WriteIntent, Cutoff], None] = lambda node, intent, cutoff: None
    on_seal: Callable[[str, SealShardRequest, Cutoff], None] = lambda node, request, cutoff: None
    watched: list[Group] = field(default_factory=list)
    moved: Moved | None = None
    is_watched: threading.Event = field(default_factory=threading.Event)
    # What whoever may refer is told.
    offers: list[Reference] = field(default_factory=list)
    counted_bytes: int | None = None

    # Control

    def call(self, method: str, request: Any, *, wait_ms: int = 0, patience_seconds: float | None = None) -> Any:
        if method != "begin_save":
            self.other_calls.append(method)
            return None
        self.begins.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, SdrsError):
            raise answer
        group_id, epoch, primary = answer
        members = (NodeId(primary), NodeId("other"))
        group = Group(GroupId(group_id), POOL, epoch, members, NodeId(primary))
        node = Node(NodeId(primary), Endpoints("grpc", "data", "", "", "host"), "d", 1, "v")
        response = BeginSaveResponse(
            save_id=SAVE_ID, attempt=1, capability="c", group=group_to(group), primary=node_to(node)
        )
        if request.may_refer:
            response.offers.extend(reference_to(offer) for offer in self.offers)
            response.counted_bytes = self.counted_bytes or 0
            if self.counted_bytes is None:
                response.ClearField("counted_bytes")
        return response

    # Maps

    @contextmanager
    def watching(self, group: Group, moved: Moved) -> Iterator[None]:
        self.watched.append(group)
        self.moved = moved
        self.is_watched.set()
        yield
        self.moved = None

    # Routes

    def send(self, node: Node, intent: WriteIntent, blob: PayloadBlob, sent: Any, cutoff: Cutoff) -> Any:
        self.on_send(node.id, intent, cutoff)
        self.sent.append(intent)
        sent(blob.size_bytes)
        return Stored(f"hash of {intent.blob_id}")

    def calls(self, node: Node) -> Any:
        return NodeCalls(self, node.id)


@dataclass
class Stored:
    hash: str

    def result(self) -> str:
        return self.hash


@dataclass
class NodeCalls:
    cluster: FakeCluster
    node_id: str

    def call(self, method: str, request: Any, *, timeout_seconds: float, cutoff: Cutoff) -> None:
        assert method == "seal_shard"
        self.cluster.on_seal(self.node_id, request, cutoff)
        self.cluster.seals.append(request)
        self.cluster.seal_seconds.append(timeout_seconds)


@dataclass
class Setup:
    cluster: FakeCluster
    clock: Clock
    upload: Upload


def setup(cluster: FakeCluster, blob_count: int = 2, *, contents: Sequence[bytes] = ()) -> Setup:
    payload = Payload([Blob(data) for data in contents or [bytes([number]) * 10 for number in range(blob_count)]])
    order = SaveOrder("j", 1, 0, 1, Attempt("run", 1, "me"), POOL, Level.NONE, ContentKind.STATE)
    saving = Saving("j", 1, payload.total_bytes, lambda: Level.L2)
    clock = Clock()
    upload = Upload(
        cast(Control, cluster),
        cast(Routes, cluster),
        cast(Maps, cluster),
        order,
        payload,
        saving,
        60.0,
        clock,
        clock.sleep,
    )
    return Setup(cluster, clock, upload)


def failing(times: int, error: SdrsError) -> Callable[..., None]:
    left = [times]
    lock = threading.Lock()

    def act(*_: object) -> None:
        with lock:
            left[0] -= 1
            if left[0] >= 0:
                raise error

    return act


def test_a_seal_may_take_as_long_as_the_shard_takes_to_reach_a_member_that_came_in() -> None:
    small, large = (setup(FakeCluster([("g", 1, "node-1")]), contents=[bytes(size)]) for size in (1, 30_000_001))
    for one in (small, large):
        one.upload.run()
    assert large.cluster.seal_seconds[0] - small.cluster.seal_seconds[0] == pytest.approx(3)


def test_a_save_without_trouble_begins_sends_and_seals_once() -> None:
    cluster = FakeCluster([("g", 3, "a")])
    assert setup(cluster).upload.run() == SAVE_ID
    assert (len(cluster.begins), len(cluster.sent), len(cluster.seals)) == (1, 2, 1)
    assert {(intent.group_id, intent.epoch) for intent in cluster.sent} == {("g", 3)}
    assert [(group.id, group.epoch, group.primary) for group in cluster.watched] == [("g", 3, "a")]


@pytest.mark.parametrize("where", ["on_send", "on_seal"])
def test_a_stale_epoch_begins_again_at_once_and_avoids_nobody(where: str) -> None:
    cluster = FakeCluster([("g", 1, "a"), ("g", 2, "b")], **{where: failing(1, MOVED)})
    done = setup(cluster)
    done.upload.run()
    assert [list(begin.avoid_node_ids) for begin in cluster.begins] == [[], []]
    assert len(done.clock.pauses) == 1
    assert done.clock.now <= 0.02
    assert cluster.seals[-1].epoch == 2


def test_blob_ids_are_kept_within_a_group_and_new_in_another() -> None:
    cluster = FakeCluster([("g", 1, "a"), ("g", 2, "b"), ("h", 1, "c")], on_seal=failing(2, MOVED))
    setup(cluster).upload.run()
    first, second, third = ([intent.blob_id for intent in cluster.sent[n : n + 2]] for n in (0, 2, 4))
    assert sorted(first) == sorted(second)
    assert not set(first) & set(third)


def test_a_primary_that_failed_is_avoided() -> None:
    cluster = FakeCluster([("g", 1, "a"), ("h", 1, "b")], on_send=failing(1, GONE))
    done = setup(cluster, blob_count=1)
    done.upload.run()
    assert [list(begin.avoid_node_ids) for begin in cluster.begins] == [[], ["a"]]
    assert done.clock.now <= 0.02


def test_a_group_that_moved_many_times_is_followed_beyond_the_tries_of_failing_nodes() -> None:
    answers: list[Any] = [("g", epoch, "a") for epoch in range(1, 20)]
    cluster = FakeCluster(answers, on_send=failing(15, MOVED))
    setup(cluster, blob_count=1).upload.run()
    assert cluster.seals[0].epoch == 16


@pytest.mark.parametrize("error", [MOVED, GONE])
def test_trouble_without_end_ends_after_a_while_and_tells_what_was_tried(error: SdrsError) -> None:
    cluster = FakeCluster([("g", 1, "a")], on_send=failing(10**9, error))
    done = setup(cluster, blob_count=1)
    with pytest.raises(SaveFailedError, match=f"node a: {error}"):
        done.upload.run()
    assert done.clock.now >= PATIENCE_SECONDS
    assert "abort_save" in cluster.other_calls, "what was sent could be collected only when it expires"


def test_a_node_that_comes_back_within_the_patience_gets_the_save() -> None:
    cluster = FakeCluster([("g", 1, "a")])
    done = setup(cluster, blob_count=1)

    def down_for_a_while(*_: object) -> None:
        if done.clock.now < PATIENCE_SECONDS - 5:
            raise GONE

    cluster.on_send = down_for_a_while
    done.upload.run()
    assert len(cluster.seals) == 1


@pytest.mark.parametrize("where", ["send", "seal"])
def test_a_transfer_is_broken_off_when_the_map_moves(where: str) -> None:
    """A primary that is frozen: it neither answers nor fails."""
    cluster = FakeCluster([("g", 1, "frozen"), ("g", 2, "b")])

    def freeze(node: str, _: Any, cutoff: Cutoff) -> None:
        if node != "frozen":
            return
        woken = threading.Event()
        with cutoff.breaking(woken.set):
            assert cluster.moved
            threading.Thread(target=cluster.moved, args=("group g is at epoch 2",)).start()
            assert woken.wait(30), "it was not broken off"
            raise UnavailableError("the socket was shut down")

    setattr(cluster, f"on_{where}", freeze)
    done = setup(cluster)
    done.upload.run()
    assert [list(begin.avoid_node_ids) for begin in cluster.begins] == [[], []]
    assert cluster.seals[-1].epoch == 2
    assert done.clock.now <= 0.02


def test_the_other_streams_are_broken_off_when_one_fails_and_its_failure_is_told() -> None:
    """Of a node that serves one blob and hangs at another."""
    cluster = FakeCluster([("g", 1, "a"), ("h", 1, "b")])
    hanging = threading.Event()
    broken_off: list[bool] = []

    def act(node: str, intent: WriteIntent, cutoff: Cutoff) -> None:
        if node != "a":
            return
        if intent.ordinal == 0:
            assert hanging.wait(30)
            raise FullError("no room for this one")
        woken = threading.Event()
        with cutoff.breaking(woken.set):
            hanging.set()
            broken_off.append(woken.wait(20))
            raise UnavailableError("the socket was shut down")

    cluster.on_send = act
    setup(cluster).upload.run()
    assert broken_off == [True]
    assert [list(begin.avoid_node_ids) for begin in cluster.begins] == [[], ["a"]]


def test_a_pool_below_its_minimum_is_waited_for_then_the_controllers_word_comes_through() -> None:
    refused = RefusedError("pool fast has 1 node of 2: add one, or set --allow-degraded", pool="fast")
    cluster = FakeCluster([refused])
    done = setup(cluster)
    with pytest.raises(RefusedError) as caught:
        done.upload.run()
    assert caught.value is refused
    assert REFUSED_SECONDS <= done.clock.now <= REFUSED_SECONDS + 1


def test_a_spare_that_is_taken_in_meanwhile_gets_the_save() -> None:
    refused = RefusedError("below its minimum", pool="fast")
    cluster = FakeCluster([refused, refused, refused, ("g", 2, "b")])
    setup(cluster).upload.run()
    assert len(cluster.seals) == 1


@pytest.mark.parametrize("error", [UnsupportedError("no such level"), RefusedError("this cluster was exported")])
def test_what_will_not_pass_by_itself_is_not_waited_for(error: SdrsError) -> None:
    done = setup(FakeCluster([error]))
    with pytest.raises(type(error)):
        done.upload.run()
    assert done.clock.now == 0


def test_full_nodes_stay_an_error_when_no_other_is_left() -> None:
    full = FullError("disk full")
    cluster = FakeCluster(
        [("g", 1, "a"), UnavailableError("no node of pool fast is left to try")], on_send=failing(1, full)
    )
    with pytest.raises(FullError) as caught:
        setup(cluster, blob_count=1).upload.run()
    assert caught.value is full


def test_the_controllers_word_comes_through_when_the_only_node_is_gone() -> None:
    word = UnavailableError("pool one has no node that is up: start one")
    cluster = FakeCluster([("g", 1, "a"), word], on_send=failing(1, GONE))
    with pytest.raises(UnavailableError) as caught:
        setup(cluster, blob_count=1).upload.run()
    assert caught.value is word
    assert [list(begin.avoid_node_ids) for begin in cluster.begins] == [[], ["a"], []]


@pytest.mark.parametrize("kind", [UnavailableError, DeadlineExceededError])
def test_a_full_node_is_not_blamed_for_a_controller_that_is_out_of_reach(kind: type[SdrsError]) -> None:
    away = kind("cannot be reached", peer="the controller")
    cluster = FakeCluster([("g", 1, "a"), away, ("h", 1, "b")], on_send=failing(1, FullError("disk full")))
    setup(cluster, blob_count=1).upload.run()
    assert [list(begin.avoid_node_ids) for begin in cluster.begins] == [[], ["a"], ["a"]]


def test_a_defect_is_raised_as_it_is() -> None:
    cluster = FakeCluster([("g", 1, "a")], on_seal=failing(1, InternalError("a defect")))
    with pytest.raises(InternalError):
        setup(cluster).upload.run()
    assert len(cluster.begins) == 1


def test_what_an_earlier_try_began_is_told_to_be_sent_again() -> None:
    """P11: only then does a primary ask its members what they have of it."""
    cluster = FakeCluster([("g", 1, "a"), ("g", 2, "b"), ("h", 1, "c")], on_seal=failing(2, MOVED))
    setup(cluster).upload.run()
    assert [intent.resent for intent in cluster.sent] == [False, False, True, True, False, False]


def test_what_a_seal_does_not_find_is_sent_again_under_new_names() -> None:
    """P2, P8: the old ones may be taken, by what the pool stored in another way before it was changed."""
    cluster = FakeCluster([("g", 1, "a")], on_seal=failing(1, SaveFailedError("it is not durable: send it again")))
    setup(cluster).upload.run()
    first, second = ({intent.blob_id for intent in cluster.sent[n : n + 2]} for n in (0, 2))
    assert first.isdisjoint(second)
    assert not any(intent.resent for intent in cluster.sent)


def test_the_controller_is_told_how_much_is_to_be_saved_and_the_primary_how_many_ranks_there_are() -> None:
    cluster = FakeCluster([("g", 1, "a")])
    setup(cluster).upload.run()
    assert cluster.begins[0].size_bytes == 20
    assert cluster.seals[0].world_size == 1
