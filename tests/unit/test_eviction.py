"""Which checkpoints are old enough to be kept in the backup only."""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.backup.eviction import decide_eviction
from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.levels import Level

NOW_MS = 1_000_000_000


def save(step: int, age_seconds: int, **given: object) -> Save:
    made = Save(
        save_id=SaveId(f"{step:032d}"),
        job=JobName("llm-7b"),
        step=step,
        attempt=1,
        world_size=1,
        pool=PoolName("default"),
        kind=ContentKind.STATE,
        state=SaveState.COMMITTED,
        level=Level.L2,
        size_bytes=1,
        created_unix_ms=0,
        committed_unix_ms=NOW_MS - 1000 * age_seconds,
    )
    return replace(made, **given)  # type: ignore[arg-type]


def steps(*saves: Save, after_seconds: int = 100, pinned: frozenset[SaveId] = frozenset()) -> list[int]:
    decided = decide_eviction(saves, evict_after_seconds=after_seconds, pinned=pinned, now_unix_ms=NOW_MS)
    return [one.step for one in decided]


def test_the_old_go_the_oldest_first_and_the_newest_sound_one_stays_however_old_it_is() -> None:
    assert steps(save(4, 50), save(3, 150), save(2, 200), save(1, 300)) == [1, 2, 3]
    assert steps(save(3, 150), save(2, 200)) == [2]
    assert steps(save(3, 150, damage="lost"), save(2, 200), save(1, 300)) == [1]
    assert steps(save(3, 150, damage="lost")) == []


def test_what_is_held_damaged_being_restored_or_recalled_of_late_stays() -> None:
    newest = save(9, 0)
    assert steps(newest, save(1, 500, held=True)) == []
    assert steps(newest, save(1, 500, damage="rank 0 is missing")) == []
    assert steps(newest, save(1, 500), pinned=frozenset({save(1, 0).save_id})) == []
    assert steps(newest, save(1, 500, recalled_unix_ms=NOW_MS - 50_000)) == []
    assert steps(newest, save(1, 500, recalled_unix_ms=NOW_MS - 150_000)) == [1]


def test_without_an_age_nothing_goes_and_what_is_gone_does_not_stand_for_the_newest() -> None:
    assert steps(save(2, 500), save(1, 500), after_seconds=0) == []
    assert steps(save(2, 500, evicted="nas"), save(1, 500)) == []
