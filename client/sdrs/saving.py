"""The handle of one save under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

from sdrs import forks
from sdrs.views import Report
from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.errors import DeadlineExceededError, RefusedError, UnsupportedError
from sdrs_core.levels import Level, parse_level


@dataclass(frozen=True, slots=True)
class Progress:
    """``sent_bytes`` starts again when another node has to be tried; ``level`` is NONE until the commit."""

    sent_bytes: int
    total_bytes: int
    level: Level


class Saving:
    """What ``save`` returns. A failure is raised by ``wait``, or else by the next ``save`` or ``close`` (I6)."""

    def __init__(
        self,
        job: str,
        step: int,
        total_bytes: int,
        promised_level: Callable[[], Level],
        report: Report | None = None,
    ) -> None:
        self.job = job
        self.step = step
        self.outcome: Future[Checkpoint] = Future()
        self.outcome.set_running_or_notify_cancel()  # a save that is under way cannot be cancelled
        self._promised_level = promised_level
        self._report = report
        self._total_bytes = total_bytes
        self._sent_bytes = 0
        self._lock = threading.Lock()
        self._ranks_in = ""
        self._is_seen = False
        self._generation = forks.generation()

    def wait(self, level: str | Level | None = None, timeout: float | None = None) -> Checkpoint:
        """The committed checkpoint; raises what went wrong. After a timeout it can be waited for again.

        A commit is at the level that the pool promises (P6), so waiting for less waits for the same.
        """
        self.check_level(level)
        self._check_process()
        wait_for([self.outcome], timeout)
        return self.settle(timeout)

    def settle(self, timeout: float | None) -> Checkpoint:
        """The outcome after a wait of ``timeout`` seconds."""
        if not self.outcome.done():
            raise DeadlineExceededError(
                f"{self} is not committed after {timeout} s{self._ranks_in}: it goes on, and can be waited for again"
            )
        self._is_seen = True
        return self.outcome.result()

    def done(self) -> bool:
        """Whether it is committed or has failed."""
        self._check_process()
        return self.outcome.done()

    def exception(self) -> BaseException | None:
        """What went wrong; None while under way and after success. Who asks has seen it: it is not raised again."""
        if not self.done():
            return None
        self._is_seen = True
        return self.outcome.exception()

    def progress(self) -> Progress:
        is_committed = self.done() and self.outcome.exception() is None
        level = self.outcome.result().level if is_committed else Level.NONE
        return Progress(self._sent_bytes, self._total_bytes, level)

    def check_level(self, level: str | Level | None) -> None:
        """UnsupportedError for a level that the save will never reach: waiting for it would not end."""
        if level is None:
            return
        wanted = parse_level(level)
        promised = self._promised_level() if wanted > Level.L1 else Level.L1
        if wanted > promised:
            raise UnsupportedError(
                f"{self} goes to a pool that promises {promised}, so {wanted} is never reached: wait for {promised}, "
                "or save to a pool of that level"
            )

    def _check_process(self) -> None:
        if self._generation != forks.generation():
            raise RefusedError(f"{self} belongs to the process that this one was forked from: wait for it there")

    def __str__(self) -> str:
        return f'step {self.step} of job "{self.job}"'

    def __repr__(self) -> str:
        state = "under way" if not self.outcome.done() else "failed" if self.outcome.exception() else "committed"
        return f"<Saving {self}: {state}>"

    # For the threads that carry the save out.

    @property
    def is_seen(self) -> bool:
        return self._is_seen

    def mark_seen(self) -> None:
        self._is_seen = True

    def add_sent(self, size_bytes: int) -> None:
        self._set_sent(lambda before: before + size_bytes)

    def restart(self) -> None:
        self._set_sent(lambda before: 0)

    def _set_sent(self, change: Callable[[int], int]) -> None:
        with self._lock:  # held while it is reported, so that the reports come in order
            self._sent_bytes = change(self._sent_bytes)
            if self._report:
                self._report(self._sent_bytes, self._total_bytes)

    def note_ranks(self, in_count: int, world_size: int) -> None:
        self._ranks_in = f" ({in_count} of {world_size} ranks are in)"
