"""When a scrub is due, and how fast it goes."""

from __future__ import annotations

import pytest

from sdrs_core.scrub import Depth, Due, Pace, Schedule, next_due

DAY = 86_400.0
DAY_MS = 86_400_000
NOW = 100 * DAY_MS
EACH = Schedule(DAY, 7 * DAY)


@pytest.mark.parametrize(
    ("shallow_days_ago", "deep_days_ago", "due"),
    [
        (0, 0, Due(Depth.SHALLOW, DAY)),
        (0.5, 3, Due(Depth.SHALLOW, DAY / 2)),
        (1, 3, Due(Depth.SHALLOW, 0)),
        (50, 50, Due(Depth.DEEP, 0)),
        # A deep one sees all that a shallow one does.
        (50, 0.25, Due(Depth.SHALLOW, 0.75 * DAY)),
        (0.25, 6.5, Due(Depth.DEEP, DAY / 2)),
        # As a clock that was put back leaves it: soon again, not in years.
        (-400, -400, Due(Depth.DEEP, 0)),
    ],
)
def test_what_is_due_first_is_told_and_the_deep_one_wins(
    shallow_days_ago: float, deep_days_ago: float, due: Due
) -> None:
    found = next_due(
        EACH,
        shallow_unix_ms=int(NOW - shallow_days_ago * DAY_MS),
        deep_unix_ms=int(NOW - deep_days_ago * DAY_MS),
        now_unix_ms=NOW,
    )
    assert found == due


def test_an_interval_of_zero_is_never_due() -> None:
    long_ago = {"shallow_unix_ms": 0, "deep_unix_ms": 0, "now_unix_ms": NOW}
    assert next_due(Schedule(0, 0), **long_ago) is None
    assert next_due(Schedule(0, DAY), **long_ago) == Due(Depth.DEEP, 0)
    assert next_due(Schedule(DAY, 0), **long_ago) == Due(Depth.SHALLOW, 0)


def test_a_pace_is_kept_on_average_and_pauses_earn_nothing() -> None:
    pace, now = Pace(100), 1000.0
    for _ in range(10):
        now += pace.spend(500, now)
    assert now == pytest.approx(1000 + 50 - 1)  # the first second was free
    now += 3600
    assert pace.spend(500, now) == pytest.approx(4)
    assert Pace(0).spend(10**12, now) == 0
