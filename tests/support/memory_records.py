"""The twin of ``cluster.records`` in memory: compare-and-swap, and notes whose ages follow a clock that tests turn."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from sdrs.records import Changes, Note, Record
from sdrs_core.errors import UnavailableError


class MemoryRecords:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._records: dict[str, Record] = {}
        self._notes: dict[str, tuple[bytes, float]] = {}
        self._revision = 0
        self._last_changes: dict[str, int] = {}
        # How often everything below a prefix was read.
        self.ranged: Counter[str] = Counter()
        self._changed = threading.Condition()
        self.is_reachable = True
        # Told of each change before it is made: tests look, refuse or raise.
        self.before_change: Callable[[Mapping[str, int], Mapping[str, bytes]], None] = lambda compare, put: None

    def _answer(self) -> None:
        if not self.is_reachable:
            raise UnavailableError("the controller does not answer", peer="memory")

    def get(self, key: str) -> Record | None:
        self._answer()
        return self._records.get(key)

    def range(self, prefix: str) -> Iterator[Record]:
        self._answer()
        self.ranged[prefix] += 1
        with self._changed:
            found = [record for key, record in sorted(self._records.items()) if key.startswith(prefix)]
        yield from found

    def change(
        self, *, compare: Mapping[str, int], put: Mapping[str, bytes] = {}, delete: Sequence[str] = ()
    ) -> int | None:
        self._answer()
        self.before_change(compare, put)
        with self._changed:
            for key, revision in compare.items():
                if (self._records[key].revision if key in self._records else 0) != revision:
                    return None
            self._revision += 1
            for key, value in put.items():
                self._records[key] = Record(key, value, self._revision)
            for key in delete:
                self._records.pop(key, None)
            self._last_changes.update(dict.fromkeys([*put, *delete], self._revision))
            self._changed.notify_all()
            return self._revision

    def wait(self, prefix: str, after_revision: int, timeout_seconds: float) -> int:
        self._answer()
        assert after_revision >= 0, "no message carries it"
        with self._changed:
            self._changed.wait_for(lambda: self._newest(prefix) > after_revision, timeout_seconds)
            return self._newest(prefix)

    def _newest(self, prefix: str) -> int:
        return max((record.revision for key, record in self._records.items() if key.startswith(prefix)), default=0)

    def changes(self, prefix: str, after_revision: int) -> Changes:
        self._answer()
        with self._changed:
            since = {
                key: revision
                for key, revision in self._last_changes.items()
                if key.startswith(prefix) and revision > after_revision
            }
            return Changes(max(since.values(), default=after_revision), since)

    def post(self, key: str, value: bytes, answer: str = "") -> Note | None:
        self._answer()
        self._notes[key] = (value, self._clock())
        return self._note(answer) if answer in self._notes else None

    def notes(self, prefix: str) -> list[Note]:
        self._answer()
        return [self._note(key) for key in sorted(self._notes) if key.startswith(prefix)]

    def _note(self, key: str) -> Note:
        value, posted = self._notes[key]
        return Note(key, value, self._clock() - posted)
