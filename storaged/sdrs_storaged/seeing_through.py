"""Several pieces of work at once; and work that goes on although whoever waits for it is cancelled, because a thread
cannot be interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def see_through(work: Awaitable[T]) -> T:
    """Who is cancelled waits until ``work`` is done, and may then clean up after it."""
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # of a caller that was cancelled: nobody else asks, and asyncio would call it a defect


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; if one fails, the others are ended first."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
