"""Empty MetaStores of each kind, and short words for what they hold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from sdrs_storaged.control.meta.in_process import Retention
from sdrs_storaged.control.meta.memory import MemoryMetaStore
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.meta.store import (
    EventBatch,
    MetaStore,
)

DEADLINE_SECONDS = 30
KEEP = Retention(revision_count=40)


class Stores:
    """Makes empty stores of one kind, and runs a test's coroutine on one of them."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._numbers = itertools.count()

    @asynccontextmanager
    async def empty(self, retention: Retention | None = None) -> AsyncIterator[MetaStore]:
        store: MetaStore
        if self._kind == "memory":
            store = MemoryMetaStore(retention)
        else:
            store = await SqliteMetaStore.open(self._folder / f"meta-{next(self._numbers)}.db", retention)
        try:
            yield store
        finally:
            await store.close()

    def run(self, test: Callable[[MetaStore], Awaitable[None]], retention: Retention | None = None) -> None:
        async def main() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS), self.empty(retention) as store:
                await test(store)

        asyncio.run(main())


async def value(store: MetaStore, key: str) -> bytes | None:
    entry = await store.get(key)
    return entry.value if entry else None


async def keys(store: MetaStore, prefix: str) -> list[str]:
    return [entry.key for entry in (await store.range(prefix)).entries]


async def take(batches: AsyncIterator[EventBatch], count: int) -> list[EventBatch]:
    return [await anext(batches) for _ in range(count)]


def changes(batch: EventBatch) -> list[tuple[str, str, bytes]]:
    return [(event.kind.value, event.entry.key, event.entry.value) for event in batch.events]
