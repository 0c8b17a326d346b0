"""Work in the background keeps to its limit, and rests while somebody waits for a save."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.errors import UnavailableError
from sdrs_storaged.node.pacing import REST_RATIO, Background, Pace

MIB = 1 << 20


@dataclass
class Hands:
    """A clock that only work and rest move."""

    now: float = 100.0
    processor_seconds: float = 0.0
    rests: list[float] = field(default_factory=list)
    is_busy: bool = False

    def pace(self, max_bytes_per_second: int = 0) -> Pace:
        return Pace(
            max_bytes_per_second,
            lambda: self.is_busy,
            clock=lambda: self.now,
            processor_clock=lambda: self.processor_seconds,
            sleep=self._rest,
        )

    def _rest(self, seconds: float) -> None:
        assert seconds > 0
        self.rests.append(seconds)
        self.now += seconds

    def work(self, pace: Pace, size_bytes: int, seconds: float) -> None:
        self.now += seconds
        pace.spent(size_bytes)


def test_without_a_limit_and_without_saves_nothing_rests() -> None:
    hands = Hands()
    pace = hands.pace()
    for _ in range(5):
        hands.work(pace, 4 * MIB, 0.01)
    assert not hands.rests


@given(
    st.integers(MIB, 64 * MIB),
    st.lists(st.tuples(st.integers(0, 8 * MIB), st.floats(0, 2)), min_size=1, max_size=30),
)
def test_the_limit_holds_over_any_stretch_of_work(limit: int, pieces: list[tuple[int, float]]) -> None:
    hands = Hands()
    pace = hands.pace(limit)
    started = [hands.now]
    for size_bytes, seconds in pieces:
        hands.work(pace, size_bytes, seconds)
        started.append(hands.now)
    for first in range(len(pieces)):
        moved = sum(size_bytes for size_bytes, _ in pieces[first:])
        assert moved <= limit * (hands.now - started[first]) * 1.001 + 1


def test_a_limit_below_what_peers_bear_is_not_kept_to_the_letter() -> None:
    hands = Hands()
    hands.work(hands.pace(1), 4 * MIB, 0.01)
    assert sum(hands.rests) == 10.0


def test_a_new_limit_holds_at_once_also_in_the_middle_of_a_pause() -> None:
    hands = Hands()
    pace = hands.pace(MIB)

    def raise_it(seconds: float) -> None:
        hands.rests.append(seconds)
        hands.now += seconds
        pace.set_limit(100 * MIB)

    pace._sleep = raise_it
    hands.work(pace, 8 * MIB, 0.0)
    assert hands.rests == [1.0], "the rest of the pause is not owed any more"
    pace._sleep = hands._rest
    for _ in range(10):
        hands.work(pace, 10 * MIB, 0.0)
    assert hands.rests[1:] == [pytest.approx(0.1)] * 10


def test_while_a_save_is_under_way_a_quarter_of_the_time_is_worked() -> None:
    hands = Hands(is_busy=True)
    pace = hands.pace()
    for _ in range(10):
        hands.work(pace, MIB, 0.02)
    assert hands.rests == [pytest.approx(REST_RATIO * 0.02)] * 10
    hands.is_busy = False
    hands.work(pace, MIB, 0.02)
    assert len(hands.rests) == 10


def test_of_waiting_for_a_peer_only_the_processors_time_counts_as_work() -> None:
    """Both ends of a transfer may rest: neither rests because the other does."""
    hands = Hands(is_busy=True)
    pace = hands.pace()
    with pace.waiting():
        hands.now += 0.1
        hands.processor_seconds += 0.01
    hands.work(pace, MIB, 0.02)
    assert hands.rests == [pytest.approx(REST_RATIO * (0.01 + 0.02))]
    hands.work(pace, MIB, 0.02)
    assert hands.rests[1:] == [pytest.approx(REST_RATIO * 0.02)]


def test_no_rest_is_long_however_slow_the_work() -> None:
    hands = Hands(is_busy=True)
    hands.work(hands.pace(), MIB, 20.0)
    assert hands.rests == [0.5]


def test_a_shutdown_ends_a_rest_and_the_work() -> None:
    background = Background(lambda: False)
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(UnavailableError, match="shuts down"):
            background.pace(1).spent(MIB)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    background.stop()
    assert ended.wait(5), "it did not sleep to the end"
    thread.join()
    with pytest.raises(UnavailableError):
        background.check_running()
