"""Waiting for a condition with a deadline; there are no sleeps that hope."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, seconds: float = 20.0) -> T:
    """The first truthy value of ``condition``."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain: {what}")
        time.sleep(0.02)


async def stop_serving(server: asyncio.Server) -> None:
    """Close ``server``, once all that it has accepted have begun: asyncio drops a connection on the floor that was
    accepted in the very instant in which its server is closed.
    """
    for listener in server.sockets:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await let_others_run()
    server.close()


async def let_others_run() -> None:
    """What is ready on this event loop, and what follows from it at once, is done when this returns."""
    for _ in range(10):
        await asyncio.sleep(0)
