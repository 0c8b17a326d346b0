from __future__ import annotations

from dataclasses import replace

from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.failed_restores import (
    FAILURES_TO_MARK,
    is_marked_by_restores,
    note_failed_restore,
    without_failures,
)
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.levels import Level

SAVE = Save(SaveId("s"), JobName("j"), 1, 1, 2, PoolName("p"), ContentKind.STATE, SaveState.COMMITTED, Level.L2, 10, 0)


def failed(save: Save, *restores: str) -> Save:
    for restore in restores:
        save = note_failed_restore(save, restore, f"why {restore}")
    return save


def test_several_failed_restores_mark_a_generation() -> None:
    names = [str(number) for number in range(FAILURES_TO_MARK)]
    almost = failed(SAVE, *names[:-1])
    assert (almost.damage, len(almost.failed_restores)) == ("", FAILURES_TO_MARK - 1)
    marked = failed(almost, names[-1])
    assert marked.damage == f"it failed to restore {FAILURES_TO_MARK} times: why {names[-1]}"
    assert is_marked_by_restores(marked)


def test_ranks_that_restore_together_fail_once() -> None:
    assert failed(SAVE, "round", "round", "round", "round").failed_restores == ("round",)


def test_the_record_does_not_grow_with_the_failures() -> None:
    often = failed(SAVE, *map(str, range(100)))
    assert len(often.failed_restores) == FAILURES_TO_MARK
    assert len(note_failed_restore(SAVE, "a", "x" * 10_000).restore_failure) <= 500


def test_what_is_known_to_be_damaged_keeps_its_reason() -> None:
    rotten = replace(SAVE, damage="rank 0 is corrupt on node n")
    still = failed(rotten, *map(str, range(5)))
    assert still.damage == rotten.damage
    assert not is_marked_by_restores(still)


def test_a_verification_gives_it_a_new_chance() -> None:
    assert without_failures(failed(SAVE, *map(str, range(5)))) == SAVE
