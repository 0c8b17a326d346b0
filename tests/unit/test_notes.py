"""Notes: the last value and its age, in memory, and never more of them than agreed."""

from __future__ import annotations

import pytest

from sdrs_core.errors import InvalidArgumentError
from sdrs_proto.limits import MAX_NOTE_BYTES, MAX_NOTE_KEY_CHARS
from sdrs_storaged.control.notes import MAX_AGE_SECONDS, Note, Notes
from tests.support.control import ManualClock


def keys(notes: Notes, prefix: str = "") -> list[str]:
    found, more = notes.page(prefix, after="", limit=1000)
    assert not more
    return [note.key for note in found]


def test_the_last_value_is_told_with_its_age() -> None:
    clock = ManualClock()
    notes = Notes(clock)
    assert notes.get("beat/x/1/0") is None
    notes.post("beat/x/1/0", b"old")
    clock.advance(5)
    notes.post("beat/x/1/0", b"new")
    clock.advance(2)
    assert notes.get("beat/x/1/0") == Note("beat/x/1/0", b"new", 2.0)


def test_notes_are_listed_by_prefix_in_pages() -> None:
    notes = Notes(ManualClock())
    for rank in range(7):
        notes.post(f"beat/x/1/{rank}", b"")
    notes.post("beat/y/1/0", b"")
    first, more = notes.page("beat/x/", after="", limit=5)
    assert more
    rest, more = notes.page("beat/x/", after=first[-1].key, limit=5)
    assert not more
    assert [note.key for note in first + rest] == [f"beat/x/1/{rank}" for rank in range(7)]


def test_a_page_of_large_notes_fits_into_an_answer() -> None:
    notes = Notes(ManualClock())
    for number in range(600):
        notes.post(f"note/{number:04d}", bytes(MAX_NOTE_BYTES))
    found, more = notes.page("", after="", limit=1000)
    assert more
    assert sum(len(note.value) for note in found) < 6 << 20


def test_what_was_posted_longest_ago_goes_first_when_there_are_too_many() -> None:
    notes = Notes(ManualClock(), max_notes=3)
    for key in ("a", "b", "c", "a", "d"):
        notes.post(key, b"")
    assert keys(notes) == ["a", "c", "d"]


def test_bytes_are_bounded_too_and_posting_again_counts_once() -> None:
    notes = Notes(ManualClock(), max_total_bytes=50_000)
    for _ in range(100):
        notes.post("same", bytes(10_000))
    notes.post("other", bytes(10_000))
    assert keys(notes) == ["other", "same"]
    for number in range(10):
        notes.post(f"more-{number}", bytes(10_000))
    assert keys(notes) == ["more-6", "more-7", "more-8", "more-9"]


def test_what_is_too_old_to_mean_anything_goes() -> None:
    clock = ManualClock()
    notes = Notes(clock)
    notes.post("old", b"")
    clock.advance(MAX_AGE_SECONDS - 1)
    notes.post("new", b"")
    assert keys(notes) == ["new", "old"]
    clock.advance(2)
    assert keys(notes) == ["new"]


@pytest.mark.parametrize("key", ["", "x" * (MAX_NOTE_KEY_CHARS + 1), "a\0b"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no key of a note"):
        Notes(ManualClock()).post(key, b"")


def test_a_note_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=f"{MAX_NOTE_BYTES} are allowed"):
        Notes(ManualClock()).post("a", bytes(MAX_NOTE_BYTES + 1))
