"""What repair has done, has to do, and how fast it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sdrs_core.remedies import Urgency
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.jobs import Job, Survey

_WINDOW_SECONDS = 10.0
_MAX_MEASURED = 1000  # I10
# What only moves, to another node or into another form.
_MOVES = (Urgency.DRAIN, Urgency.SPREAD, Urgency.CONVERT, Urgency.BALANCE)


@dataclass(slots=True)
class RepairTotals:
    """As the last survey found, and what was done since this controller leads."""

    degraded_blobs: int = 0
    awaited_blobs: int = 0
    unavailable_count: int = 0
    waiting_blobs: int = 0
    waiting_bytes: int = 0
    # Of the waiting ones.
    moving_blobs: int = 0
    mirroring_blobs: int = 0
    done_blobs: int = 0
    done_bytes: int = 0
    # Of those, what was made since there was last nothing to do.
    wave_done_bytes: int = 0
    trimmed_blobs: int = 0
    failed_blobs: int = 0

    def found(self, survey: Survey, jobs: list[Job]) -> None:
        self.degraded_blobs = survey.degraded_blobs
        self.awaited_blobs = survey.awaited_blobs
        self.failed_blobs = len(survey.failing)
        self.waiting_blobs = len(jobs) + survey.left_out
        self.waiting_bytes = sum(job.size_bytes for job in jobs) + survey.left_out_bytes
        if not self.waiting_blobs:
            self.wave_done_bytes = 0
        self.moving_blobs = sum(survey.kinds[kind] for kind in _MOVES)
        self.mirroring_blobs = survey.kinds[Urgency.MIRROR]

    def finished(self, job: Job) -> None:
        """Well or not: it waits no more, or is found again."""
        self.waiting_blobs -= 1
        self.waiting_bytes -= job.size_bytes
        self.moving_blobs -= job.kind in _MOVES
        self.mirroring_blobs -= job.kind is Urgency.MIRROR

    def made(self, size_bytes: int) -> None:
        self.done_blobs += 1
        self.done_bytes += size_bytes
        self.wave_done_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class RepairProgress:
    waiting_blobs: int
    waiting_bytes: int
    done_blobs: int
    done_bytes: int
    wave_done_bytes: int
    failed_blobs: int
    awaited_blobs: int
    moving_blobs: int
    mirroring_blobs: int
    # Measured of late; 0 while nothing is made.
    bytes_per_second: int
    # Until all that waits is made, at that rate; 0: not known.
    remaining_seconds: int
    # What could not be repaired of late, in sentences, the newest last.
    failures: tuple[str, ...]


class Measured:
    """Something that is being made, as far as it is known to be."""

    def __init__(self, meter: Meter, now_seconds: float) -> None:
        self._meter = meter
        self._at_seconds = now_seconds
        self.made_bytes = 0
        # Of those, what is in fragments that are whole.
        self.whole_bytes = 0

    def reach(self, made_bytes: int) -> None:
        """Whoever lost what it had made begins again, and counts once it is beyond that."""
        if made_bytes > self.made_bytes:
            self._at_seconds = self._meter.add(self._at_seconds, made_bytes - self.made_bytes)
            self.made_bytes = made_bytes


class Meter:
    """Bytes a second, of what was made in the last seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._done: deque[tuple[float, float, int]] = deque(maxlen=_MAX_MEASURED)

    def begin(self) -> Measured:
        return Measured(self, self._clock.monotonic_seconds())

    def add(self, since_seconds: float, size_bytes: int) -> float:
        """So much was made since then; what the time is."""
        now_seconds = self._clock.monotonic_seconds()
        self._done.append((since_seconds, now_seconds, size_bytes))
        return now_seconds

    def bytes_per_second(self, *, is_busy: bool) -> int:
        """0 while nothing is made. What is not heard of for longer than the window is as fast as what was last."""
        now = self._clock.monotonic_seconds()
        recent = [one for one in self._done if now - one[1] < _WINDOW_SECONDS]
        if not recent and is_busy and self._done:
            recent = [self._done[-1]]
            now = recent[0][1]
        if not recent:
            return 0
        began_seconds = min(began for began, _, _ in recent)
        return int(sum(size_bytes for _, _, size_bytes in recent) / max(now - began_seconds, 0.001))
