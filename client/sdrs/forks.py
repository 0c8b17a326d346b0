"""What a fork must not break: DataLoader workers fork, whatever our threads are doing at that moment.

A child that uses gRPC after its parent forked in the middle of a gRPC call crashes inside gRPC. So calls go through a
gate: a fork closes it, interrupts long polls, and waits a little for the short calls. Nothing of the parent is used in
the child: whoever keeps channels, threads or locks keeps them per ``generation()``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Forks are few, and a crash in the child is worse than this pause. What takes longer (a bulk stream) is not waited for.
MAX_PAUSE_SECONDS = 2.0

log = logging.getLogger("sdrs")


class Call:
    """One call that is under way."""

    def __init__(self, gate: ForkGate) -> None:
        self._gate = gate
        self._cancel: Callable[[], object] | None = None

    def on_fork(self, cancel: Callable[[], object]) -> None:
        """Call ``cancel`` if the process is about to fork; the caller then asks again."""
        self._cancel = cancel
        if self._gate.is_forking:
            cancel()

    def interrupt(self) -> None:
        if self._cancel:
            self._cancel()


class ForkGate:
    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._calls: set[Call] = set()
        self._forks = 0

    @property
    def is_forking(self) -> bool:
        return self._forks > 0

    @contextmanager
    def call(self) -> Iterator[Call]:
        call = self.enter()
        try:
            yield call
        finally:
            self.leave(call)

    def enter(self) -> Call:
        call = Call(self)
        with self._changed:
            self._changed.wait_for(lambda: not self.is_forking)
            self._calls.add(call)
        return call

    def leave(self, call: Call) -> None:
        with self._changed:
            self._calls.discard(call)
            self._changed.notify_all()

    def before_fork(self) -> None:
        with self._changed:
            self._forks += 1
            calls = list(self._calls)
        for call in calls:
            call.interrupt()
        with self._changed:
            if not self._changed.wait_for(lambda: not self._calls, MAX_PAUSE_SECONDS):
                log.warning("this process forks in the middle of a transfer: do not use sdrs in the new process")

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        # The lock may have been held by a thread that does not exist here.
        self._reset()


GATE = ForkGate()
_generation = 0


def generation() -> int:
    """Differs between a process and everything it was forked from; a process id may come again."""
    return _generation


def _next_generation() -> None:
    global _generation
    _generation += 1
    GATE.after_fork_in_child()


os.register_at_fork(before=GATE.before_fork, after_in_parent=GATE.after_fork_in_parent, after_in_child=_next_generation)
