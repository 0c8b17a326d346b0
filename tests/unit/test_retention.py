"""P15: which checkpoints a policy lets go."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.checkpoints import ContentKind, Save, SaveState, newest_by_step
from sdrs_core.cluster import DEFAULT_POOL, Retention
from sdrs_core.ids import JobName, SaveId
from sdrs_core.levels import Level
from sdrs_core.retention import decide_retention

NOW_MS = 10_000_000


def save(step: int, *, attempt: int = 1, age_seconds: int = 0, **given: object) -> Save:
    made = Save(
        save_id=SaveId(f"{step}-{attempt}"),
        job=JobName("llm-7b"),
        step=step,
        attempt=attempt,
        world_size=1,
        pool=DEFAULT_POOL,
        kind=ContentKind.STATE,
        state=SaveState.COMMITTED,
        level=Level.L2,
        size_bytes=1,
        created_unix_ms=0,
        committed_unix_ms=NOW_MS - 1000 * age_seconds,
    )
    return replace(made, **given)  # type: ignore[arg-type]


def expired(saves: list[Save], policy: Retention, pinned: frozenset[SaveId] = frozenset()) -> list[int]:
    decided = decide_retention(saves, policy, pool_level=Level.L2, pinned=pinned, now_unix_ms=NOW_MS)
    return [expiry.save.step for expiry in decided]


def test_without_a_rule_everything_is_kept() -> None:
    saves = [save(step, age_seconds=10**6) for step in (3, 2, 1)]
    assert expired(saves, Retention()) == []
    assert expired(saves, Retention(keep_every_steps=2)) == []


def test_the_newest_are_kept() -> None:
    assert expired([save(step) for step in (5, 4, 3, 2, 1)], Retention(keep_last=2)) == [3, 2, 1]


def test_every_nth_step_is_kept_beside_the_newest() -> None:
    saves = [save(step) for step in range(10, -1, -1)]
    assert expired(saves, Retention(keep_last=1, keep_every_steps=5)) == [9, 8, 7, 6, 4, 3, 2, 1]


def test_what_is_too_old_goes_but_never_the_newest_good_one() -> None:
    saves = [save(step, age_seconds=100 * (4 - step)) for step in (3, 2, 1)]
    assert expired(saves, Retention(max_age_seconds=150)) == [2, 1]
    assert expired(saves, Retention(max_age_seconds=1)) == [2, 1]
    assert expired([save(1, age_seconds=10**6)], Retention(max_age_seconds=1)) == []


def test_poor_checkpoints_push_out_no_good_one() -> None:
    saves = [save(5, level=Level.L1), save(4, damage="a bit flipped"), save(3), save(2), save(1)]
    assert expired(saves, Retention(keep_last=2)) == [1]
    assert expired(saves, Retention(keep_last=1)) == [2, 1]


def test_poor_checkpoints_alone_are_all_kept() -> None:
    saves = [save(step, damage="a bit flipped", age_seconds=10**6) for step in (3, 2, 1)]
    assert expired(saves, Retention(keep_last=1, max_age_seconds=1)) == []


def test_what_is_held_or_pinned_stays() -> None:
    saves = [save(4), save(3, held=True), save(2), save(1)]
    assert expired(saves, Retention(keep_last=1), pinned=frozenset({saves[2].save_id})) == [1]


def test_only_the_current_generation_of_a_step_counts() -> None:
    saves = [save(2, attempt=3), save(2, attempt=2), save(2, attempt=1), save(1)]
    assert expired(saves, Retention(keep_last=2)) == []
    assert expired([*saves, save(0)], Retention(keep_last=2)) == [0]
    assert expired(saves, Retention(keep_last=1)) == [2, 2, 1]


def test_what_was_set_aside_does_not_count() -> None:
    aside = SaveState.SET_ASIDE
    saves = [save(4, state=aside), save(3), save(2, state=aside), save(1)]
    assert expired(saves, Retention(keep_last=2)) == []
    assert expired(saves, Retention(keep_last=1)) == [2, 1]


ANY_SAVE = st.builds(
    save,
    st.integers(0, 12),
    attempt=st.integers(1, 3),
    age_seconds=st.integers(0, 1000),
    state=st.sampled_from([SaveState.COMMITTED, SaveState.SET_ASIDE]),
    level=st.sampled_from([Level.L1, Level.L2]),
    damage=st.sampled_from(["", "", "a bit flipped"]),
    held=st.booleans(),
)
ANY_HISTORY = st.lists(ANY_SAVE, max_size=20, unique_by=lambda one: (one.step, one.attempt)).map(
    lambda saves: sorted(saves, key=lambda one: (one.step, one.attempt), reverse=True)
)
ANY_POLICY = st.builds(
    Retention,
    keep_last=st.integers(0, 4),
    keep_every_steps=st.integers(0, 4),
    max_age_seconds=st.sampled_from([0, 1, 500]),
)


def good(saves: list[Save]) -> list[Save]:
    return [one for one in newest_by_step(saves) if one.level >= Level.L2 and not one.damage]


@given(ANY_HISTORY, ANY_POLICY, st.data())
def test_no_policy_deletes_the_newest_good_one_or_what_is_held_or_pinned(
    saves: list[Save], policy: Retention, data: st.DataObject
) -> None:
    pinned = frozenset(data.draw(st.sets(st.sampled_from([one.save_id for one in saves]))) if saves else ())
    decided = decide_retention(saves, policy, pool_level=Level.L2, pinned=pinned, now_unix_ms=NOW_MS)
    gone = {expiry.save.save_id for expiry in decided}
    assert not gone & pinned
    assert not gone & {one.save_id for one in saves if one.held}
    if good(saves):
        assert good(saves)[0].save_id not in gone
        assert {expiry.newest_good for expiry in decided} <= {good(saves)[0].save_id}
    else:
        assert not gone


@given(ANY_HISTORY, st.integers(1, 4))
def test_keep_last_leaves_as_many_good_ones_as_it_says_or_all(saves: list[Save], keep_last: int) -> None:
    decided = decide_retention(
        saves, Retention(keep_last=keep_last), pool_level=Level.L2, pinned=frozenset(), now_unix_ms=NOW_MS
    )
    gone = {expiry.save.save_id for expiry in decided}
    assert not gone & {one.save_id for one in good(saves)[:keep_last]}


@given(ANY_HISTORY, ANY_POLICY)
def test_deciding_again_after_the_deletions_deletes_nothing_more(saves: list[Save], policy: Retention) -> None:
    def decide(left: list[Save]) -> set[SaveId]:
        decided = decide_retention(left, policy, pool_level=Level.L2, pinned=frozenset(), now_unix_ms=NOW_MS)
        return {expiry.save.save_id for expiry in decided}

    gone = decide(saves)
    left = [one for one in saves if one.save_id not in gone]
    # A generation that a deleted one kept from sight is set aside with it (P1).
    current = {one.save_id for one in newest_by_step(saves)}
    left = [one if one.save_id in current else replace(one, state=SaveState.SET_ASIDE) for one in left]
    assert decide(left) == set()
