"""Elections over any MetaStore: who leads is one record, and whoever writes it leads.

The record and the number of the term change in the same transaction. How the record goes away when its writer dies is
the store's business: a lease in etcd, and in a file of one process the next opening.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from sdrs_storaged.control.meta import limits
from sdrs_storaged.control.meta.store import (
    ELECTION_PREFIX,
    LEADER_KEY,
    TERM_KEY,
    CompactedError,
    Compare,
    Delete,
    Entry,
    EventKind,
    MetaStore,
    Put,
    Term,
)


async def campaign(store: MetaStore, candidate: str, seat: Callable[[Term], Awaitable[Put]]) -> Term:
    """``seat`` makes the leader's record, just before it is needed."""
    limits.check_candidate(candidate)
    while True:
        page = await store.range(ELECTION_PREFIX)
        records = {entry.key: entry for entry in page.entries}
        if LEADER_KEY in records:
            await _until_leader_changes(store, page.revision + 1)
        elif term := await _try_to_lead(store, candidate, seat, records.get(TERM_KEY)):
            return term


async def _until_leader_changes(store: MetaStore, from_revision: int) -> None:
    try:
        async with aclosing(store.watch(LEADER_KEY, from_revision)) as batches:
            async for _ in batches:
                return
    except CompactedError:
        return  # The caller looks at the record again anyway.


async def _try_to_lead(
    store: MetaStore, candidate: str, seat: Callable[[Term], Awaitable[Put]], last: Entry | None
) -> Term | None:
    term = Term(int(last.value) + 1 if last else 1, candidate)
    record = await seat(term)
    try:
        result = await store.txn(
            # Nobody led when ``last`` was read; if it still stands, nobody has led since.
            compare=[Compare.revision_is(TERM_KEY, last.mod_revision if last else 0)],
            then=[Put(TERM_KEY, b"%d" % term.number), record],
        )
    except asyncio.CancelledError:
        # It may have been elected while it gave up. Nobody would ever lead again if it stayed so.
        await store.resign(term)
        raise
    return term if result.succeeded else None


async def resign(store: MetaStore, term: Term) -> None:
    await store.txn(compare=[term.unchanged()], then=[Delete(LEADER_KEY)])


async def leaders(store: MetaStore) -> AsyncGenerator[Term | None, None]:
    """Who leads now, then each change; None while nobody does. Some that were short may be left out."""
    while True:
        page = await store.range(LEADER_KEY)
        yield Term.parse(page.entries[0].value) if page.entries else None
        try:
            async with aclosing(store.watch(LEADER_KEY, page.revision + 1)) as batches:
                async for batch in batches:
                    event = batch.events[-1]
                    yield Term.parse(event.entry.value) if event.kind is EventKind.PUT else None
        except CompactedError:
            continue


async def lost(store: MetaStore, term: Term) -> None:
    async with aclosing(leaders(store)) as found:
        async for leader in found:
            if leader != term:
                return
