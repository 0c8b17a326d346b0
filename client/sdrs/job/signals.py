"""SIGTERM and SIGUSR1 warn of a preemption; SIGUSR2 has all threads' stacks written to stderr."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

WARNINGS = (signal.SIGTERM, signal.SIGUSR1)
_STDERR = 2

_installed: Signals | None = None


class Signals:
    """``warn`` is called in the middle of anything that the main thread does: it must take no lock.

    A handler that was there before is called as well. One that was not leaves the process alive, so that it can save.
    """

    def __init__(self, warn: Callable[[], None]) -> None:
        self._warn = warn
        self._before: dict[int, Any] = {}

    def install(self) -> bool:
        """Whether they are there now: Python takes handlers from the main thread only."""
        global _installed
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in WARNINGS:
            self._before[number] = signal.signal(number, self._handle)
        if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            faulthandler.register(signal.SIGUSR2, file=_STDERR, all_threads=True, chain=False)
        _installed = self
        return True

    def remove(self) -> None:
        """Only what is still ours: somebody may have put a handler of their own in front of it."""
        global _installed
        if _installed is self:
            _installed = None
        for number, before in self._before.items():
            if threading.current_thread() is threading.main_thread() and signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._warn()
        before = self._before.get(number)
        if callable(before):
            before(number, frame)


def _leave_children_alone() -> None:
    # DataLoader workers and pools are ended by SIGTERM: in a child it means what it meant before.
    if _installed:
        _installed.remove()


os.register_at_fork(after_in_child=_leave_children_alone)
