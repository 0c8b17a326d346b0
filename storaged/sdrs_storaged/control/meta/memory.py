"""The in-memory twin of the MetaStore, for tests and the simulator: same contract, nothing survives it."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sdrs_storaged.control.meta import limits
from sdrs_storaged.control.meta.changes import events_of, holds
from sdrs_storaged.control.meta.in_process import (
    STRETCH_REVISIONS,
    Counters,
    InProcessMetaStore,
    Retention,
    Stretch,
    event_bytes,
    page_of,
    stretch_of,
)
from sdrs_storaged.control.meta.store import Compare, Entry, Event, EventKind, Op, Page, TxnResult


class MemoryMetaStore(InProcessMetaStore):
    def __init__(self, retention: Retention | None = None) -> None:
        super().__init__("in memory")
        self._retention = retention or Retention()
        self._counters = Counters()
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted; code points sort as their UTF-8 bytes do
        self._history: dict[int, tuple[Event, ...]] = {}

    async def _turn(self) -> None:
        """Every call lets others run first, as a real store would: callers may not count on going undisturbed."""
        self._refuse_if_closed()
        await asyncio.sleep(0)
        self._refuse_if_closed()

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
        limits.check_txn(compare, then)
        await self._turn()
        revision = self._counters.revision
        if not all(holds(condition, self._entries.get(condition.key)) for condition in compare):
            return TxnResult(False, revision)
        if events := events_of(then, revision + 1, self._entries.get, self._keys_under):
            revision += 1
            self._apply(revision, events)
        return TxnResult(True, revision)

    def _apply(self, revision: int, events: tuple[Event, ...]) -> None:
        for event in events:
            key = event.entry.key
            if event.kind is EventKind.DELETE:
                del self._entries[key]
                del self._keys[bisect_left(self._keys, key)]
                continue
            if key not in self._entries:
                insort(self._keys, key)
            self._entries[key] = event.entry
        self._history[revision] = events
        history_bytes = self._counters.history_bytes + sum(map(event_bytes, events))
        self._counters = replace(self._counters, revision=revision, history_bytes=history_bytes)
        while self._retention.exceeded_by(self._counters):
            self._forget_oldest()
        self._announce(revision)

    def _forget_oldest(self) -> None:
        oldest = self._counters.oldest
        history_bytes = self._counters.history_bytes - sum(map(event_bytes, self._history.pop(oldest)))
        self._counters = replace(self._counters, oldest=oldest + 1, history_bytes=history_bytes)

    def _keys_under(self, prefix: str, after: str = "") -> Iterator[str]:
        start = max(prefix, after + "\0" if after else "")
        for index in range(bisect_left(self._keys, start), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                return
            yield self._keys[index]

    async def get(self, key: str) -> Entry | None:
        limits.check_key(key)
        await self._turn()
        return self._entries.get(key)

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        for text in (prefix, after):
            limits.check_prefix(text)
        limits.check_page(limit)
        await self._turn()
        entries = (self._entries[key] for key in self._keys_under(prefix, after))
        return page_of(entries, limit, self._counters.revision)

    async def revision(self) -> int:
        await self._turn()
        return self._counters.revision

    async def _read_history(self, prefix: str, from_revision: int) -> Stretch:
        await self._turn()
        self._counters.check_kept(from_revision)
        scanned_to = min(self._counters.revision, from_revision + STRETCH_REVISIONS - 1)
        events = (
            event
            for revision in range(from_revision, scanned_to + 1)
            for event in self._history[revision]
            if event.entry.key.startswith(prefix)
        )
        return stretch_of(events, scanned_to)

    async def _forget_before(self, revision: int) -> None:
        while self._counters.oldest < revision:
            self._forget_oldest()

    async def close(self) -> None:
        self._closed = True
        self._wake_watches()
