"""The catalog while the MetaStore is out of reach: what one of its replicas still has, labelled as stale (P17).

Checkpoints are immutable, so what is found there can be restored; only whether it is the newest is not known. Nothing
is changed by what is read here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sdrs_core.errors import DeadlineExceededError, UnavailableError
from sdrs_storaged.control.catalog_reader import CatalogReader
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import Compare, MetaStore, Op, Term
from sdrs_storaged.control.records import PAGE_ENTRIES, Records, Stored, stored_from
from sdrs_storaged.logs import get_log

log = get_log("stale_reads")

T = TypeVar("T")

# A store that did not answer a moment ago is not waited for again by everybody who reads.
_DISTRUST_SECONDS = 2.0


class _StaleRecords(Records):
    def __init__(self, store: MetaStore, term: Term) -> None:
        super().__init__(store, term)
        self.frozen_because = "the metadata store is out of reach: nothing can be changed"

    async def get(self, key: str, kind: type[T]) -> Stored[T] | None:
        page = await self.store.range_stale(key, limit=1)
        found = [entry for entry in page.entries if entry.key == key]
        return stored_from(found[0], kind) if found else None

    async def page(
        self, prefix: str, kind: type[T], *, after: str = "", limit: int = PAGE_ENTRIES
    ) -> tuple[list[Stored[T]], bool]:
        page = await self.store.range_stale(prefix, after=after, limit=limit)
        return [stored_from(entry, kind) for entry in page.entries], page.more

    async def commit(self, compare: Sequence[Compare], then: Sequence[Op]) -> int:
        raise UnavailableError(self.frozen_because)


class StaleReads:
    def __init__(self, records: Records, catalog: CatalogReader, clock: Clock) -> None:
        self._records = records
        self._catalog = catalog
        self._clock = clock
        self._stale = CatalogReader(_StaleRecords(records.store, records.term))
        self._distrusted_until = 0.0
        self._written_then = 0

    async def read(self, work: Callable[[CatalogReader], Awaitable[T]]) -> tuple[T, bool]:
        """What ``work`` reads, and whether it may be the past."""
        is_back = self._records.written_revision > self._written_then
        if is_back or self._clock.monotonic_seconds() >= self._distrusted_until:
            try:
                return await work(self._catalog), False
            except (UnavailableError, DeadlineExceededError) as error:
                log.warning("reading_stale", why=error.message)
                self._distrusted_until = self._clock.monotonic_seconds() + _DISTRUST_SECONDS
                self._written_then = self._records.written_revision
        return await work(self._stale), True
