"""The contract of the MetaStore: terms. Every implementation runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sdrs_storaged.control.meta.store import (
    LEADER_KEY,
    Compare,
    MetaStore,
    Op,
    Put,
    Term,
    TxnResult,
)
from tests.support.metastores import Stores, value


def test_terms_rise_and_one_leads_at_a_time(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        first = await store.campaign("c0")
        leading: set[str] = set()
        numbers: list[int] = []

        async def lead(candidate: str) -> None:
            term = await store.campaign(candidate)
            assert term.candidate == candidate
            leading.add(candidate)
            assert leading == {candidate}
            numbers.append(term.number)
            assert (await store.txn([term.unchanged()], [Put("led-by", candidate.encode())])).succeeded
            leading.remove(candidate)
            await store.resign(term)

        async with asyncio.TaskGroup() as group:
            for number in range(1, 6):
                group.create_task(lead(f"c{number}"))
            await store.txn([], [Put("noise", b"")])
            assert not numbers
            await store.resign(first)
        assert numbers == sorted(set(numbers))
        assert len(numbers) == 5
        assert numbers[0] > first.number

    stores.run(test)


def test_an_old_term_fences_nothing_in(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        old = await store.campaign("one")
        assert (await store.txn([old.unchanged()], [Put("a", b"old")])).succeeded
        await store.resign(old)
        assert not (await store.txn([old.unchanged()], [Put("a", b"late")])).succeeded
        new = await store.campaign("one")
        assert new.number > old.number
        assert not (await store.txn([old.unchanged()], [Put("a", b"late")])).succeeded
        await store.resign(old)
        assert (await store.txn([new.unchanged()], [Put("a", b"new")])).succeeded
        assert await value(store, "a") == b"new"

    stores.run(test)


def test_a_campaign_that_is_given_up_while_it_wins_leaves_nobody_leading(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        campaign: asyncio.Task[Term]
        txn = store.txn

        async def txn_then_cancelled(compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
            setattr(store, "txn", txn)  # noqa: B010
            result = await txn(compare, then)
            assert result.succeeded
            campaign.cancel()
            await asyncio.sleep(0)
            return result

        setattr(store, "txn", txn_then_cancelled)  # noqa: B010
        campaign = asyncio.create_task(store.campaign("fickle"))
        await asyncio.wait([campaign])
        assert campaign.cancelled()
        assert await store.get(LEADER_KEY) is None
        assert (await store.campaign("steady")).number > 1

    stores.run(test)


def test_a_term_is_lost_once_it_is_resigned_and_not_before(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        term = await store.campaign("one")
        losing = asyncio.ensure_future(store.lost(term))
        await store.txn([term.unchanged()], [Put("a", b"")])
        await store.get("a")
        assert not losing.done()
        await store.resign(term)
        await losing
        new = await store.campaign("two")
        await store.lost(term)  # also when it was over before anybody asked
        standing = asyncio.ensure_future(store.lost(new))
        await store.get("a")
        assert not standing.done()
        standing.cancel()

    stores.run(test)


def test_a_term_is_read_back_from_its_record(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        term = await store.campaign("10.0.0.1:7070 pid 12")
        entry = await store.get(LEADER_KEY)
        assert entry is not None
        assert Term.parse(entry.value) == term

    stores.run(test)
