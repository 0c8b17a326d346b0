"""Work that goes on although whoever waits for it is cancelled: a thread cannot be interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

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
