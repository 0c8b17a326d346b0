"""How one attempt spends its time: it restores, then works and saves in turn, until its work is done.

Nothing is simulated step by step. How far the attempt is at any instant follows from when it began, so that a week of
training costs the simulator as much as a minute does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# Times are sums of decimals: an instant that is due counts as due.
_SLACK_SECONDS = 1e-6


def working_seconds(work: float, interval_seconds: float, save_seconds: float) -> float:
    """How long so much work takes, with the saves in between."""
    # None at the very end: what is done needs no checkpoint to go on from.
    saves = math.ceil((work - _SLACK_SECONDS) / interval_seconds) - 1 if work > 0 else 0
    return work + max(0, saves) * save_seconds


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of an attempt, by what they went into; together they are its length."""

    restoring: float
    working: float
    saving: float


@dataclass(slots=True)
class Timeline:
    """A save holds the work up for ``save_seconds``, and is durable when that is over."""

    began: float
    restore_seconds: float
    # What it starts from, and where it ends, in seconds of undisturbed work.
    from_work: float
    whole_work: float
    interval_seconds: float  # of work between two saves; infinite: it never saves
    save_seconds: float
    ends: float = field(init=False)

    def __post_init__(self) -> None:
        work = working_seconds(self.whole_work - self.from_work, self.interval_seconds, self.save_seconds)
        self.ends = self.began + self.restore_seconds + work

    def saves_at(self, now: float) -> int:
        """How many of its saves are durable."""
        return self._phase(now)[0]

    def saved_at(self, now: float) -> float:
        """The work that its newest durable checkpoint holds."""
        saves = self._phase(now)[0]
        return self.from_work + saves * self.interval_seconds if saves else self.from_work

    def worked_at(self, now: float) -> float:
        saves, working, _saving = self._phase(now)
        done = saves * self.interval_seconds if saves else 0.0
        return min(self.whole_work, self.from_work + done + working)

    def unsaved_at(self, now: float) -> float:
        """The work since its newest durable checkpoint."""
        # As ``_phase`` has it; asked for all that runs, at every decision.
        active = now - self.began - self.restore_seconds
        if active <= self.interval_seconds:
            return max(0.0, active)
        return self._phase(now)[1]

    def saving_left_at(self, now: float) -> float:
        """How long a checkpoint of now would take; one under way is waited for."""
        _saves, _working, saving = self._phase(now)
        return self.save_seconds - saving

    def spent_at(self, now: float) -> Spent:
        restoring = min(self.restore_seconds, max(0.0, now - self.began))
        working = self.worked_at(now) - self.from_work
        return Spent(restoring, working, max(0.0, now - self.began - restoring - working))

    def _phase(self, now: float) -> tuple[int, float, float]:
        """Durable saves, the work since, and how long a save is under way."""
        active = now - self.began - self.restore_seconds
        if active <= 0:
            return 0, 0.0, 0.0
        if math.isinf(self.interval_seconds):
            return 0, active, 0.0
        cycle = self.interval_seconds + self.save_seconds
        saves = int((active + _SLACK_SECONDS) // cycle)
        into = max(0.0, active - saves * cycle)
        working = min(into, self.interval_seconds)
        return saves, working, into - working
