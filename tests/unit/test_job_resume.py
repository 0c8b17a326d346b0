"""From where an attempt goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sdrs_scheduler.jobs.resume import Check, Generation, Resumption, choose
from sdrs_scheduler.jobs.spec import Resume

THREE = tuple(Generation(f"s{step}", step, committed_unix_ms=step) for step in (300, 200, 100))
WHOLE = {generation.save_id: Check(True) for generation in THREE}


def decided(*generations: Generation, checks: dict[str, Check] | None = None, **options: object) -> Resumption:
    known = WHOLE if checks is None else checks
    chosen = choose(generations, known, **{"resume": Resume.LATEST_VERIFIED, **options})  # type: ignore[arg-type]
    assert isinstance(chosen, Resumption)
    return chosen


def test_what_was_durable_and_is_gone_is_told() -> None:
    older = decided(*THREE[1:], progress_step=300)
    assert (older.step, older.note) == (200, "step 300 is not there any more")
    assert decided(progress_step=300).text == "from the beginning (step 300 is not there any more)"
    assert decided(*THREE, progress_step=300).note == ""


def test_the_newest_is_verified_first() -> None:
    assert choose(THREE, {}, resume=Resume.LATEST_VERIFIED) == THREE[0]
    assert decided(*THREE) == Resumption(300, "", True, 300)


def test_a_damaged_one_is_passed_over_and_told() -> None:
    checks = {**WHOLE, "s300": Check(False, "rank 0 is gone")}
    found = decided(*THREE, checks=checks)
    assert (found.step, found.note) == (200, "step 300 is damaged: rank 0 is gone")
    assert found.text == "from step 200, verified (step 300 is damaged: rank 0 is gone)"


def test_one_that_is_marked_is_not_even_read() -> None:
    marked = Generation("s400", 400, damage="scrub found it")
    assert decided(marked, *THREE).step == 300
    assert decided(marked, *THREE, resume=Resume.LATEST, checks={}).step == 300


def test_latest_is_not_verified_and_none_is_none() -> None:
    assert decided(*THREE, resume=Resume.LATEST, checks={}) == Resumption(300, "", False, 300)
    assert decided(*THREE, resume=Resume.NONE).step is None
    assert decided() == Resumption(None)


def test_roll_back_counts_sound_ones_only_and_ends_at_the_beginning() -> None:
    checks = {**WHOLE, "s300": Check(False, "x")}
    assert decided(*THREE, roll_back=1).step == 200
    assert decided(*THREE, roll_back=1, checks=checks).step == 100
    assert decided(*THREE, roll_back=3).step is None


def test_a_roll_back_is_not_undone_by_the_next_start() -> None:
    assert decided(*THREE, at_most_step=200).step == 200
    assert decided(*THREE, at_most_step=200, roll_back=1).step == 100
    assert decided(*THREE, at_most_step=-1).step is None


@given(st.lists(st.booleans(), max_size=8), st.integers(0, 4))
def test_the_choice_ends_and_is_never_a_damaged_one(soundness: list[bool], roll_back: int) -> None:
    generations = [Generation(f"s{i}", 100 - i) for i in range(len(soundness))]
    truth = {f"s{i}": Check(is_whole) for i, is_whole in enumerate(soundness)}
    known: dict[str, Check] = {}
    while not isinstance(
        chosen := choose(generations, known, resume=Resume.LATEST_VERIFIED, roll_back=roll_back), Resumption
    ):
        assert chosen.save_id not in known
        known[chosen.save_id] = truth[chosen.save_id]
    sound = [100 - i for i, is_whole in enumerate(soundness) if is_whole]
    assert chosen.step == (sound[roll_back] if roll_back < len(sound) else None)
