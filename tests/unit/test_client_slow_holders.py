"""Holders that hang or are slow: others are asked as well, and whoever delivers first serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from sdrs.restore import pace, range_reading
from sdrs.restore.targets import ByteCount, MemoryTarget
from sdrs.transfer import FragmentRange
from sdrs_core.cluster import Node, ReadPolicy
from sdrs_core.codes import Code
from sdrs_core.errors import UnavailableError
from tests.support.coded_nodes import BLOCK, FOUR_TWO, STRIPES, Stream, nodes_of, quick_reading
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    with quick_reading():
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LEAST_SECONDS", 0.02)
    monkeypatch.setattr(range_reading, "STALLS_SECONDS", (20.0, 20.0, 20.0))


def test_a_node_that_does_not_answer_is_raced_by_another(impatient: None) -> None:
    nodes, answer = nodes_of(STRIPES), threading.Event()
    real = nodes.open
    asked: set[str] = set()

    def hanging(node: Node, fragment: FragmentRange, stall_seconds: float) -> Stream:
        asked.add(node.id)
        if node.id in "bc":
            answer.wait(20)
        return real(node, fragment, stall_seconds)

    nodes.open = hanging  # type: ignore[method-assign]
    try:
        reader = nodes.reader()
        target = MemoryTarget(reader.shard.blobs)
        reader.read(reader.shard.blobs, target)
        assert target.buffer(nodes.blob) == nodes.content
        assert not answer.is_set()
        # What was learnt is used for the next read: it does not begin with them.
        asked.clear()
        reader.read(reader.shard.blobs, target)
        assert asked == set("adef")
    finally:
        answer.set()
    nodes.check_closed()
    assert nodes.reported == []


@pytest.mark.parametrize("code", [FOUR_TWO, None])
def test_a_node_that_stops_in_the_middle_is_raced_by_another(impatient: None, code: Code | None) -> None:
    nodes = nodes_of(STRIPES, code)
    nodes.holders.note_read(nodes.blob.holders[0].node_id, 0.0, 1, 0.0)
    nodes.on_block = lambda name, block: name != "a" or block < 2  # type: ignore[method-assign]
    for _ in range(2):  # whole copies begin with each in turn
        assert nodes.read() == nodes.content
    assert nodes.reported == []


def test_a_slow_node_that_delivers_first_goes_on_serving(impatient: None) -> None:
    nodes = nodes_of(STRIPES)
    waited: list[int] = []

    def on_block(name: str, block: int) -> bool:
        if name == "b" and block == 1 and len(waited) < 5:
            waited.append(1)
            return False
        return name not in "ef"  # those that race it are no faster

    nodes.on_block = on_block  # type: ignore[method-assign]
    assert nodes.read() == nodes.content
    assert [name for name, _, _ in nodes.opened].count("b") == 1
    assert set("ef") & nodes.asked_names


def test_one_that_answers_when_others_have_taken_its_place_does_not_confuse_the_read(impatient: None) -> None:
    """It was asked for blocks that are long past."""
    nodes, answer = nodes_of(16 * 4 * BLOCK), threading.Event()
    real = nodes.open

    def late(node: Node, fragment: FragmentRange, stall_seconds: float) -> Stream:
        if node.id == "e":
            answer.wait(20)
        return real(node, fragment, stall_seconds)

    def on_block(name: str, block: int) -> bool:
        if name == "f" and block == 8:
            answer.set()
            wait_for(lambda: "e" in nodes.asked_names, "the late answer")
        return name != "b"

    nodes.open = late  # type: ignore[method-assign]
    nodes.on_block = on_block  # type: ignore[method-assign]
    for holder in nodes.blob.holders[4:]:  # e is asked before f
        nodes.holders.note_read(holder.node_id, 1.0 + holder.fragment_index, 1, 0.0)
    nodes.policy = ReadPolicy.LEAST_RESPONSE_TIME
    nodes.trouble("d", "dies", 12)
    assert nodes.read() == nodes.content
    assert answer.is_set()
    assert nodes.reported == []


def test_a_read_that_is_given_up_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    monkeypatch.setattr("sdrs.restore.stripes.RANGE_BYTES", 4 * BLOCK)
    nodes = nodes_of(8 * BLOCK, None)
    real, raced, over = nodes.open, threading.Event(), threading.Event()

    def second_hangs(node: Node, fragment: FragmentRange, stall_seconds: float) -> Stream:
        if fragment.offset == 0 and any(offset == 0 for _, _, offset in nodes.opened):
            raced.set()
            over.wait(20)
        return real(node, fragment, stall_seconds)

    def fail(read: int, total: int) -> None:
        assert raced.wait(20)
        raise RuntimeError("the user's own")

    nodes.open = second_hangs  # type: ignore[method-assign]
    nodes.on_block = lambda name, block: block >= 4  # type: ignore[method-assign]
    reader = nodes.reader(ByteCount(fail, 8 * BLOCK))
    try:
        with pytest.raises(RuntimeError, match="own"):
            reader.read(reader.shard.blobs, MemoryTarget(reader.shard.blobs))
    finally:
        over.set()
    nodes.check_closed()


def test_all_that_hang_are_waited_for_together_and_then_told(monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    monkeypatch.setattr(range_reading, "STALLS_SECONDS", (0.1, 0.1, 0.1))
    nodes = nodes_of(STRIPES)
    nodes.newer = nodes_of(STRIPES, down="abc")
    nodes.on_block = lambda name, block: name not in "abc"  # type: ignore[method-assign]
    with pytest.raises(UnavailableError, match="sent nothing"):
        nodes.read()
