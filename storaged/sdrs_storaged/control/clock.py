"""Time comes in through here, so that tests can move it. It decides availability only, never safety (I8)."""

from __future__ import annotations

import time


class Clock:
    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def unix_seconds(self) -> float:
        return time.time()

    def monotonic_seconds(self) -> float:
        return time.monotonic()
