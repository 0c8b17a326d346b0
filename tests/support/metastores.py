"""Empty MetaStores of each kind, and short words for what they hold."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from sdrs_storaged.config import EtcdConfig
from sdrs_storaged.control.meta.etcd import EtcdMetaStore
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

    def __init__(self, kind: str, folder: Path, etcd_endpoints: Sequence[str] = ()) -> None:
        self._kind = kind
        self._folder = folder
        self._etcd_endpoints = tuple(etcd_endpoints)
        self._numbers = itertools.count()
        # etcd sends events before they are asked for: a slow consumer still gets those, whatever is compacted.
        self.sends_ahead = kind == "etcd"

    @asynccontextmanager
    async def empty(self, retention: Retention | None = None) -> AsyncIterator[MetaStore]:
        store: MetaStore
        if self._kind == "memory":
            store = MemoryMetaStore(retention)
        elif self._kind == "sqlite":
            store = await SqliteMetaStore.open(self._folder / f"meta-{next(self._numbers)}.db", retention)
        else:
            # As long as a prefix may be, so that requests at the limits meet etcd's own.
            keep = {"keep_revisions": retention.revision_count} if retention else {}
            config = EtcdConfig(endpoints=self._etcd_endpoints, prefix=secrets.token_hex(12), **keep)
            store = await EtcdMetaStore.open(config)
        try:
            yield store
        finally:
            await store.close()

    async def forget_old_history(self, store: MetaStore) -> None:
        """What stores do by themselves with each change, and etcd's leader now and then."""
        if isinstance(store, EtcdMetaStore):
            await store.forget_old_history()

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
