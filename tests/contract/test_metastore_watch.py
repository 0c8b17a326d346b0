"""The contract of the MetaStore: watches and history. Every implementation runs it."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing

import pytest

from sdrs_storaged.control.meta.store import (
    CompactedError,
    Delete,
    DeletePrefix,
    EventKind,
    MetaStore,
    Put,
)
from tests.support.metastores import KEEP, Stores, changes, keys, take


def test_a_watch_sees_the_past_then_the_present(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        first = (await store.txn([], [Put("w/a", b"1"), Put("other", b""), Put("w/b", b"2")])).revision
        await store.txn([], [Put("other", b"")])
        second = (await store.txn([], [Delete("w/a"), Delete("w/none")])).revision
        async with aclosing(store.watch("w/", first)) as batches:
            past = await take(batches, 2)
            assert [batch.revision for batch in past] == [first, second]
            assert changes(past[0]) == [("put", "w/a", b"1"), ("put", "w/b", b"2")]
            assert changes(past[1]) == [("delete", "w/a", b"")]
            deleted = past[1].events[0]
            assert deleted.kind is EventKind.DELETE
            assert deleted.entry.mod_revision == second
            live = asyncio.ensure_future(anext(batches))
            await store.txn([], [Put("other", b"")])
            third = (await store.txn([], [DeletePrefix("w/"), Put("x", b"")])).revision
            batch = await live
            assert (batch.revision, changes(batch)) == (third, [("delete", "w/b", b"")])
        async with aclosing(store.watch("w/", second)) as batches:
            assert (await anext(batches)).revision == second

    stores.run(test)


def test_a_watch_has_no_gaps_and_no_repeats_while_writers_run(stores: Stores) -> None:
    writer_count, put_count = 8, 60

    async def test(store: MetaStore) -> None:
        async def write(writer: int) -> list[tuple[int, str]]:
            done = []
            for number in range(put_count):
                key = f"{'w' if number % 3 else 'other'}/{writer}/{number}"
                done.append(((await store.txn([], [Put(key, b"")])).revision, key))
            return done

        async def follow(from_revision: int, count: int, resume_every: int) -> list[tuple[int, str]]:
            seen: list[tuple[int, str]] = []
            while len(seen) < count:
                async with aclosing(store.watch("w/", seen[-1][0] + 1 if seen else from_revision)) as batches:
                    for batch in await take(batches, min(resume_every, count - len(seen))):
                        seen.append((batch.revision, batch.events[0].entry.key))
                        await asyncio.sleep(0)
            return seen

        start = await store.revision() + 1
        expected_count = writer_count * sum(1 for number in range(put_count) if number % 3)
        async with asyncio.TaskGroup() as group:
            followers = [group.create_task(follow(start, expected_count, every)) for every in (7, expected_count)]
            writers = [group.create_task(write(writer)) for writer in range(writer_count)]
        written = sorted(itertools.chain.from_iterable(task.result() for task in writers))
        assert [revision for revision, _ in written] == list(range(start, start + writer_count * put_count))
        for follower in followers:
            assert follower.result() == [(revision, key) for revision, key in written if key.startswith("w/")]

    stores.run(test)


def test_a_watch_delivers_large_histories_whole(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        payload = b"v" * 700_000
        start = await store.revision() + 1
        for number in range(20):
            await store.txn([], [Put(f"k{number}", payload), Put(f"l{number}", payload)])
        async with aclosing(store.watch("", start)) as batches:
            seen = [event.entry.key for batch in await take(batches, 20) for event in batch.events]
        assert seen == [f"{letter}{number}" for number in range(20) for letter in "kl"]

    stores.run(test)


def test_compaction_forgets_history_but_not_state(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        for number in range(10):
            await store.txn([], [Put("a", b"%d" % number)])
        newest = await store.revision()
        lagging = store.watch("a", newest - 9)
        await anext(lagging)
        await store.compact(newest - 2)
        await store.compact(newest - 5)
        with pytest.raises(CompactedError):
            await anext(store.watch("a", newest - 3))
        async with aclosing(store.watch("a", newest - 2)) as batches:
            assert [changes(batch)[0][2] for batch in await take(batches, 3)] == [b"7", b"8", b"9"]
        entry = await store.get("a")
        assert entry is not None
        assert (entry.value, entry.version, await store.revision()) == (b"9", 10, newest)
        await lagging.aclose()

    stores.run(test)


def test_history_stays_bounded_by_itself(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        for number in range(100):
            await store.txn([], [Put(f"k{number}", b"")])
        await stores.forget_old_history(store)
        newest = await store.revision()
        with pytest.raises(CompactedError):
            await anext(store.watch("", newest - 40))
        async with aclosing(store.watch("", newest - 39)) as batches:
            assert [batch.revision for batch in await take(batches, 40)] == list(range(newest - 39, newest + 1))
        assert len(await keys(store, "k")) == 100

    stores.run(test, KEEP)


def test_a_watch_that_falls_behind_compaction_is_told(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        first = (await store.txn([], [Put("a", b"")])).revision
        async with aclosing(store.watch("a", first)) as batches:
            await anext(batches)
            for _ in range(100):
                await store.txn([], [Put("a", b"")])
            await stores.forget_old_history(store)
            if stores.sends_ahead:
                assert [batch.revision for batch in await take(batches, 100)] == list(range(first + 1, first + 101))
            else:
                with pytest.raises(CompactedError):
                    await anext(batches)
        with pytest.raises(CompactedError):
            await anext(store.watch("a", first + 1))

    stores.run(test, KEEP)


def test_deletions_at_the_edge_of_a_compaction_are_told(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        await store.txn([], [Put("a", b"")])
        deleted = (await store.txn([], [Delete("a")])).revision
        await store.txn([], [Put("b", b"")])
        await store.compact(deleted)
        async with aclosing(store.watch("", deleted)) as batches:
            assert [changes(batch) for batch in await take(batches, 2)] == [[("delete", "a", b"")], [("put", "b", b"")]]
        await store.compact(deleted + 1)
        with pytest.raises(CompactedError):
            await anext(store.watch("", deleted))

    stores.run(test)
