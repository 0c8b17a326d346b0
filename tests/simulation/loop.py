"""Virtual time: an event loop that never sleeps, and processes that can be paused and killed inside it.

Nothing here looks at the real clock, a socket or a thread. When nothing is ready, time jumps to the next timer. Every
handle belongs to the process in whose context it was made: those of a paused process are set aside until it goes on,
those of a killed one never run again. Tasks and futures hash by number, so that no order depends on an address.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
# So many handles without time moving on are a loop that never waits.
_MAX_HANDLES_PER_INSTANT = 200_000


class LivelockError(Exception):
    """Work without end in one instant, or nothing left that could ever happen."""


class Process:
    """What can be paused and killed as one. Its memory is whatever its tasks refer to."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self._set_aside: list[events.Handle] = []
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)
        # Told once, when it dies: the kernel closes its connections.
        self.on_death: dict[object, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def runs(self) -> bool:
        return self.is_alive and not self.is_paused

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._loop.create_task(work, context=self._context.copy())

    def run(self, main: Coroutine[Any, Any, Any], defect: Callable[[str, BaseException], None]) -> None:
        """What the process is there for: it never ends by itself."""

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            defect(f"{self.name}, which ended", error or RuntimeError("it has no more to do"))

        self.spawn(main).add_done_callback(ended)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)

    def pause(self) -> None:
        self.is_paused = self.is_alive

    def resume(self) -> None:
        self.is_paused = False
        self._loop.take_back(self._set_aside)
        self._set_aside = []

    def kill(self) -> None:
        if self.is_alive:
            self._loop.bury(self)
            self.is_alive = self.is_paused = False
            self._set_aside = []
            for told in list(self.on_death.values()):
                told()

    def hold_back(self, handle: events.Handle) -> None:
        if self.is_alive:
            self._set_aside.append(handle)


class _Future(asyncio.Future[Any]):
    _number = 0

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    _number = 0
    process: Process | None = None

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(self, executor_seconds: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__()
        self._now = 0.0
        self.executor_seconds = executor_seconds
        self._made = 0
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._timer_count = 0
        self._handles_this_instant = 0
        self._buried: list[asyncio.Task[Any]] = []
        self._is_over = False
        # Told once, when nothing runs any more.
        self.on_end: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self._now

    # Making things

    def create_future(self) -> asyncio.Future[Any]:
        self._made += 1
        future = _Future(loop=self)
        future._number = self._made
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        self._made += 1
        if self._is_over:
            coro.close()
            coro = _nothing()
        task = _Task(coro, loop=self, name=f"task-{self._made}", context=context)
        task._number = self._made
        task.process = context.get(_PROCESS) if context else _PROCESS.get()
        if self._is_over:
            self._forget(task)
        return task

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        if not self._is_over:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        if not self._is_over:
            # By number where times are equal; and tuples compare faster than handles.
            self._timer_count += 1
            heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> events.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """What a thread would do is done at one instant, a little later; as a thread's work, also if nobody waits."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self.executor_seconds(), work)
        return future

    # Running

    def _run_once(self) -> None:
        ready = self._ready
        if not ready:
            self._move_on()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None and not process.runs:
                process.hold_back(handle)
                continue
            handle._run()
            if self._stopping:
                return
        self._handles_this_instant += len(ready)
        if self._handles_this_instant > _MAX_HANDLES_PER_INSTANT:
            raise LivelockError(f"time stands still at {self._now:.3f} s")

    def _move_on(self) -> None:
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise LivelockError(f"nothing is left to happen at {self._now:.3f} s")
        self._handles_this_instant = 0
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

    def take_back(self, handles: list[events.Handle]) -> None:
        self._ready.extend(handles)

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        pass

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        pass  # a generator that nobody finishes has nothing to let go of here

    # The dead

    def bury(self, process: Process) -> None:
        """Keep what the process was in the middle of: if it were freed now, its ``finally`` blocks would run."""
        self._buried += [task for task in asyncio.all_tasks(self) if getattr(task, "process", None) is process]

    def end(self) -> None:
        """Nothing runs any more; what is left half done is let go of."""
        self._is_over = True
        self.on_end()
        for task in [*self._buried, *asyncio.all_tasks(self)]:
            self._forget(task)
        self._buried = []
        self._ready = deque()
        self._timers = []
        self.close()

    @staticmethod
    def _forget(task: asyncio.Task[Any]) -> None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coro = task.get_coro()
        with suppress(BaseException):
            coro.close()  # type: ignore[union-attr]


async def _nothing() -> None:
    return None
