"""Pauses between tries, the same for clients and daemons."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 1.0


def backoff(first_seconds: float = FIRST_PAUSE_SECONDS, max_seconds: float = MAX_PAUSE_SECONDS) -> Iterator[float]:
    """Ever longer pauses, each cut by chance: a thousand ranks must not come back in the same instant."""
    pause_seconds = first_seconds
    while True:
        yield pause_seconds * random.uniform(0.5, 1.0)
        pause_seconds = min(2 * pause_seconds, max_seconds)
