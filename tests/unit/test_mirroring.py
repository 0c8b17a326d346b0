"""Which checkpoints are mirrored in a second pool: the newest, as many as the ratio allows, and at least one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_core.mirroring import choose_mirrored, newest_first


def save(number: int, size_bytes: int = 100, **given: object) -> Save:
    known = Save(
        SaveId(f"{number:032x}"),
        JobName("job"),
        number,
        1,
        1,
        PoolName("deep"),
        ContentKind.STATE,
        SaveState.COMMITTED,
        Level.L3,
        size_bytes,
        0,
        committed_unix_ms=number,
    )
    return replace(known, **given)  # type: ignore[arg-type]


def steps(saves: list[Save], ratio: float) -> list[int]:
    chosen = choose_mirrored(newest_first(saves), ratio)
    return sorted(one.step for one in saves if one.save_id in chosen)


def test_the_newest_are_mirrored_as_long_as_their_bytes_stay_within_the_ratio() -> None:
    eight = [save(number) for number in range(8)]
    assert steps(eight, 0.25) == [6, 7]
    assert steps(eight, 0.3) == [6, 7]
    assert steps(eight, 1.0) == list(range(8))
    assert steps(eight, 0.0) == []


def test_the_newest_is_mirrored_however_large_it_is_and_none_is_passed_over_for_an_older_one() -> None:
    assert steps([save(1, 10), save(2, 10), save(3, 1000)], 0.1) == [3]
    assert steps([save(1, 10), save(2, 500), save(3, 100)], 0.25) == [3]


def test_one_that_was_set_aside_or_is_damaged_has_no_mirror_and_counts_for_the_whole() -> None:
    aside, damaged = save(9, state=SaveState.SET_ASIDE), save(8, damage="rank 0 is corrupt")
    others = [save(number) for number in range(6)]
    assert steps([*others, aside, damaged], 0.25) == [4, 5]
    assert steps([aside, damaged], 0.25) == []


@given(st.lists(st.integers(1, 1000), max_size=20), st.floats(0.01, 1.0))
def test_what_is_mirrored_is_the_newest_part_and_within_the_ratio_unless_it_is_one(
    sizes: list[int], ratio: float
) -> None:
    saves = [save(number, size_bytes) for number, size_bytes in enumerate(sizes)]
    chosen = steps(saves, ratio)
    assert chosen == list(range(len(saves)))[len(saves) - len(chosen) :]
    assert bool(chosen) == bool(saves)
    if len(chosen) > 1:
        assert sum(sizes[step] for step in chosen) <= ratio * sum(sizes) + 1e-6
