"""A relay holds two blocks at most, waits for nobody longer than told, and lets go of memory when it says so (I10)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from sdrs_core.checksums import digest
from sdrs_core.cluster import Endpoints, Node
from sdrs_core.errors import DeadlineExceededError, SdrsError, UnavailableError
from sdrs_core.ids import NodeId
from sdrs_proto import channel
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.rpc.peers import CopyChannel
from sdrs_storaged.rpc.relay import BLOCKS_AHEAD, Relay
from tests.support.waiting import wait_for

MEMBER = Node(NodeId("n2"), Endpoints("", "", "", "", ""), "n2", 1, "1")
BLOCK = b"x" * (1 << 20)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        yield ours, theirs


def _relay(opening: Callable[[], CopyChannel | None], failures: list[SdrsError]) -> Relay:
    return Relay(MEMBER, opening, failures.append, lambda count: None)


def _feed(relay: Relay, count: int) -> tuple[threading.Thread, list[int]]:
    """Puts ``count`` blocks from a thread of its own; how many were taken so far."""
    taken: list[int] = []

    def put() -> None:
        for number in range(count):
            relay.put(digest(BLOCK), BLOCK)
            taken.append(number)

    thread = threading.Thread(target=put)
    thread.start()
    return thread, taken


def test_a_member_that_is_not_there_yet_gets_two_blocks_ahead_and_no_more() -> None:
    opened = threading.Event()
    failures: list[SdrsError] = []

    def opening() -> CopyChannel | None:
        opened.wait(30)
        raise UnavailableError("it never came")

    relay = _relay(opening, failures)
    feeding, taken = _feed(relay, 5)
    wait_for(lambda: len(taken) == BLOCKS_AHEAD, "the first blocks to be taken")
    feeding.join(0.2)
    assert feeding.is_alive()
    assert len(taken) == BLOCKS_AHEAD
    opened.set()
    feeding.join(30)
    assert len(taken) == 5  # a copy that failed holds nobody up
    relay.await_unused()
    relay.settle()
    wait_for(lambda: failures, "the failure to be told")


def test_a_member_that_takes_nothing_is_slow_and_left(ends: tuple[socket.socket, socket.socket]) -> None:
    failures: list[SdrsError] = []
    relay = _relay(lambda: CopyChannel(ends[0], "n2", 0.2), failures)
    feeding, taken = _feed(relay, 20)
    feeding.join(30)
    assert len(taken) == 20
    relay.end(pb.BlobSummary())
    relay.settle()
    wait_for(lambda: failures, "the failure to be told")
    assert isinstance(failures[0], DeadlineExceededError)


def test_a_member_that_does_not_answer_is_slow(ends: tuple[socket.socket, socket.socket]) -> None:
    failures: list[SdrsError] = []
    relay = _relay(lambda: CopyChannel(ends[0], "n2", 0.2), failures)
    relay.put(digest(b"small"), b"small")
    relay.end(pb.BlobSummary())
    relay.settle()
    wait_for(lambda: failures, "the failure to be told")
    assert isinstance(failures[0], DeadlineExceededError)


def test_a_relay_that_is_given_up_wakes_a_send_and_blames_nobody(ends: tuple[socket.socket, socket.socket]) -> None:
    failures: list[SdrsError] = []
    relay = _relay(lambda: CopyChannel(ends[0], "n2", 60), failures)
    feeding, taken = _feed(relay, 20)
    ends[1].settimeout(30)
    assert ends[1].recv(1)  # it is under way
    relay.give_up()
    feeding.join(30)
    assert len(taken) == 20
    relay.await_unused()
    wait_for(lambda: ends[0].fileno() < 0, "the connection to be closed")
    assert not failures


def test_a_refusal_in_mid_transfer_is_heard(ends: tuple[socket.socket, socket.socket]) -> None:
    failures: list[SdrsError] = []
    channel.send_answer(ends[1], UnavailableError("my disk is full"))
    relay = _relay(lambda: CopyChannel(ends[0], "n2", 30), failures)
    feeding, _ = _feed(relay, 20)
    feeding.join(30)
    wait_for(lambda: failures, "the failure to be told")
    assert "n2: my disk is full" in failures[0].message


def test_a_member_that_has_the_blob_is_sent_nothing() -> None:
    failures: list[SdrsError] = []
    relay = _relay(lambda: None, failures)
    feeding, taken = _feed(relay, 20)
    feeding.join(30)
    assert len(taken) == 20
    relay.settle()
    assert not failures
