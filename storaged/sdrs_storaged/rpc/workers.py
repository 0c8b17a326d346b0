"""Threads for blocking work, apart for each kind of it (P21).

A coordinating write or a push waits for other nodes; what those ask of this one must not wait for a thread that such
work holds, or all nodes that save at once would wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sdrs_storaged.rpc.intake import Intake
from sdrs_storaged.seeing_through import see_through
from sdrs_storaged.store.reader import FragmentReader

T = TypeVar("T")
C = TypeVar("C", FragmentReader, Intake)


class Workers:
    """A bounded number of threads for one kind of work."""

    def __init__(self, name: str, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix=f"node-{name}")

    async def run(self, work: Callable[..., T], *args: object) -> T:
        """Blocking work, off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args))

    async def run_through(self, work: Callable[..., T], *args: object) -> T:
        """As ``run``, but who is cancelled waits until the thread is done, and may then clean up after it."""
        return await see_through(self.run(work, *args))

    async def opened(self, work: Callable[..., C], *args: object) -> C:
        """As ``run``; if the caller hangs up meanwhile, what comes of it is closed again."""
        opening = asyncio.ensure_future(self.run(work, *args))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_late)
            raise

    def _close_late(self, opening: asyncio.Future[C]) -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._threads.submit(opening.result().__exit__, None, None, None)

    def shutdown(self) -> None:
        self._threads.shutdown()
