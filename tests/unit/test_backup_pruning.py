from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.backup.pruning import Kept, decide_pruning
from sdrs_core.backup.targets import Keep
from sdrs_core.ids import SaveId

HOUR = 3_600_000
DAY = 24 * HOUR
# A Monday, 00:00 UTC.
MONDAY = 1_699_833_600_000


def at(unix_ms: int, name: str = "", **more: bool) -> Kept:
    return Kept(SaveId(name or str(unix_ms)), unix_ms // 1000, 1, unix_ms, **more)


def stays(backups: list[Kept], keep: Keep) -> list[str]:
    gone = decide_pruning(backups, keep)
    return [one.save_id for one in backups if one.save_id not in gone]


def test_without_a_rule_everything_stays() -> None:
    assert not decide_pruning([at(MONDAY + hour * HOUR) for hour in range(9)], Keep())


def test_the_last_ones_stay() -> None:
    backups = [at(MONDAY + number, str(number)) for number in range(5)]
    assert stays(backups, Keep(last=2)) == ["3", "4"]


def test_of_each_hour_day_and_week_the_newest_stays() -> None:
    minutes = [at(MONDAY + number * HOUR // 2, f"m{number}") for number in range(6)]
    assert stays(minutes, Keep(hourly=2)) == ["m3", "m5"]
    days = [at(MONDAY + number * DAY // 2, f"d{number}") for number in range(6)]
    assert stays(days, Keep(daily=2)) == ["d3", "d5"]
    weeks = [at(MONDAY + number * DAY, f"w{number}") for number in (-8, -1, 0, 6, 7)]
    assert stays(weeks, Keep(weekly=3)) == ["w-1", "w6", "w7"]


def test_an_hour_without_a_backup_uses_up_no_place() -> None:
    assert stays([at(MONDAY, "old"), at(MONDAY + 50 * HOUR, "new")], Keep(hourly=2)) == ["old", "new"]


def test_what_is_held_or_kept_nowhere_else_stays() -> None:
    backups = [at(MONDAY, "held", is_held=True), at(MONDAY + 1, "only", is_needed=True), at(MONDAY + 2, "newest")]
    assert not decide_pruning(backups, Keep(last=1))


def test_a_damaged_one_takes_no_place_of_a_sound_one() -> None:
    backups = [at(MONDAY, "sound"), at(MONDAY - 1, "older"), at(MONDAY + 1, "damaged", is_good=False)]
    assert stays(backups, Keep(last=1)) == ["sound", "damaged"]
    older = [replace(backups[2], committed_unix_ms=MONDAY - 2), backups[0]]
    assert stays(older, Keep(last=1)) == ["sound"]


def test_if_all_are_damaged_none_goes() -> None:
    assert not decide_pruning([at(MONDAY + number, is_good=False) for number in range(3)], Keep(last=1))


@given(
    st.lists(
        st.tuples(st.integers(0, 100 * DAY), st.booleans(), st.booleans()), max_size=20, unique_by=lambda one: one[0]
    ),
    st.builds(Keep, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
)
def test_the_newest_sound_one_and_what_is_held_always_stay(found: list[tuple[int, bool, bool]], keep: Keep) -> None:
    backups = [at(MONDAY + when, is_good=good, is_held=held) for when, good, held in found]
    gone = decide_pruning(backups, keep)
    sound = [one for one in backups if one.is_good]
    if sound:
        assert max(sound, key=lambda one: one.committed_unix_ms).save_id not in gone
    assert not gone & {one.save_id for one in backups if one.is_held}
