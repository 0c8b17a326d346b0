"""Breaking off what waits for a peer: a frozen one would otherwise be waited for until its deadline.

Threads that are blocked in a call or on a socket say how they can be woken; whoever learns that the wait is in vain
cuts them all off at once, and they raise its reason instead of what the broken call or socket says.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sdrs_core.errors import SdrsError


class Cutoff:
    """One for each try: what was cut off once stays cut off."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cause: SdrsError | None = None
        self._breaks: dict[object, Callable[[], object]] = {}

    def cut(self, cause: SdrsError) -> None:
        """Break off everything under way and everything that begins later. The first cause is the one that is told."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause
            # Under the lock, which also guards the end of each wait: no socket is closed, and its number given to
            # another, between here and its shutdown.
            for breaks in self._breaks.values():
                breaks()

    @contextmanager
    def breaking(self, breaks: Callable[[], object]) -> Iterator[None]:
        """While inside, ``breaks`` is what a cut calls: it wakes the thread that waits in here, and never blocks."""
        key = object()
        with self._lock:
            if self._cause is not None:
                breaks()  # it may have begun already
            self._raise_if_cut(None)
            self._breaks[key] = breaks
        try:
            yield
        except Exception as error:
            self._raise_if_cut(error)
            raise
        finally:
            with self._lock:
                del self._breaks[key]

    def _raise_if_cut(self, error: Exception | None) -> None:
        if self._cause is not None:
            # Several threads raise it: each its own, with the traceback of its own.
            raise copy.copy(self._cause) from error
