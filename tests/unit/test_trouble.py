from __future__ import annotations

import itertools

import pytest

from sdrs_core.errors import (
    DeadlineExceededError,
    DiskFailedError,
    FullError,
    RefusedError,
    SaveFailedError,
    SdrsError,
    StaleEpochError,
    UnavailableError,
)
from sdrs_core.ids import NodeId
from sdrs_core.trouble import AVOID_SECONDS, MAX_TROUBLE_SECONDS, MIN_FAILED_TRIES, PATIENCE_SECONDS, Trouble

A, B = NodeId("node-a"), NodeId("node-b")
GONE = UnavailableError("connection refused")
MOVED = StaleEpochError("epoch 2")


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_first_pauses_are_short_and_none_is_long() -> None:
    trouble = Trouble()
    pauses = [trouble.pause_seconds() for _ in range(20)]
    assert pauses[0] <= 0.02
    assert sum(pauses[:4]) <= 0.4, "a killed primary is replaced sooner than that"
    assert max(pauses) <= 0.25


def test_a_save_goes_on_for_half_a_minute_however_often_it_fails(clock: Clock) -> None:
    trouble = Trouble(clock)
    for _ in range(200):
        trouble.note_failure(A, GONE, avoid=True)
    assert not trouble.is_over
    clock.now += PATIENCE_SECONDS
    assert trouble.is_over


def test_a_few_tries_are_made_however_long_each_takes(clock: Clock) -> None:
    trouble = Trouble(clock)
    for _ in range(MIN_FAILED_TRIES - 1):
        trouble.note_failure(A, GONE, avoid=True)
        clock.now += PATIENCE_SECONDS / 2
    assert not trouble.is_over
    trouble.note_failure(A, GONE, avoid=True)
    assert trouble.is_over


def test_a_group_that_moves_does_not_use_up_the_tries_but_the_time(clock: Clock) -> None:
    trouble = Trouble(clock)
    for _ in range(20):
        trouble.note_move(A, MOVED)
        clock.now += 2
    assert not trouble.is_over
    clock.now += MAX_TROUBLE_SECONDS
    assert trouble.is_over


def test_progress_begins_the_count_anew_but_not_without_end(clock: Clock) -> None:
    trouble = Trouble(clock)
    for _ in range(10):
        trouble.note_progress()
        trouble.note_failure(A, GONE, avoid=True)
        clock.now += PATIENCE_SECONDS
        assert not trouble.is_over

    def fail_once_more() -> bool:
        trouble.note_progress()
        trouble.note_failure(A, GONE, avoid=True)
        return trouble.is_over

    assert any(fail_once_more() for _ in range(2000))


@pytest.mark.parametrize("error", [GONE, DeadlineExceededError("slow"), RefusedError("not primary")])
def test_a_node_that_failed_is_avoided_for_seconds_only(clock: Clock, error: SdrsError) -> None:
    trouble = Trouble(clock)
    trouble.note_failure(A, error, avoid=True)
    assert trouble.avoided() == [A]
    clock.now += AVOID_SECONDS
    assert trouble.avoided() == []


@pytest.mark.parametrize("error", [FullError("full"), DiskFailedError("broken")])
def test_a_full_or_broken_node_is_avoided_for_good(clock: Clock, error: SdrsError) -> None:
    trouble = Trouble(clock)
    trouble.note_failure(A, error, avoid=True)
    trouble.note_failure(B, GONE, avoid=True)
    clock.now += 3600
    assert trouble.avoided() == [A]
    assert trouble.lasting() is error


def test_a_group_that_moved_makes_nobody_avoided(clock: Clock) -> None:
    trouble = Trouble(clock)
    trouble.note_move(A, MOVED)
    assert trouble.avoided() == []


def test_those_that_may_be_back_are_forgiven_when_nobody_else_is_left(clock: Clock) -> None:
    trouble = Trouble(clock)
    full = FullError("full")
    trouble.note_failure(A, full, avoid=True)
    trouble.note_failure(B, GONE, avoid=True)
    assert trouble.forgive()
    assert trouble.avoided() == [A]
    assert not trouble.forgive()


def test_the_end_names_every_node_that_was_tried_and_why_it_failed(clock: Clock) -> None:
    trouble = Trouble(clock)
    for node_id, _ in itertools.product((A, B), range(3)):
        trouble.note_failure(node_id, UnavailableError(f"{node_id} refused"), avoid=True)
    clock.now += 31
    error = trouble.failure('step 1 of job "j"')
    assert isinstance(error, SaveFailedError)
    for part in ('step 1 of job "j"', "6 tries", "31 s", "node node-a: node-a refused", "node node-b: node-b refused"):
        assert part in str(error)


def test_full_stays_full(clock: Clock) -> None:
    trouble = Trouble(clock)
    trouble.note_failure(A, GONE, avoid=True)
    full = FullError("no room")
    trouble.note_failure(B, full, avoid=True)
    assert trouble.failure("it") is full
