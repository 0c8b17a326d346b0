"""When stored data is looked at again, and how fast. No clock, socket or disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# Time that nobody used is not made up for: this much of it at most.
_MAX_BURST_SECONDS = 1.0


class Depth(StrEnum):
    """Shallow: whether everything is there, by headers and footers. Deep: every block, and parity computed anew."""

    SHALLOW = "shallow"
    DEEP = "deep"


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often each is due; 0: never by itself."""

    shallow_interval_seconds: float = 0.0
    deep_interval_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Due:
    depth: Depth
    in_seconds: float


def next_due(schedule: Schedule, *, shallow_unix_ms: int, deep_unix_ms: int, now_unix_ms: int) -> Due | None:
    """What is due next, and in how long (0: now), from when each went through last; None: nothing ever is.

    A deep one sees all that a shallow one does, so it goes first when both are due.
    """
    intervals = {
        Depth.DEEP: (schedule.deep_interval_seconds, deep_unix_ms),
        Depth.SHALLOW: (schedule.shallow_interval_seconds, max(shallow_unix_ms, deep_unix_ms)),
    }
    dues = []
    for depth, (interval_seconds, last_unix_ms) in intervals.items():
        if interval_seconds:
            left_seconds = max(0.0, interval_seconds - (now_unix_ms - last_unix_ms) / 1000)
            # I8: a time that far ahead is of a clock that was put back since, and says nothing.
            dues.append(Due(depth, left_seconds if left_seconds <= 2 * interval_seconds else 0.0))
    return min(dues, key=lambda due: due.in_seconds, default=None)


class Pace:
    """So many bytes a second on average. ``bytes_per_second`` 0: as fast as it goes."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._paid_until_seconds = 0.0

    def spend(self, size_bytes: int, now_seconds: float) -> float:
        """These bytes were read by now: for how many seconds nothing should be read."""
        if not self._bytes_per_second:
            return 0.0
        begin_seconds = max(self._paid_until_seconds, now_seconds - _MAX_BURST_SECONDS)
        self._paid_until_seconds = begin_seconds + size_bytes / self._bytes_per_second
        return max(0.0, self._paid_until_seconds - now_seconds)
