"""What takes time or may not answer is done in a bounded pool of threads; its outcome comes back to the loop's thread.

At most one errand of a key is under way: a run is never launched and killed at the same time.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from sdrs_scheduler.logs import get_log

log = get_log("errands")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    value: T | None = None
    error: Exception | None = None


class Errands:
    def __init__(self, worker_count: int) -> None:
        """``worker_count`` 0: everything is done at once, by the caller (for tests)."""
        self._pool = ThreadPoolExecutor(worker_count, "errand") if worker_count else None
        self._busy: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        # Called when an outcome waits to be collected.
        self.on_done: Callable[[], None] = lambda: None

    def is_busy(self, key: str) -> bool:
        """From ``run`` until its outcome was collected."""
        return key in self._busy

    def run(self, key: str, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> bool:
        """Do ``work``, then tell ``done`` from within ``collect``. False: one of this key is under way."""
        if key in self._busy:
            return False
        self._busy.add(key)

        def errand() -> None:
            try:
                outcome = Outcome(value=work())
            except Exception as error:
                outcome = Outcome(error=error)
            self._done.put((key, lambda: done(outcome)))
            self.on_done()

        if self._pool is None:
            errand()
        else:
            self._pool.submit(errand)
        return True

    def collect(self) -> None:
        """Tell of all that is done by now."""
        while True:
            try:
                key, tell = self._done.get_nowait()
            except queue.Empty:
                return
            self._busy.discard(key)
            tell()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
