"""The MetaStore as controllers reach it: over the network, with leases, outages and answers that are lost.

The store itself is the in-memory twin. It lives in a process of its own, so a transaction that was sent happens whether
or not its controller lives to hear of it. Every change is shown to the checks before anybody is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from random import Random
from typing import Any

from sdrs_core.errors import UnavailableError
from sdrs_storaged.control.meta import election
from sdrs_storaged.control.meta.memory import MemoryMetaStore
from sdrs_storaged.control.meta.store import (
    LEADER_KEY,
    Compare,
    Delete,
    Entry,
    Event,
    EventBatch,
    MetaStore,
    Op,
    Page,
    Put,
    Term,
    TxnResult,
)
from tests.simulation.loop import Process
from tests.simulation.network import Network

ADDRESS = "store"
_LEASE_SECONDS = 3.0
_CALL_SECONDS = 2.0
_EXPIRY_SECONDS = 0.3
_KEEP_ALIVE_SECONDS = 0.8
_LONG_POLL_SECONDS = 5.0


class ObservedStore(MemoryMetaStore):
    """Shows every change to ``observe`` as it happens."""

    def __init__(self, observe: Callable[[int, tuple[Event, ...]], None]) -> None:
        super().__init__()
        self._observe = observe

    async def _turn(self) -> None:
        pass  # the network takes its turns

    def _apply(self, revision: int, events: tuple[Event, ...]) -> None:
        super()._apply(revision, events)
        self._observe(revision, events)


class StoreServer:
    def __init__(
        self,
        network: Network,
        process: Process,
        random: Random,
        store: ObservedStore,
        on_write: Callable[[str, Term | None], None],
    ) -> None:
        """``on_write`` is told who changed something, and who led at that moment."""
        self._on_write = on_write
        self.process = process
        self.streams: list[asyncio.Task[Any]] = []
        self.store = store
        self._network = network
        self._random = random
        self._lease_ends: dict[Term, float] = {}
        self._watched: dict[str, asyncio.Event] = {}
        # Out of reach before anything is done; or the answer to what was done is lost.
        self.is_out = False
        self.lost_answers = 0.0
        self.lease_seconds = _LEASE_SECONDS
        network.listen(ADDRESS, self)
        process.spawn(self._expire_leases())

    def find(self, method: str) -> Callable[[Any], Any]:
        if self.is_out:
            raise UnavailableError("the store is out of reach")
        return getattr(self, f"_{method}")  # type: ignore[no-any-return]

    def end_outage(self) -> None:
        """As etcd does after it lost its leader: nobody lost a lease for what could not be renewed."""
        self.is_out = False
        for term in self._lease_ends:
            self._lease_ends[term] = self._now() + self.lease_seconds

    def _now(self) -> float:
        return self._network.loop.time()

    async def _txn(self, request: tuple[str, Sequence[Compare], Sequence[Op]]) -> TxnResult:
        sender, compare, then = request
        leader, before = await self.store.get(LEADER_KEY), await self.store.revision()
        result = await self.store.txn(compare, then)
        if result.revision > before and not any(isinstance(op, Put) and op.key == LEADER_KEY for op in then):
            self._on_write(sender, Term.parse(leader.value) if leader else None)
        if self._random.random() < self.lost_answers:
            raise UnavailableError("the answer was lost")
        return result

    async def _get(self, key: str) -> Entry | None:
        return await self.store.get(key)

    async def _range(self, request: tuple[str, str, int]) -> Page:
        prefix, after, limit = request
        return await self.store.range(prefix, after=after, limit=limit)

    async def _revision(self, request: None) -> int:
        return await self.store.revision()

    async def _history(self, request: tuple[str, int]) -> tuple[tuple[EventBatch, ...], int]:
        """What happened since; held back for a while if that is nothing."""
        prefix, from_revision = request
        ends = self._now() + _LONG_POLL_SECONDS
        while self._now() < ends:
            if await self.store.revision() >= from_revision:
                stretch = await self.store._read_history(prefix, from_revision)
                from_revision = stretch.scanned_to + 1
                if stretch.batches:
                    return stretch.batches, from_revision
            self._watched.setdefault(prefix, asyncio.Event())
            try:
                async with asyncio.timeout_at(ends):
                    await self._watched[prefix].wait()
            except TimeoutError:
                break
        return (), from_revision

    def wake_watches(self, events: tuple[Event, ...]) -> None:
        for prefix, moved in list(self._watched.items()):
            if any(event.entry.key.startswith(prefix) for event in events):
                moved.set()
                del self._watched[prefix]

    async def _grant(self, term: Term) -> None:
        """A lease for a term that is about to begin; it ends by itself if nothing comes of it."""
        self._lease_ends[term] = self._now() + self.lease_seconds

    async def _keep_alive(self, term: Term) -> bool:
        if term not in self._lease_ends:
            return False
        self._lease_ends[term] = self._now() + self.lease_seconds
        return True

    async def _resign(self, term: Term) -> None:
        self._lease_ends.pop(term, None)
        await self.store.txn([term.unchanged()], [Delete(LEADER_KEY)])

    async def _expire_leases(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRY_SECONDS)
            for term, ends in list(self._lease_ends.items()):
                if ends < self._now() and not self.is_out:
                    await self._resign(term)


class RemoteStore(MetaStore):
    """One controller's connection to the store."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._kept: dict[Term, asyncio.Task[None]] = {}

    async def _call(self, method: str, request: Any, timeout_seconds: float = _CALL_SECONDS) -> Any:
        try:
            return await self._network.call(self._process, ADDRESS, method, request, timeout_seconds)
        except TimeoutError as error:
            raise UnavailableError(f"the store did not answer: {error}") from None

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
        result: TxnResult = await self._call("txn", (self._process.name, compare, then))
        return result

    async def get(self, key: str) -> Entry | None:
        entry: Entry | None = await self._call("get", key)
        return entry

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        page: Page = await self._call("range", (prefix, after, limit))
        return page

    async def revision(self) -> int:
        return int(await self._call("revision", None))

    async def watch(self, prefix: str, from_revision: int) -> AsyncGenerator[EventBatch, None]:
        while True:
            request, timeout_seconds = (prefix, from_revision), _LONG_POLL_SECONDS + _CALL_SECONDS
            batches, from_revision = await self._call("history", request, timeout_seconds)
            for batch in batches:
                yield batch

    async def compact(self, revision: int) -> None:
        return None

    async def campaign(self, candidate: str) -> Term:
        async def seat(term: Term) -> Put:
            await self._call("grant", term)
            return Put(LEADER_KEY, term.record())

        term = await election.campaign(self, candidate, seat)
        self._kept[term] = self._process.spawn(self._keep_alive(term))
        return term

    async def _keep_alive(self, term: Term) -> None:
        is_kept = True
        while is_kept:
            await asyncio.sleep(_KEEP_ALIVE_SECONDS)
            try:
                is_kept = await self._call("keep_alive", term)
            except UnavailableError:
                continue

    async def resign(self, term: Term) -> None:
        if kept := self._kept.pop(term, None):
            kept.cancel()  # also if the store does not hear of it: then the lease runs out
        await self._call("resign", term)

    async def lost(self, term: Term) -> None:
        await election.lost(self, term)

    async def close(self) -> None:
        return None
