"""Why to save now. Times come in; no clock and no lock in here."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    WARNED = "warned"
    INTERVAL = "interval"


class Causes:
    def __init__(self, interval_seconds: float, grace_seconds: float, now: float) -> None:
        self.interval_seconds = interval_seconds
        self._grace_seconds = grace_seconds
        self._saved_at = now
        self._warned_at: float | None = None
        self._is_warning_open = False
        # How far the last one was told: the same orders are read again and again.
        self._told: dict[object, int] = {}

    def warn(self, now: float) -> bool:
        """Whether it is news. One preemption is told by several ways (a signal, perhaps twice, orders, other ranks),
        and counts once. Who is still there after the grace was not preempted: a warning then is another one.
        """
        if self._warned_at is not None and now - self._warned_at <= self._grace_seconds:
            return False
        self._warned_at = now
        self._is_warning_open = True
        return True

    def hear(self, teller: object, mark: int, now: float) -> bool:
        """``teller`` says again and again that there was a warning, and by ``mark`` which one; whether it is news."""
        if self._told.get(teller) == mark:
            return False
        self._told[teller] = mark
        return self.warn(now)

    def is_warned(self, now: float) -> bool:
        """Whether a warning is so fresh that everything happens soon."""
        return self._warned_at is not None and now - self._warned_at <= self._grace_seconds

    def due(self, now: float) -> Cause | None:
        if self._is_warning_open:
            return Cause.WARNED
        if self.interval_seconds > 0 and now - self._saved_at >= self.interval_seconds:
            return Cause.INTERVAL
        return None

    def saved(self, now: float) -> None:
        """A save begins, whoever wanted it: the next interval counts from here."""
        self._saved_at = now

    def settle(self, cause: Cause, now: float) -> None:
        """It was said that this is the time to save."""
        self.saved(now)
        if cause is Cause.WARNED:
            self._is_warning_open = False
