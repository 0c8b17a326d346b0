"""Threads in virtual time: production code that blocks runs as it is, and waits without anybody's time passing.

A strand is a real thread, but only one of them runs at any moment, and only while the loop stands still for it: it is
handed the baton, and gives it back when it waits or ends. So nothing depends on the operating system's scheduler. Each
belongs to a process, stands still while that is paused, and is never heard of again once that is dead. What takes the
place of ``threading`` in production modules is made here too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, TypeVar

from tests.simulation.loop import VirtualLoop

T = TypeVar("T")


class EndedError(BaseException):
    """The world is over: who still waits unwinds, and does nothing more."""


class _Carrier:
    """An operating system's thread, for one strand after the other."""

    def __init__(self) -> None:
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.work: Callable[[], None] = lambda: None
        threading.Thread(target=self._carry, name="simulated", daemon=True).start()

    def _carry(self) -> None:
        while True:
            self.go.acquire()
            work, self.work = self.work, lambda: None
            work()
            del work
            self.back.release()


_idle: list[_Carrier] = []
# Who has the baton; None: the loop.
_running: Strand | None = None


class Strand:
    def __init__(self, strands: Strands, work: Callable[[], None]) -> None:
        self._strands = strands
        self._work = work
        self._context = copy_context()
        # Handles cannot be run in a context that is entered already.
        self._handles = self._context.copy()
        self._carrier: _Carrier | None = None
        self._is_due = True
        self._is_done = False
        self._is_ended = False

    def begin(self) -> None:
        self._carrier = _idle.pop() if _idle else _Carrier()
        self._carrier.work = self._run
        self._strands.parked[self] = None
        self._resume()

    def _run(self) -> None:
        try:
            self._context.run(self._work)
        except EndedError:
            pass
        except BaseException as error:
            self._strands.defect("a thread", error)
        self._is_done = True

    def _resume(self) -> None:
        """On the loop: until the strand waits again, or is over."""
        global _running
        carrier = self._carrier
        if carrier is None:
            return
        self._is_due = False
        before, _running = _running, self
        carrier.go.release()
        carrier.back.acquire()
        _running = before
        if self._is_done:
            self._carrier = None
            del self._strands.parked[self]
            _idle.append(carrier)

    def park(self) -> None:
        """In the strand itself: until somebody wakes it."""
        carrier = self._carrier
        assert carrier is not None
        if not self._is_ended:
            carrier.back.release()
            carrier.go.acquire()
        if self._is_ended:
            raise EndedError

    def wake(self) -> None:
        if not self._is_due and not self._is_ended:
            self._is_due = True
            self._strands.loop.call_soon(self._resume, context=self._handles)

    def end(self) -> None:
        self._is_ended = True
        self._resume()

    def wake_later(self, seconds: float, wake: Callable[[], None]) -> asyncio.TimerHandle:
        return self._strands.loop.call_later(seconds, wake, context=self._handles)


class Strands:
    """Of one world."""

    def __init__(self, loop: VirtualLoop, defect: Callable[[str, BaseException], None]) -> None:
        self.loop = loop
        self.defect = defect
        self.parked: dict[Strand, None] = {}

    def start(self, work: Callable[[], None], delay_seconds: float = 0.0) -> None:
        """In the process whose code asks for it."""
        strand = Strand(self, work)
        if delay_seconds:
            self.loop.call_later(delay_seconds, strand.begin)
        else:
            self.loop.call_soon(strand.begin)

    def run(self, work: Callable[[], T], delay_seconds: float = 0.0) -> asyncio.Future[T]:
        """Its result, as of an executor; it goes on also if nobody waits."""
        future: asyncio.Future[T] = self.loop.create_future()

        def settle() -> None:
            try:
                result = work()
            except EndedError:
                raise
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.start(settle, delay_seconds)
        return future

    def wait_for(self, future: asyncio.Future[T]) -> T:
        """In a strand: what comes of a call."""
        strand = _current("for a call")
        future.add_done_callback(lambda _: strand.wake())
        while not future.done():
            strand.park()
        return future.result()

    def sleep(self, seconds: float) -> None:
        Event().wait(seconds)

    def end(self) -> None:
        for strand in list(self.parked):
            strand.end()

    def stand_in(self) -> SimpleNamespace:
        """What a production module finds under the name ``threading``."""
        return SimpleNamespace(
            Lock=Lock, RLock=Lock, Condition=Condition, Event=Event, Thread=lambda **named: _Thread(self, **named)
        )


def _current(what: str) -> Strand:
    if _running is None:
        raise AssertionError(f"the event loop would stand still {what}: only threads may wait")
    return _running


class _Thread:
    def __init__(self, strands: Strands, target: Callable[[], None], **_: Any) -> None:
        self._strands = strands
        self._target = target

    def start(self) -> None:
        self._strands.start(self._target)


class Lock:
    """Reentrant for all, since only a strand that waits can be in another's way."""

    def __init__(self) -> None:
        self._owner: Strand | None = None
        self._depth = 0
        self._waiting: list[Strand] = []

    def acquire(self) -> bool:
        if self._depth and self._owner is not _running:
            strand = _current("for a lock")
            self._waiting.append(strand)
            while self._depth:
                strand.park()
            self._waiting.remove(strand)
        self._owner = _running
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth and self._waiting:
            self._waiting[0].wake()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._listening: list[Strand] = []

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        found = predicate()
        if found:
            return found
        strand, late = _current("for a condition"), False

        def give_up() -> None:
            nonlocal late
            late = True
            strand.wake()

        timer = None if timeout is None else strand.wake_later(timeout, give_up)
        self._listening.append(strand)
        try:
            while not found and not late:
                self.release()
                try:
                    strand.park()
                finally:
                    self.acquire()
                found = predicate()
        finally:
            self._listening.remove(strand)
            if timer:
                timer.cancel()
        return found

    def notify_all(self) -> None:
        for strand in self._listening:
            strand.wake()


class Event:
    def __init__(self) -> None:
        self._change = Condition()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._change.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        with self._change:
            return self._change.wait_for(lambda: self._is_set, timeout)
