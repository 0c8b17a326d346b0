"""The contract of the MetaStore. Every implementation runs this file."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_storaged.control.meta.in_process import Retention
from sdrs_storaged.control.meta.memory import MemoryMetaStore
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.meta.store import (
    ELECTION_PREFIX,
    LEADER_KEY,
    CompactedError,
    Compare,
    Delete,
    DeletePrefix,
    EventBatch,
    EventKind,
    MetaStore,
    Op,
    Put,
    Term,
    TxnResult,
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


@pytest.fixture(params=["memory", "sqlite"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    return Stores(request.param, tmp_path)


async def value(store: MetaStore, key: str) -> bytes | None:
    entry = await store.get(key)
    return entry.value if entry else None


async def keys(store: MetaStore, prefix: str) -> list[str]:
    return [entry.key for entry in (await store.range(prefix)).entries]


async def take(batches: AsyncIterator[EventBatch], count: int) -> list[EventBatch]:
    return [await anext(batches) for _ in range(count)]


def changes(batch: EventBatch) -> list[tuple[str, str, bytes]]:
    return [(event.kind.value, event.entry.key, event.entry.value) for event in batch.events]


def test_an_entry_tells_its_revisions_and_version(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        assert await store.get("a") is None
        first = (await store.txn([], [Put("a", b"1")])).revision
        second = (await store.txn([], [Put("a", b"")])).revision
        entry = await store.get("a")
        assert entry is not None
        assert (entry.value, entry.create_revision, entry.mod_revision, entry.version) == (b"", first, second, 2)
        assert second == first + 1 == await store.revision()
        await store.txn([], [Delete("a")])
        third = (await store.txn([], [Put("a", b"3")])).revision
        entry = await store.get("a")
        assert entry is not None
        assert (entry.create_revision, entry.mod_revision, entry.version) == (third, third, 1)

    stores.run(test)


def test_each_compare_holds_exactly_when_it_should(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        first = (await store.txn([], [Put("a", b"1")])).revision
        second = (await store.txn([], [Put("a", b"2")])).revision
        for compare, expected in [
            (Compare.value_is("a", b"2"), True),
            (Compare.value_is("a", b"1"), False),
            (Compare.value_is("none", b""), False),
            (Compare.version_is("a", 2), True),
            (Compare.version_is("a", 1), False),
            (Compare.version_is("none", 0), True),
            (Compare.revision_is("a", second), True),
            (Compare.revision_is("a", first), False),
            (Compare.revision_is("none", 0), True),
            (Compare.present("a"), True),
            (Compare.present("none"), False),
            (Compare.absent("none"), True),
            (Compare.absent("a"), False),
        ]:
            marker = b"%d" % (await store.revision())
            result = await store.txn([compare], [Put("marker", marker)])
            assert result.succeeded is expected, compare
            assert (await value(store, "marker") == marker) is expected, compare

    stores.run(test)


def test_a_transaction_does_all_or_nothing_under_one_revision(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        await store.txn([], [Put("old", b"x"), Put("p/1", b""), Put("p/2", b"")])
        before = await store.revision()
        ops: list[Op] = [Put("a", b"1"), Put("b", b"2"), Delete("old"), DeletePrefix("p/")]
        refused = await store.txn([Compare.present("old"), Compare.present("none")], ops)
        assert (refused.succeeded, refused.revision) == (False, before)
        assert await keys(store, "") == ["old", "p/1", "p/2"]
        done = await store.txn([Compare.present("old"), Compare.absent("none")], ops)
        assert (done.succeeded, done.revision) == (True, before + 1)
        page = await store.range("")
        assert [(entry.key, entry.mod_revision) for entry in page.entries] == [("a", before + 1), ("b", before + 1)]

    stores.run(test)


def test_a_transaction_that_changes_nothing_gets_no_revision(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        before = (await store.txn([], [Put("a", b"")])).revision
        for ops in ([], [Delete("none")], [DeletePrefix("none/")]):
            result = await store.txn([Compare.present("a")], ops)
            assert (result.succeeded, result.revision) == (True, before)
        assert await store.revision() == before

    stores.run(test)


def test_only_one_of_many_concurrent_creators_wins(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        results = await asyncio.gather(
            *(store.txn([Compare.absent("a")], [Put("a", b"%d" % number)]) for number in range(50))
        )
        (winner,) = [number for number, result in enumerate(results) if result.succeeded]
        assert await value(store, "a") == b"%d" % winner

    stores.run(test)


def test_requests_at_the_limits_pass_and_beyond_them_are_refused(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        largest = 3 * 512 * 1024 - 64 - 1
        good: list[tuple[list[Compare], list[Op]]] = [
            ([Compare.absent(f"no-{n}") for n in range(128)], [Put(f"k-{n}", b"") for n in range(128)]),
            ([], [Put("x", b"v" * largest)]),
            ([], [Put("é" * 512, b"")]),
            ([], [Put("twice", b""), Delete("other"), Delete("other"), DeletePrefix("other")]),
        ]
        for compare, then in good:
            assert (await store.txn(compare, then)).succeeded
        before = await store.revision()
        bad: list[tuple[list[Compare], list[Op]]] = [
            ([Compare.absent(f"no-{n}") for n in range(129)], []),
            ([], [Put(f"k-{n}", b"") for n in range(129)]),
            ([], [Put("x", b"v" * (largest + 1))]),
            ([Compare.value_is("x", b"v" * (largest + 1))], []),
            ([], [Put(f"x{n}", b"v" * (largest // 2)) for n in range(3)]),
            ([], [Put("é" * 513, b"")]),
            ([], [Put("", b"")]),
            ([], [Put("\ud800", b"")]),
            ([], [DeletePrefix("")]),
            ([], [Put("a", b"1"), Put("a", b"2")]),
            ([], [Put("a", b"1"), Delete("a")]),
            ([], [DeletePrefix("a"), Put("ab", b"1")]),
            ([], [Put("a", "text")]),  # type: ignore[arg-type]
            ([Compare.version_is("a", b"1")], []),  # type: ignore[arg-type]
        ]
        for compare, then in bad:
            with pytest.raises(InvalidArgumentError):
                await store.txn(compare, then)
        for call in (store.get(""), store.range("k" * 1025), store.range("", limit=0), store.compact(before + 1)):
            with pytest.raises(InvalidArgumentError):
                await call
        with pytest.raises(InvalidArgumentError):
            store.watch("", 0)
        assert await store.revision() == before

    stores.run(test)


def test_range_pages_through_a_prefix_in_the_order_of_bytes(stores: Stores) -> None:
    names = ["", "\0", "!", "0", "00", "a", "a/b", "ab", "z", "~", "\x7f", "é", "\uffff", "\U0001f600"]
    under = sorted(f"p/{name}" for name in names)

    async def test(store: MetaStore) -> None:
        await store.txn([], [Put(key, key.encode()) for key in [*reversed(under), "o", "p", "p.", "p0", "q"]])
        assert await keys(store, "p/") == under == sorted(under, key=str.encode)
        for limit in range(1, len(under) + 1):
            seen: list[str] = []
            more = True
            while more:
                page = await store.range("p/", after=seen[-1] if seen else "", limit=limit)
                assert len(page.entries) <= limit
                assert page.revision == await store.revision()
                seen += [entry.key for entry in page.entries]
                more = page.more
            assert seen == under
        assert await keys(store, "p/é") == ["p/é"]
        assert (await store.range("p/", after="q")).entries == ()
        assert (await store.range("p/", after="a")).entries[0].key == "p/"

    stores.run(test)


def test_a_page_of_large_values_ends_before_it_fills_the_memory(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        for number in range(12):
            await store.txn([], [Put(f"k{number:02}", b"v" * 1_000_000)])
        page = await store.range("k")
        assert page.more
        assert 1 <= len(page.entries) <= 6

    stores.run(test)


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
        for number in range(20):
            await store.txn([], [Put(f"k{number}", payload), Put(f"l{number}", payload)])
        async with aclosing(store.watch("", 1)) as batches:
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
        newest = await store.revision()
        with pytest.raises(CompactedError):
            await anext(store.watch("", newest - 40))
        async with aclosing(store.watch("", newest - 39)) as batches:
            assert [batch.revision for batch in await take(batches, 40)] == list(range(newest - 39, newest + 1))
        assert len(await keys(store, "k")) == 100

    stores.run(test, KEEP)


def test_a_watch_that_falls_behind_compaction_is_told(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        await store.txn([], [Put("a", b"")])
        async with aclosing(store.watch("a", await store.revision())) as batches:
            await anext(batches)
            for _ in range(100):
                await store.txn([], [Put("a", b"")])
            with pytest.raises(CompactedError):
                await anext(batches)

    stores.run(test, KEEP)


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


def test_closing_ends_watches_and_refuses_what_comes_later(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        await store.txn([], [Put("a", b"")])
        batches = store.watch("a", 1)
        await anext(batches)
        waiting = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        with pytest.raises(UnavailableError):
            await waiting
        for call in (store.txn([], []), store.get("a"), store.range(""), store.revision(), store.campaign("c")):
            with pytest.raises(UnavailableError):
                await call
        with pytest.raises(UnavailableError):
            await anext(store.watch("", 1))

    stores.run(test)


def test_closing_leaves_no_transaction_without_an_answer(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        # More than fit into a bounded queue, so that some wait for a place in it while the store is closed.
        asked = [asyncio.ensure_future(store.txn([], [Put(f"k{number}", b"")])) for number in range(3000)]
        await asyncio.sleep(0)
        await store.close()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(answer) for answer in answers} <= {TxnResult, UnavailableError}

    stores.run(test)


KEYS = st.sampled_from(["a", "a/1", "a/2", "a/2/x", "b", "b/é", "c"])
VALUES = st.binary(max_size=2)
OPS = st.one_of(
    st.builds(Put, KEYS, VALUES), st.builds(Delete, KEYS), st.builds(DeletePrefix, st.sampled_from(["a/", "b", "c/"]))
)
COMPARES = st.one_of(
    st.builds(Compare.value_is, KEYS, VALUES),
    st.builds(Compare.version_is, KEYS, st.integers(0, 2)),
    st.builds(Compare.revision_is, KEYS, st.integers(0, 6)),
    st.builds(Compare.absent, KEYS),
    st.builds(Compare.present, KEYS),
)
TXNS = st.tuples(st.lists(COMPARES, max_size=2), st.lists(OPS, max_size=4))


class Model:
    """The state as plain dicts: key to (value, created, modified, version)."""

    def __init__(self) -> None:
        self.state: dict[str, tuple[bytes, int, int, int]] = {}
        self.revision = 0

    def holds(self, compare: Compare) -> bool:
        value, _, modified, version = self.state.get(compare.key, (None, 0, 0, 0))
        found = {"value": value, "version": version, "revision": modified, "presence": version > 0}
        return bool(found[compare.target.value] == compare.expected)

    def apply(self, compare: list[Compare], then: list[Op]) -> tuple[bool, int]:
        if not all(map(self.holds, compare)):
            return False, self.revision
        after, revision = dict(self.state), self.revision + 1
        for op in then:
            if isinstance(op, Put):
                _, created, _, version = self.state.get(op.key, (b"", revision, 0, 0))
                after[op.key] = (op.value, created, revision, version + 1)
            elif isinstance(op, Delete):
                after.pop(op.key, None)
            else:
                after = {key: entry for key, entry in after.items() if not key.startswith(op.prefix)}
        if after != self.state:
            self.state, self.revision = after, revision
        return True, self.revision


def overlaps(then: list[Op]) -> bool:
    touched = [op.key for op in then if isinstance(op, Put)]
    deleted = [op.key for op in then if isinstance(op, Delete)]
    prefixes = tuple(op.prefix for op in then if isinstance(op, DeletePrefix))
    return len(set(touched)) < len(touched) or any(key in deleted or key.startswith(prefixes) for key in touched)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(txns=st.lists(TXNS, max_size=12))
def test_any_sequence_of_txns_matches_a_dict(stores: Stores, txns: list[tuple[list[Compare], list[Op]]]) -> None:
    async def test(store: MetaStore) -> None:
        model = Model()
        states = {0: model.state}
        for compare, then in txns:
            if overlaps(then):
                with pytest.raises(InvalidArgumentError):
                    await store.txn(compare, then)
                continue
            result = await store.txn(compare, then)
            assert (result.succeeded, result.revision) == model.apply(compare, then)
            states[model.revision] = model.state
        page = await store.range("")
        assert page.revision == model.revision
        assert [entry.key for entry in page.entries] == sorted(model.state)
        for entry in page.entries:
            assert not entry.key.startswith(ELECTION_PREFIX)
            expected = (entry.value, entry.create_revision, entry.mod_revision, entry.version)
            assert expected == model.state[entry.key]
            assert await store.get(entry.key) == entry
        # Replaying the watch from the beginning passes through every state there ever was.
        replayed: dict[str, tuple[bytes, int, int, int]] = {}
        async with aclosing(store.watch("", 1)) as batches:
            for batch in await take(batches, model.revision):
                for event in batch.events:
                    entry = event.entry
                    assert entry.mod_revision == batch.revision
                    if event.kind is EventKind.PUT:
                        fields = (entry.value, entry.create_revision, entry.mod_revision, entry.version)
                        replayed[entry.key] = fields
                    else:
                        del replayed[entry.key]
                assert replayed == states[batch.revision]

    stores.run(test)
