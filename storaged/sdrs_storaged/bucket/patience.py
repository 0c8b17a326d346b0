"""How long a store is waited for, and how often something is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sdrs_core.backoff import backoff
from sdrs_core.errors import UnavailableError

T = TypeVar("T")

RETRY_AFTER = "retry_after_seconds"
# A store that wants more is tried earlier: whoever called may have other things to do.
_LONGEST_WAIT_SECONDS = 30.0
# A pause is cut into naps, so that whoever ends it is heard.
_NAP_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Patience:
    """``quick_tries`` are the S3 client's own for each request; around them come ``tries`` with longer pauses."""

    connect_seconds: float = 10.0
    read_seconds: float = 60.0
    quick_tries: int = 3
    tries: int = 5
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 10.0

    def persist(self, action: Callable[[], T], check: Callable[[], None] = lambda: None) -> T:
        """What ``action`` returns, tried again while the store is out of reach. ``check`` may end the pauses."""
        failures = self.failures(check)
        while True:
            try:
                return action()
            except UnavailableError as error:
                failures.count(error)

    def failures(self, check: Callable[[], None] = lambda: None) -> Failures:
        return Failures(self, check)


class Failures:
    """Those of one thing, one after the other."""

    def __init__(self, patience: Patience, check: Callable[[], None]) -> None:
        self._patience = patience
        self._check = check
        self.forget()

    def forget(self) -> None:
        """It got on: what failed before does not count any more."""
        self._count = 0
        self._pauses = backoff(self._patience.first_pause_seconds, self._patience.longest_pause_seconds)

    def count(self, error: UnavailableError) -> None:
        """Pauses, or raises it again: it was one too many."""
        self._count += 1
        if self._count >= self._patience.tries:
            raise error
        pause_seconds = max(next(self._pauses), min(float(error.facts.get(RETRY_AFTER, 0)), _LONGEST_WAIT_SECONDS))
        until = time.monotonic() + pause_seconds
        self._check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _NAP_SECONDS))
            self._check()
