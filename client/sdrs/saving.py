"""The handle of one save under way."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass

from sdrs import forks
from sdrs.views import Report
from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.errors import DeadlineExceededError, RefusedError, SaveFailedError, SaveSkippedError, UnsupportedError
from sdrs_core.levels import Level, parse_level

# How often a commit at less than what was waited for is looked at again.
FIRST_LOOK_SECONDS = 0.1
MAX_LOOK_SECONDS = 2.0


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
        look_again: Callable[[Checkpoint], Checkpoint] | None = None,
    ) -> None:
        self.job = job
        self.step = step
        self.outcome: Future[Checkpoint] = Future()
        self.outcome.set_running_or_notify_cancel()  # a save that is under way cannot be cancelled
        self._promised_level = promised_level
        self._look_again = look_again
        self._report = report
        self._total_bytes = total_bytes
        self._sent_bytes = 0
        self._lock = threading.Lock()
        self._ranks_in = ""
        self._is_seen = False
        self._is_skipped = False
        self._generation = forks.generation()

    def wait(self, level: str | Level | None = None, timeout: float | None = None) -> Checkpoint:
        """The committed checkpoint; raises what went wrong. After a timeout it can be waited for again.

        A commit is at the level that the pool promises (P6), so waiting for less waits for the same. Only a pool that
        allows it commits at less while nodes are missing; then waiting for ``level`` waits until repair has raised it.
        """
        self.check_level(level)
        self._check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        wait_for([self.outcome], timeout)
        return self.settle(timeout, level, deadline)

    def settle(
        self, timeout: float | None, level: str | Level | None = None, deadline: float | None = None
    ) -> Checkpoint:
        """The outcome after a wait of ``timeout`` seconds, once it has reached ``level``."""
        if not self.outcome.done():
            raise DeadlineExceededError(
                f"{self} is not committed after {timeout} s{self._ranks_in}: it goes on, and can be waited for again"
            )
        self._is_seen = True
        checkpoint = self.outcome.result()
        return checkpoint if level is None else self._reach(parse_level(level), checkpoint, timeout, deadline)

    def _reach(
        self, wanted: Level, checkpoint: Checkpoint, timeout: float | None, deadline: float | None
    ) -> Checkpoint:
        # I6: less than what was waited for is never returned as if it were that.
        pause_seconds = FIRST_LOOK_SECONDS
        while checkpoint.level < wanted:
            if not checkpoint.state.is_readable or self._look_again is None:
                raise SaveFailedError(
                    f"{self} is {checkpoint.state} and reached {checkpoint.level}, so {wanted} is never reached"
                )
            left_seconds = math.inf if deadline is None else deadline - time.monotonic()
            if left_seconds <= 0:
                raise DeadlineExceededError(
                    f"{self} is committed at {checkpoint.level}, and not at {wanted} after {timeout} s: its pool lacks "
                    "nodes; it is raised once they are there, and can be waited for again"
                )
            time.sleep(min(pause_seconds, left_seconds))
            pause_seconds = min(2 * pause_seconds, MAX_LOOK_SECONDS)
            checkpoint = self._look_again(checkpoint)
        return checkpoint

    @property
    def skipped(self) -> bool:
        """Whether it was not begun, because too many saves were under way and the policy is to skip."""
        return self._is_skipped

    def done(self) -> bool:
        """Whether it is committed, has failed, or was skipped."""
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
        if not self.outcome.done():
            state = "under way"
        elif self._is_skipped:
            state = "skipped"
        else:
            state = "failed" if self.outcome.exception() else "committed"
        return f"<Saving {self}: {state}>"

    # For the threads that carry the save out.

    @property
    def is_seen(self) -> bool:
        return self._is_seen

    def mark_seen(self) -> None:
        self._is_seen = True

    def skip(self, why: str) -> None:
        self._is_skipped = self._is_seen = True
        self.outcome.set_exception(SaveSkippedError(f"{self} was skipped: {why}"))

    def set_sent(self, size_bytes: int) -> None:
        """As a daemon tells it."""
        if size_bytes != self._sent_bytes:
            self._set_sent(lambda before: size_bytes)

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
