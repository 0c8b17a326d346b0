"""How long a holder is waited for before another one is asked as well.

A fixed time would be too long where blocks come in a millisecond, and too short where a slow wire is all there is. So
it is a multiple of what openings and blocks took of late in this process.
"""

from __future__ import annotations

import threading

# A busy machine lets a thread stand still for about so long.
LEAST_SECONDS = 0.15
TIMES_TYPICAL = 4.0
_NEW_SHARE = 0.1


class Pace:
    """Used by all readers of a process at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening_seconds = 0.0
        self._block_seconds = 0.0

    @property
    def opening_patience_seconds(self) -> float:
        return _patience(self._opening_seconds)

    @property
    def block_patience_seconds(self) -> float:
        return _patience(self._block_seconds)

    def note_opening(self, seconds: float) -> None:
        with self._lock:
            self._opening_seconds = _blend(self._opening_seconds, seconds)

    def note_block(self, seconds: float) -> None:
        with self._lock:
            self._block_seconds = _blend(self._block_seconds, seconds)


def _patience(typical_seconds: float) -> float:
    return max(LEAST_SECONDS, TIMES_TYPICAL * typical_seconds)


def _blend(typical_seconds: float, seconds: float) -> float:
    # What is late counts as just late: a node that stood still for a minute says nothing about the others.
    return (1 - _NEW_SHARE) * typical_seconds + _NEW_SHARE * min(seconds, _patience(typical_seconds))
