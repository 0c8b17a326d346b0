"""Loops that run side by side for as long as a term lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until_one_fails(*loops: Coroutine[Any, Any, None]) -> None:
    """All of them, until one ends, by an error: that very error is raised, not a group of them, because whoever leads
    decides by its kind whether it is worth trying again.
    """
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
