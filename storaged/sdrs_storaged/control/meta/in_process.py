"""What the stores that live inside one process share: watching out of a history, pages, and an election without leases.

Watching never queues (I10): a watch remembers the revision it is at, sleeps until the store has gone further, and reads
the next stretch from history. Whoever dies here dies with the whole process, so a leader's record needs no lease: the
store that is opened next voids it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_storaged.control.meta import election, limits
from sdrs_storaged.control.meta.store import (
    LEADER_KEY,
    CompactedError,
    Entry,
    Event,
    EventBatch,
    MetaStore,
    Page,
    Put,
    Term,
)

PAGE_BYTES = 4 << 20
STRETCH_REVISIONS = 1000


@dataclass(frozen=True, slots=True)
class Counters:
    """Where a store is: its newest revision, the oldest one whose events it still has, and their size."""

    revision: int = 0
    oldest: int = 1
    history_bytes: int = 0

    def check_kept(self, from_revision: int) -> None:
        if from_revision < self.oldest:
            raise CompactedError(
                f"the history from revision {from_revision} is gone, it starts at {self.oldest}: read the state anew",
                oldest=self.oldest,
            )


@dataclass(frozen=True, slots=True)
class Retention:
    """How much history a store keeps by itself."""

    revision_count: int = 50_000
    history_bytes: int = 256 << 20

    def exceeded_by(self, counters: Counters) -> bool:
        """The newest revision is always kept: live watches are about to read it."""
        kept = counters.revision - counters.oldest + 1
        return kept > 1 and (kept > self.revision_count or counters.history_bytes > self.history_bytes)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of history, filtered by a prefix: complete up to and including ``scanned_to``."""

    batches: tuple[EventBatch, ...]
    scanned_to: int


def event_bytes(event: Event) -> int:
    return len(event.entry.key.encode()) + len(event.entry.value) + limits.OPERATION_OVERHEAD_BYTES


def stretch_of(events: Iterable[Event], scanned_to: int) -> Stretch:
    """Group ``events`` into batches, stopping early between two of them once enough bytes are held."""
    batches: list[EventBatch] = []
    held_bytes = 0
    for revision, group in groupby(events, key=lambda event: event.entry.mod_revision):
        if held_bytes >= PAGE_BYTES:
            return Stretch(tuple(batches), revision - 1)
        batch = EventBatch(revision, tuple(group))
        held_bytes += sum(map(event_bytes, batch.events))
        batches.append(batch)
    return Stretch(tuple(batches), scanned_to)


def page_of(entries: Iterator[Entry], limit: int, revision: int) -> Page:
    taken: list[Entry] = []
    held_bytes = 0
    for entry in entries:
        if len(taken) == limit or held_bytes >= PAGE_BYTES:
            return Page(tuple(taken), revision, more=True)
        held_bytes += len(entry.key) + len(entry.value)
        taken.append(entry)
    return Page(tuple(taken), revision, more=False)


class InProcessMetaStore(MetaStore):
    """A subclass provides the state and its history, and calls ``_announce`` after each change that it made."""

    def __init__(self, name: str, announced: int = 0) -> None:
        self._name = name
        self._announced = announced
        self._closed = False
        self._moved = asyncio.Event()

    @abstractmethod
    async def _read_history(self, prefix: str, from_revision: int) -> Stretch:
        """The next stretch, of at most STRETCH_REVISIONS; CompactedError if it is gone."""

    @abstractmethod
    async def _forget_before(self, revision: int) -> None:
        """Drop the history before ``revision``, which is not in the future."""

    def _announce(self, revision: int) -> None:
        self._announced = max(self._announced, revision)
        self._wake_watches()

    def _wake_watches(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise UnavailableError(f"the metadata store {self._name} is closed: open it again")

    def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[EventBatch, None]:
        limits.check_prefix(prefix)
        limits.check_from_revision(from_revision)
        return self._follow(prefix, from_revision)

    async def _follow(self, prefix: str, next_revision: int) -> AsyncGenerator[EventBatch, None]:
        while True:
            self._refuse_if_closed()
            while self._announced < next_revision:
                await self._moved.wait()
                self._refuse_if_closed()
            stretch = await self._read_history(prefix, next_revision)
            for batch in stretch.batches:
                yield batch
            next_revision = stretch.scanned_to + 1

    async def compact(self, revision: int) -> None:
        newest = await self.revision()
        if revision > newest:
            raise InvalidArgumentError(f"history cannot be compacted to revision {revision}: the newest is {newest}")
        await self._forget_before(revision)

    async def campaign(self, candidate: str) -> Term:
        async def seat(term: Term) -> Put:
            return Put(LEADER_KEY, term.record())

        return await election.campaign(self, candidate, seat)

    async def resign(self, term: Term) -> None:
        await election.resign(self, term)

    async def lost(self, term: Term) -> None:
        await election.lost(self, term)
