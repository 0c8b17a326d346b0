"""What waits for a peer that says nothing wakes up when it is cut off; the peers are real sockets and calls."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from sdrs.rpc.channels import Channels
from sdrs.rpc.cutoff import Cutoff
from sdrs.rpc.nodes import NodeCalls
from sdrs.transfer.data_channel import DataChannelSink
from sdrs.transfer.grpc_stream import GrpcSink
from sdrs_core.cluster import Endpoints, Node
from sdrs_core.errors import SdrsError, StaleEpochError, UnavailableError
from sdrs_core.ids import NodeId, random_id
from sdrs_proto.channel import HELLO, receive_bytes
from sdrs_proto.services import STORAGE, Method, handler
from sdrs_proto.v1.storage_pb2 import OpenWriteResponse, SealShardRequest, StoredBlob, WriteIntent
from tests.support.waiting import wait_for

MOVED = StaleEpochError("the group moved", epoch=7)
MIB = 1 << 20


@dataclass(frozen=True)
class Zeros:
    size_bytes: int

    def segments(self) -> Iterator[memoryview]:
        for _ in range(0, self.size_bytes, MIB):
            yield memoryview(bytes(MIB))


class SilentNode:
    """Hands out tickets; takes connections, streams and seals, and never answers them. As one that is frozen."""

    def __init__(self) -> None:
        self.entered: dict[str, threading.Event] = {
            name: threading.Event() for name in ("open_write", "write_blob", "seal_shard")
        }
        self.is_answering_open = True
        self.already_stored = ""
        self._over = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((handler(STORAGE, self, self._wrap),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(30)
        data = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.node = Node(NodeId("silent"), Endpoints(f"127.0.0.1:{port}", data, "", "", "elsewhere"), "d", 1, "v")

    def _wrap(self, method: Method, serve: Callable[[], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            self.entered[method.python_name].set()
            return serve()

        return call

    def open_write(self) -> OpenWriteResponse:
        if not self.is_answering_open:
            self._over.wait(60)
        if self.already_stored:
            return OpenWriteResponse(already_stored=True, stored=StoredBlob(hash=self.already_stored))
        return OpenWriteResponse(ticket="0" * 32)

    def write_blob(self) -> Any:
        self._over.wait(60)

    def seal_shard(self) -> Any:
        self._over.wait(60)

    def close(self) -> None:
        self._over.set()
        self._server.stop(0).wait()
        self.listener.close()


@pytest.fixture
def silent() -> Iterator[SilentNode]:
    node = SilentNode()
    yield node
    node.close()


@pytest.fixture
def calls(silent: SilentNode) -> Iterator[NodeCalls]:
    channels = Channels()
    yield NodeCalls(channels, silent.node)
    channels.close()


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


def intent(size_bytes: int) -> WriteIntent:
    return WriteIntent(save_id=random_id(), blob_id=random_id(), size_bytes=size_bytes, job="j", group_id="g", epoch=6)


def raised(outcome: Future[Any]) -> BaseException | None:
    # Far below the deadlines of the transfers themselves.
    return outcome.exception(timeout=20)


def assert_moved(error: BaseException | None) -> None:
    assert isinstance(error, StaleEpochError)
    assert error is not MOVED, "each thread needs its own, with a traceback of its own"
    assert (str(error), error.facts) == (str(MOVED), MOVED.facts)


def test_a_blocked_send_is_broken_off(silent: SilentNode, calls: NodeCalls) -> None:
    cutoff = Cutoff()
    size_bytes = 256 * MIB  # more than all the buffers on the way hold
    sent: list[int] = []
    outcome = in_thread(lambda: DataChannelSink(calls).send(intent(size_bytes), Zeros(size_bytes), sent.append, cutoff))
    connection, _ = silent.listener.accept()
    with connection:
        connection.settimeout(30)
        receive_bytes(connection, HELLO.size)
        wait_for(lambda: sent, "the first block to be on its way")
        cutoff.cut(MOVED)
        assert_moved(raised(outcome))
    assert sum(sent) < size_bytes


def test_a_wait_for_the_answer_of_the_data_channel_is_broken_off(silent: SilentNode, calls: NodeCalls) -> None:
    cutoff = Cutoff()
    pending: Future[None] = Future()

    def work() -> str:
        write = DataChannelSink(calls).send(intent(10), Zeros(0), lambda _: None, cutoff)
        pending.set_result(None)
        return write.result()

    outcome = in_thread(work)
    connection, _ = silent.listener.accept()
    with connection:
        pending.result(timeout=30)
        cutoff.cut(MOVED)
        assert_moved(raised(outcome))


def test_a_ticket_that_does_not_come_is_not_waited_for(silent: SilentNode, calls: NodeCalls) -> None:
    silent.is_answering_open = False
    cutoff = Cutoff()
    outcome = in_thread(lambda: DataChannelSink(calls).send(intent(10), Zeros(0), lambda _: None, cutoff))
    assert silent.entered["open_write"].wait(30)
    cutoff.cut(MOVED)
    assert_moved(raised(outcome))


def test_a_stream_over_grpc_is_broken_off(silent: SilentNode, calls: NodeCalls) -> None:
    cutoff = Cutoff()
    write = GrpcSink(calls).send(intent(MIB), Zeros(MIB), lambda _: None, cutoff)
    outcome = in_thread(write.result)
    assert silent.entered["write_blob"].wait(30)
    cutoff.cut(MOVED)
    assert_moved(raised(outcome))


def test_a_seal_that_hangs_is_broken_off(silent: SilentNode, calls: NodeCalls) -> None:
    cutoff = Cutoff()
    outcome = in_thread(lambda: calls.call("seal_shard", SealShardRequest(), timeout_seconds=60, cutoff=cutoff))
    assert silent.entered["seal_shard"].wait(30)
    cutoff.cut(MOVED)
    assert_moved(raised(outcome))


def test_what_begins_after_the_cut_does_not_begin(calls: NodeCalls) -> None:
    cutoff = Cutoff()
    cutoff.cut(MOVED)
    cutoff.cut(UnavailableError("later causes do not count"))
    for work in (
        lambda: DataChannelSink(calls).send(intent(1), Zeros(0), lambda _: None, cutoff),
        lambda: GrpcSink(calls).send(intent(1), Zeros(0), lambda _: None, cutoff).result(),
        lambda: calls.call("seal_shard", SealShardRequest(), cutoff=cutoff),
    ):
        with pytest.raises(StaleEpochError):
            work()


def test_a_blob_that_is_already_stored_is_not_sent(silent: SilentNode, calls: NodeCalls) -> None:
    """P11: no connection is made at all."""
    silent.already_stored = "its hash"
    sent: list[int] = []
    assert DataChannelSink(calls).send(intent(5), Zeros(5), sent.append, Cutoff()).result() == "its hash"
    assert sent == [5]
    silent.listener.settimeout(0.01)
    with pytest.raises(TimeoutError):
        silent.listener.accept()


def test_an_error_of_its_own_is_told_as_it_is_while_nothing_is_cut() -> None:
    cutoff = Cutoff()
    with pytest.raises(SdrsError, match="its own"), cutoff.breaking(lambda: None):
        raise UnavailableError("its own")
    cutoff.cut(MOVED)  # what has ended is not woken
