"""How far an attempt is at an instant, against a walk second by second."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_scheduler.sim.timeline import Timeline


def make(work: float, interval: float, save: float = 10, restore: float = 30, from_work: float = 0) -> Timeline:
    return Timeline(1000.0, restore, from_work, from_work + work, interval, save)


def test_saves_hold_the_work_up_and_none_is_made_at_the_end() -> None:
    assert make(work=100, interval=50).ends == 1000 + 30 + 100 + 10
    assert make(work=101, interval=50).ends == 1000 + 30 + 101 + 20
    assert make(work=50, interval=50).ends == 1000 + 30 + 50
    assert make(work=5000, interval=math.inf).ends == 1000 + 30 + 5000


def test_a_save_counts_when_it_is_over() -> None:
    timeline = make(work=1000, interval=50, from_work=7)
    assert timeline.saved_at(1000 + 30 + 50 + 9) == 7
    assert timeline.saved_at(1000 + 30 + 50 + 10) == 7 + 50
    assert timeline.worked_at(1000 + 30 + 50 + 9) == 7 + 50
    assert timeline.unsaved_at(1000 + 30 + 50 + 10 + 3) == 3


def test_a_save_under_way_is_not_begun_again() -> None:
    timeline = make(work=1000, interval=50)
    assert timeline.saving_left_at(1000 + 30 + 20) == 10
    assert timeline.saving_left_at(1000 + 30 + 50 + 4) == 6


@given(
    restore=st.integers(0, 40),
    interval=st.integers(1, 60),
    save=st.integers(0, 20),
    work=st.integers(1, 400),
    at=st.floats(0, 1),
)
def test_it_agrees_with_a_walk_second_by_second(restore: int, interval: int, save: int, work: int, at: float) -> None:
    timeline = make(work, interval, save, restore)
    now = int(at * (timeline.ends - 1000))
    worked = saved = saving = since = 0
    for second in range(now):
        if second < restore:
            continue
        if since == interval and saving < save:
            saving += 1
        else:
            if since == interval:
                since = saving = 0
            worked += 1
            since += 1
        if since == interval and saving == save:
            saved = worked
    assert timeline.worked_at(1000 + now) == pytest.approx(worked)
    assert timeline.saved_at(1000 + now) == pytest.approx(saved)
    spent = timeline.spent_at(1000 + now)
    assert spent.restoring + spent.working + spent.saving == pytest.approx(now)
    assert spent.working == pytest.approx(worked)
    assert timeline.worked_at(timeline.ends) == pytest.approx(work)
