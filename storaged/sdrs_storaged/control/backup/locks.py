"""One at a time for each checkpoint: it is recalled, or what nodes have of it is let go. In memory, because only one
controller changes anything (P14).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sdrs_core.ids import SaveId


class SaveLocks:
    def __init__(self) -> None:
        self._locks: dict[SaveId, tuple[asyncio.Lock, int]] = {}

    def is_held(self, save_id: SaveId) -> bool:
        return save_id in self._locks

    @asynccontextmanager
    async def hold(self, save_id: SaveId) -> AsyncIterator[None]:
        lock, users = self._locks.get(save_id, (asyncio.Lock(), 0))
        self._locks[save_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            _, users = self._locks.pop(save_id)
            if users > 1:
                self._locks[save_id] = (lock, users - 1)
