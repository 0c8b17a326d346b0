"""The contract of the MetaStore: transactions, ranges, closing. Every implementation runs it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_storaged.control.meta.store import (
    ELECTION_PREFIX,
    Compare,
    Delete,
    DeletePrefix,
    EventKind,
    MetaStore,
    Op,
    Put,
    Target,
    TxnResult,
)
from tests.support.metastores import Stores, keys, take, value


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


def test_closing_ends_watches_and_refuses_what_comes_later(stores: Stores) -> None:
    async def test(store: MetaStore) -> None:
        first = (await store.txn([], [Put("a", b"")])).revision
        batches = store.watch("a", first)
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
            await anext(store.watch("", first))

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

    def __init__(self, revision: int) -> None:
        self.state: dict[str, tuple[bytes, int, int, int]] = {}
        self.revision = revision

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


def since(start: int, compare: Compare) -> Compare:
    """Revisions are drawn as small numbers: count them from ``start``. 0 stays what it is, an absent key."""
    if compare.target is Target.REVISION and isinstance(compare.expected, int) and compare.expected:
        return Compare.revision_is(compare.key, start + compare.expected)
    return compare


def overlaps(then: list[Op]) -> bool:
    touched = [op.key for op in then if isinstance(op, Put)]
    deleted = [op.key for op in then if isinstance(op, Delete)]
    prefixes = tuple(op.prefix for op in then if isinstance(op, DeletePrefix))
    return len(set(touched)) < len(touched) or any(key in deleted or key.startswith(prefixes) for key in touched)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(txns=st.lists(TXNS, max_size=12))
def test_any_sequence_of_txns_matches_a_dict(stores: Stores, txns: list[tuple[list[Compare], list[Op]]]) -> None:
    async def test(store: MetaStore) -> None:
        start = await store.revision()  # an etcd that others used before us does not begin at 0
        model = Model(start)
        states = {start: model.state}
        for drawn, then in txns:
            compare = [since(start, condition) for condition in drawn]
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
        async with aclosing(store.watch("", start + 1)) as batches:
            for batch in await take(batches, model.revision - start):
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
