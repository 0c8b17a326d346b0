"""What is posted to be read soon: signs of life, orders. The last value under each key, and its age.

In memory only, and lost when the controller changes: whoever posts, posts again. Everything is bounded (I10); what was
posted longest ago goes first, and what is too old to mean anything goes anyway.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from sdrs_core.errors import InvalidArgumentError
from sdrs_proto.limits import MAX_NOTE_BYTES, MAX_NOTE_KEY_CHARS
from sdrs_storaged.control.clock import Clock

MAX_NOTES = 65_536
MAX_TOTAL_BYTES = 64 << 20
MAX_AGE_SECONDS = 3600.0
# A note's own bookkeeping, about.
_NOTE_BYTES = 300
_MAX_PAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Note:
    key: str
    value: bytes
    age_seconds: float


@dataclass(frozen=True, slots=True)
class _Posted:
    value: bytes
    posted_seconds: float

    def size_bytes(self, key: str) -> int:
        return _NOTE_BYTES + len(key) + len(self.value)


class Notes:
    def __init__(self, clock: Clock, *, max_notes: int = MAX_NOTES, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._clock = clock
        self._max_notes = max_notes
        self._max_total_bytes = max_total_bytes
        # In the order in which they were posted last.
        self._posted: OrderedDict[str, _Posted] = OrderedDict()
        # In the order of keys: each job asks for its own few, often.
        self._keys: list[str] = []
        self._total_bytes = 0

    def post(self, key: str, value: bytes) -> None:
        if not key or len(key) > MAX_NOTE_KEY_CHARS or not key.isprintable():
            raise InvalidArgumentError(
                f"{key[:80]!r} is no key of a note: use 1 to {MAX_NOTE_KEY_CHARS} printable characters"
            )
        if len(value) > MAX_NOTE_BYTES:
            raise InvalidArgumentError(f"the note {key} has {len(value)} bytes, {MAX_NOTE_BYTES} are allowed")
        self._drop(key)
        posted = self._posted[key] = _Posted(value, self._clock.monotonic_seconds())
        self._total_bytes += posted.size_bytes(key)
        insort(self._keys, key)
        self._make_room()

    def get(self, key: str) -> Note | None:
        posted = self._posted.get(key)
        return self._note(key, posted) if posted else None

    def page(self, prefix: str, *, after: str, limit: int) -> tuple[list[Note], bool]:
        """In the order of keys, as many as fit into an answer, and whether there are more."""
        self._make_room()
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        found: list[Note] = []
        size_bytes = 0
        for key in islice(self._keys, start, None):
            if not key.startswith(prefix):
                return found, False
            posted = self._posted[key]
            size_bytes += posted.size_bytes(key)
            if len(found) == limit or (found and size_bytes > _MAX_PAGE_BYTES):
                return found, True
            found.append(self._note(key, posted))
        return found, False

    def _note(self, key: str, posted: _Posted) -> Note:
        return Note(key, posted.value, self._clock.monotonic_seconds() - posted.posted_seconds)

    def _make_room(self) -> None:
        oldest_seconds = self._clock.monotonic_seconds() - MAX_AGE_SECONDS
        while self._posted:
            key, posted = next(iter(self._posted.items()))
            is_over = len(self._posted) > self._max_notes or self._total_bytes > self._max_total_bytes
            if not is_over and posted.posted_seconds >= oldest_seconds:
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        posted = self._posted.pop(key, None)
        if posted:
            self._total_bytes -= posted.size_bytes(key)
            del self._keys[bisect_left(self._keys, key)]
