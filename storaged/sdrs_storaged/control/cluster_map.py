"""The map as a number that rises: whoever follows nodes and groups waits here for the next change."""

from __future__ import annotations

import asyncio


class ClusterMap:
    """Belongs to one term: its numbers mean nothing to another controller."""

    def __init__(self) -> None:
        self.number = 1
        self._moved = asyncio.Event()

    def raise_number(self) -> None:
        self.number += 1
        self._moved.set()
        self._moved = asyncio.Event()

    async def beyond(self, number: int) -> int:
        """The number of the map, as soon as it is another one than ``number``."""
        while self.number == number:
            await self._moved.wait()
        return self.number
