"""Blocking work that may hang for as long as a stranger likes: in a thread of its own, which nothing waits for at the
end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_lone_thread(name: str, work: Callable[[], T], on_end: Callable[[], None] = lambda: None) -> asyncio.Future[T]:
    """What comes of it. Who gives up waiting leaves the thread alone; ``on_end`` is called on the loop when that is
    through, in any case.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        on_end()
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop is over: nobody wants to know any more

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome
