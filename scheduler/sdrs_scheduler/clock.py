"""Time comes in through here, so that tests can turn it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def unix_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
