"""How fast work in the background goes: within a limit, and out of the way of saves.

Repair and scrubbing share disks, network and processors with saves that somebody waits for. While such a save is under
way on this node, they work a quarter of the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sdrs_core.errors import UnavailableError

# For each second of work so many of rest, while somebody's save is under way.
REST_RATIO = 3.0
_LONGEST_REST_SECONDS = 0.5
# Peers give up on who takes nothing for longer: a limit that would need more is not kept quite.
_LONGEST_PAUSE_SECONDS = 10.0
# A new limit is heard of after a nap.
_LONGEST_NAP_SECONDS = 1.0


class Pace:
    """Of one transfer, in one thread: ``spent`` after each piece of it, which waits as long as is needed."""

    def __init__(
        self,
        max_bytes_per_second: int,
        is_busy: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        processor_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """``max_bytes_per_second``: 0 for no limit. ``is_busy``: whether a save is under way here."""
        self._max_bytes_per_second = max_bytes_per_second
        self._is_busy = is_busy
        self._clock = clock
        self._processor_clock = processor_clock
        self._sleep = sleep
        self._resumed = self._due = clock()
        self._waited_seconds = 0.0
        self._is_changed = False
        self._ended_because = ""
        self.spent_bytes = 0

    def set_limit(self, max_bytes_per_second: int) -> None:
        """From now on; from any thread. What was waited for because of the old one is not owed any more."""
        if max_bytes_per_second != self._max_bytes_per_second:
            self._max_bytes_per_second = max_bytes_per_second
            self._is_changed = True

    def end(self, why: str) -> None:
        """From any thread: whoever works at this pace hears of it after the next piece."""
        self._ended_because = why
        self._is_changed = True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for a peer, who perhaps rests itself: of that only the processor's time is work."""
        began, worked = self._clock(), self._processor_clock()
        try:
            yield
        finally:
            self._waited_seconds += (self._clock() - began) - (self._processor_clock() - worked)

    def spent(self, size_bytes: int) -> None:
        self.spent_bytes += size_bytes
        now = self._clock()
        pause_seconds = 0.0
        if self._is_busy():
            worked_seconds = now - self._resumed - self._waited_seconds
            pause_seconds = min(REST_RATIO * worked_seconds, _LONGEST_REST_SECONDS)
        limit = self._max_bytes_per_second
        if self._is_changed:
            self._is_changed, self._due = False, now
        if limit:
            # A slow piece is not made up for by a burst.
            self._due = max(self._due, self._resumed) + size_bytes / limit
            pause_seconds = max(pause_seconds, min(self._due - now, _LONGEST_PAUSE_SECONDS))
        while pause_seconds > 0 and not self._is_changed:
            self._sleep(min(pause_seconds, _LONGEST_NAP_SECONDS))
            pause_seconds -= _LONGEST_NAP_SECONDS
        if self._ended_because:
            raise UnavailableError(self._ended_because)
        self._resumed, self._waited_seconds = self._clock(), 0.0


class Background:
    """Paces for the work of one node in the background, until that shuts down."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._stopping = threading.Event()

    def pace(self, max_bytes_per_second: int = 0) -> Pace:
        return Pace(max_bytes_per_second, self._is_busy, sleep=self._rest)

    def stop(self) -> None:
        """Who is at work hears of it at its next rest: a blob of hours must not hold up a shutdown."""
        self._stopping.set()

    def check_running(self) -> None:
        if self._stopping.is_set():
            raise UnavailableError("this node shuts down: try again")

    def _rest(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self.check_running()
