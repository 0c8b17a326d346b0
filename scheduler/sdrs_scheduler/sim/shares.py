"""Who has used how much of late, as the scheduler counts it (``sdrs_scheduler.usage``), kept as jobs come and go."""

from __future__ import annotations

from collections import Counter

from sdrs_scheduler.usage import HALF_LIFE_SECONDS


class UserShares:
    def __init__(self) -> None:
        self._gpus: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        self._counted_until = 0.0

    def hold(self, user: str, gpus: int, now: float) -> None:
        """So many GPUs more from now on; fewer, if negative."""
        self.used_at(now)
        self._gpus[user] += gpus

    def used_at(self, now: float) -> dict[str, float]:
        """GPU-seconds by user."""
        seconds = now - self._counted_until
        if seconds > 0:
            decay = 0.5 ** (seconds / HALF_LIFE_SECONDS)
            for user, gpus in self._gpus.items():
                self._used[user] = self._used.get(user, 0.0) * decay + gpus * seconds
            self._counted_until = now
        return self._used
