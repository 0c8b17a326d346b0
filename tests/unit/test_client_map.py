"""Following the map: news reach whoever waits for them at once, and nobody asks when nobody waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from sdrs.rpc.control import Control
from sdrs.rpc.map import MapFollower, Maps
from sdrs_core.cluster import Group, describe_move
from sdrs_core.errors import SdrsError, UnavailableError, UnsupportedError
from sdrs_core.ids import GroupId, NodeId, PoolName
from sdrs_proto.convert import group_to
from sdrs_proto.v1.control_pb2 import MapVersion, WatchMapRequest, WatchMapResponse
from tests.support.waiting import wait_for

POOL = PoolName("fast")


def group(name: str = "g", epoch: int = 1, primary: str = "a") -> Group:
    return Group(GroupId(name), POOL, epoch, (NodeId("a"), NodeId("b")), NodeId(primary))


class FakeControl:
    """Holds each question back until ``answer`` is called."""

    def __init__(self) -> None:
        self.asked: queue.Queue[WatchMapRequest] = queue.Queue()
        self.ask_count = 0
        self._answers: queue.Queue[WatchMapResponse | SdrsError] = queue.Queue()
        self._number = 0

    def call(self, method: str, request: WatchMapRequest, *, wait_ms: int, patience_seconds: float) -> Any:
        assert (method, patience_seconds) == ("watch_map", 0.0)
        assert request.wait_ms == wait_ms > 0
        self.ask_count += 1
        sent = WatchMapRequest()
        sent.CopyFrom(request)
        self.asked.put(sent)
        answer = self._answers.get(timeout=30)
        if isinstance(answer, SdrsError):
            raise answer
        return answer

    def fail(self, error: SdrsError) -> None:
        self._answers.put(error)

    def answer(self, *groups: Group, same: bool = False) -> None:
        self._number += 0 if same else 1
        version = MapVersion(term=1, number=self._number)
        self._answers.put(WatchMapResponse(version=version, groups=[group_to(group) for group in groups]))


@pytest.fixture
def control() -> Iterator[FakeControl]:
    fake = FakeControl()
    yield fake
    fake.fail(UnsupportedError("the test is over"))  # ends a thread that still asks
    wait_for(lambda: not is_following(), "the thread to end")


def is_following() -> bool:
    return any(thread.name == "sdrs-map-fast" for thread in threading.enumerate())


def maps_of(control: FakeControl) -> Maps:
    return Maps(cast(Control, control))


def follower_of(control: FakeControl, clock: Any = None) -> MapFollower:
    return MapFollower(cast(Control, control), POOL, **({"clock": clock} if clock else {}))


def next_question(control: FakeControl) -> WatchMapRequest:
    return control.asked.get(timeout=30)


@pytest.mark.parametrize(
    ("now", "is_moved"),
    [
        (group(epoch=5), False),
        (group(epoch=6), True),
        (group(epoch=6, primary="b"), True),
        (group(epoch=5, primary="b"), True),
        (group(epoch=4, primary="b"), False),  # an older map
        (group("another", epoch=9), True),  # it is gone
    ],
)
def test_a_group_has_moved_when_its_epoch_rose_or_its_primary_changed(now: Group, is_moved: bool) -> None:
    assert bool(describe_move(group(epoch=5), {now.id: now})) is is_moved


def test_whoever_waits_for_a_group_is_told_as_soon_as_it_moved_and_the_others_are_not(control: FakeControl) -> None:
    told: queue.Queue[str] = queue.Queue()
    others: list[str] = []
    maps = maps_of(control)
    with maps.watching(group("g"), told.put), maps.watching(group("other"), others.append):
        assert next_question(control).known == MapVersion()
        control.answer(group("g"), group("other"))
        assert next_question(control).known == MapVersion(term=1, number=1)
        control.answer(group("g", epoch=2, primary="b"), group("other"))
        assert "epoch 2 with primary b" in told.get(timeout=30)
        next_question(control)
        control.answer(group("g", epoch=3), group("other"))
        next_question(control)
    assert told.empty(), "it was told twice"
    assert others == []


def test_one_that_comes_late_is_told_what_the_map_already_says(control: FakeControl) -> None:
    told: list[str] = []
    follower = follower_of(control)
    follower.add(group("other"), told.append)
    next_question(control)
    control.answer(group("g", epoch=7), group("other"))
    next_question(control)
    follower.add(group("g", epoch=6), told.append)
    assert len(told) == 1
    follower.add(group("g", epoch=7), told.append)
    assert len(told) == 1


def test_one_thread_asks_for_all_and_nobody_asks_when_nobody_waits(control: FakeControl) -> None:
    maps = maps_of(control)
    with ExitStack() as stack:
        for number in range(5):
            stack.enter_context(maps.watching(group(f"g{number}"), lambda _: None))
        next_question(control)
        assert sum(thread.name == "sdrs-map-fast" for thread in threading.enumerate()) == 1
    control.answer(*(group(f"g{number}") for number in range(5)))
    wait_for(lambda: not is_following(), "the thread to end")
    assert control.ask_count == 1


def test_whoever_comes_after_that_starts_with_no_map_from_before(control: FakeControl) -> None:
    maps = maps_of(control)
    with maps.watching(group(), lambda _: None):
        next_question(control)
    control.answer(group())
    wait_for(lambda: not is_following(), "the thread to end")
    with maps.watching(group(), lambda _: None):
        assert next_question(control).known == MapVersion()


def test_a_controller_that_is_out_of_reach_is_asked_again(control: FakeControl) -> None:
    told: queue.Queue[str] = queue.Queue()
    with maps_of(control).watching(group(), told.put):
        for _ in range(3):
            next_question(control)
            control.fail(UnavailableError("standing by"))
        next_question(control)
        control.answer(group(epoch=2))
        assert told.get(timeout=30)


def test_an_answer_without_news_wakes_nobody(control: FakeControl) -> None:
    told: list[str] = []
    with maps_of(control).watching(group(), told.append):
        next_question(control)
        control.answer(group())
        next_question(control)
        control.answer(same=True)  # the same version, and none of the groups
        next_question(control)
        assert told == []


def test_a_controller_without_a_map_is_not_asked_again_for_a_while(control: FakeControl) -> None:
    now = [100.0]
    follower = follower_of(control, lambda: now[0])
    first = follower.add(group(), lambda _: None)
    next_question(control)
    control.fail(UnsupportedError("unknown call"))
    wait_for(lambda: not is_following(), "the thread to end")
    follower.remove(first)
    follower.add(group(), lambda _: None)
    assert control.ask_count == 1
    now[0] += 3600
    follower.add(group(), lambda _: None)
    next_question(control)
