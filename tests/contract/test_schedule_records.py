"""What a scheduler keeps in the cluster, on every kind of store: compared, changed, watched, bounded."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from sdrs_core.errors import InvalidArgumentError, StaleTermError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_proto.limits import MAX_RECORD_BYTES, MAX_RECORD_KEY_BYTES, MAX_RECORDS_PER_CHANGE
from sdrs_storaged.control import schedule_records
from sdrs_storaged.control.meta.store import MetaStore
from sdrs_storaged.control.schedule_records import ScheduleRecords
from tests.support.catalogs import Cluster, cluster_on
from tests.support.control import FaultyStore
from tests.support.metastores import Stores

KEY = "schedule/job/llm-1a2b"


async def put(records: ScheduleRecords, key: str, value: bytes, revision: int = 0) -> int | None:
    return await records.change({key: revision}, {key: value}, [], request_id=random_id())


async def values(records: ScheduleRecords, prefix: str = "schedule/") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    after, more = "", True
    while more:
        page, more = await records.page(prefix, after=after, limit=1000)
        found |= {record.key: record.value.value for record in page}
        after = page[-1].key if page else after
    return found


async def records_on(store: MetaStore) -> tuple[Cluster, ScheduleRecords]:
    cluster = await cluster_on(store)
    return cluster, cluster.controller.schedule_records


def test_a_record_is_made_changed_and_deleted_under_what_was_compared(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        assert await records.get(KEY) is None
        first = await put(records, KEY, b"one")
        assert first
        assert await put(records, KEY, b"other") is None
        second = await put(records, KEY, b"two", first)
        assert second is not None
        assert second > first
        assert await put(records, KEY, b"late", first) is None
        found = await records.get(KEY)
        assert found is not None
        assert (found.value.value, found.revision) == (b"two", second)
        assert await records.change({KEY: first}, {}, [KEY], request_id=random_id()) is None
        assert await records.change({KEY: second}, {}, [KEY], request_id=random_id())
        assert await records.get(KEY) is None

    stores.run(run)


def test_a_change_of_several_records_is_made_whole_or_not_at_all(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        term = await put(records, "schedule/term", b"1")
        assert term
        both = {"schedule/attempt/x/000001": b"a", "schedule/job/x": b"j"}
        stale = {"schedule/term": term + 1, "schedule/job/x": 0}
        assert await records.change(stale, both, [], request_id=random_id()) is None
        assert await values(records) == {"schedule/term": b"1"}
        right = {"schedule/term": term, "schedule/job/x": 0}
        assert await records.change(right, both, [], request_id=random_id())
        assert await values(records) == {"schedule/term": b"1", **both}

    stores.run(run)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        "größer".encode(),
        bytes(range(256)),
        b"\x00" * MAX_RECORD_BYTES,
        secrets.token_bytes(MAX_RECORD_BYTES),
    ],
    ids=["empty", "json", "text", "binary", "zeros", "random"],
)
def test_any_bytes_come_back_as_they_were(stores: Stores, value: bytes) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        assert await put(records, KEY, value)
        found = await records.get(KEY)
        assert found is not None
        assert found.value.value == value

    stores.run(run)


def test_many_and_large_records_are_read_in_pages_that_fit_into_an_answer(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        # They pack to little in the store, and are large again when they are read.
        expected = {f"schedule/job/{number:04d}": b"%04d" % number * 40_000 for number in range(120)}
        for key, value in expected.items():
            assert await put(records, key, value)
        page, more = await records.page("schedule/job/", after="", limit=1000)
        assert more
        assert sum(len(record.value.value) for record in page) < 6 << 20
        assert await values(records, "schedule/job/") == expected
        few, more = await records.page("schedule/job/000", after="", limit=10)
        assert (len(few), more) == (10, False)

    stores.run(run)


@pytest.mark.parametrize("key", ["job/llm-7b", "schedule", "schedule/", "", "Schedule/x", "schedule/a\nb"])
def test_a_key_outside_of_the_schedule_is_refused(key: str) -> None:
    async def run() -> None:
        _, records = await records_on(FaultyStore())
        for change in (
            records.change({}, {key: b"x"}, [], request_id="r"),
            records.change({}, {}, [key], request_id="r"),
            records.change({key: 1}, {}, [], request_id="r"),
            records.get(key),
        ):
            with pytest.raises(InvalidArgumentError, match="is no key"):
                await change
        if not key.startswith("schedule/"):
            with pytest.raises(InvalidArgumentError, match="schedule/"):
                await records.page(key, after="", limit=10)
            with pytest.raises(InvalidArgumentError, match="schedule/"):
                await records.newest(key, 0, 0)

    asyncio.run(run())


def test_what_is_too_much_is_refused_with_what_is_allowed(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        many = {f"schedule/job/{number}": b"x" for number in range(MAX_RECORDS_PER_CHANGE + 1)}
        large = {f"schedule/job/{number}": secrets.token_bytes(MAX_RECORD_BYTES) for number in range(5)}
        for puts, deletes, words in (
            (many, [], "64 are allowed"),
            ({}, list(many), "64 are allowed"),
            ({KEY: b"x" * (MAX_RECORD_BYTES + 1)}, [], f"{MAX_RECORD_BYTES} are allowed"),
            ({"schedule/" + "x" * MAX_RECORD_KEY_BYTES: b""}, [], f"{MAX_RECORD_KEY_BYTES} bytes"),
            (large, [], "change fewer at once"),
            ({KEY: b""}, [KEY], "twice"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                await records.change({}, puts, deletes, request_id="r")
        assert await values(records) == {}
        allowed = dict(list(many.items())[:MAX_RECORDS_PER_CHANGE])
        assert await records.change(dict.fromkeys(allowed, 0), allowed, [], request_id="r")

    stores.run(run)


def test_of_many_who_change_one_record_at_once_each_change_counts_once(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        await put(records, KEY, b"0")

        async def add_one() -> None:
            while True:
                found = await records.get(KEY)
                assert found is not None
                if await put(records, KEY, b"%d" % (int(found.value.value) + 1), found.revision):
                    return

        await asyncio.gather(*(add_one() for _ in range(8)))
        assert await values(records) == {KEY: b"8"}

    stores.run(run)


def test_a_change_whose_answer_was_lost_is_known_again_also_by_the_next_controller(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        cluster, records = await records_on(store)
        happened = await records.change({KEY: 0}, {KEY: b"mine"}, [], request_id="first")
        await cluster.start()
        records = cluster.controller.schedule_records
        assert await records.change({KEY: 0}, {KEY: b"mine"}, [], request_id="first") == happened
        # The same words of somebody else are another change.
        assert await records.change({KEY: 0}, {KEY: b"mine"}, [], request_id="second") is None
        # Once somebody else has changed it nobody can tell any more: all that is said is that it moved.
        assert await put(records, KEY, b"theirs", happened or 0)
        assert await records.change({KEY: 0}, {KEY: b"mine"}, [], request_id="first") is None

    stores.run(run)


def test_a_controller_that_no_longer_leads_changes_nothing(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        cluster, old = await records_on(store)
        await cluster.start()
        with pytest.raises(StaleTermError):
            await put(old, KEY, b"late")
        assert await cluster.controller.schedule_records.get(KEY) is None

    stores.run(run)


def test_whoever_waits_is_woken_by_a_change_under_the_prefix_only(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        start = await records.newest("schedule/", 0, 0)
        waiting = asyncio.create_task(records.newest("schedule/job/", start, 20))
        await put(records, "schedule/queue/fast", b"{}")
        await asyncio.sleep(0)
        assert not waiting.done()
        revision = await put(records, KEY, b"{}")
        assert revision
        assert await waiting == revision
        assert await records.newest("schedule/job/", start, 20) == revision  # it was missed, and is told at once
        deleting = asyncio.create_task(records.newest("schedule/job/", revision, 20))
        await asyncio.sleep(0)
        deleted = await records.change({KEY: revision}, {}, [KEY], request_id=random_id())
        assert await deleting == deleted
        assert await records.newest("schedule/job/", deleted or 0, 0.01) == deleted

    stores.run(run)


def test_whoever_waits_across_controllers_is_told_to_look_again(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        cluster, records = await records_on(store)
        revision = await put(records, KEY, b"{}")
        assert revision
        seen = await records.newest("schedule/job/", 0, 0)
        await records.change({KEY: revision}, {}, [KEY], request_id=random_id())
        await cluster.start()
        assert await cluster.controller.schedule_records.newest("schedule/job/", seen, 20) > seen

    stores.run(run)


def test_a_change_that_may_have_happened_wakes_whoever_waits() -> None:
    async def run() -> None:
        store = FaultyStore()
        _, records = await records_on(store)
        seen = await records.newest("schedule/", 0, 0)
        waiting = asyncio.create_task(records.newest("schedule/", seen, 20))
        await asyncio.sleep(0)
        store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await put(records, KEY, b"{}")
        assert await waiting > seen

    asyncio.run(run())


def test_changes_that_are_forgotten_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_records, "_MAX_REMEMBERED", 5)

    async def run() -> None:
        _, records = await records_on(FaultyStore())
        seen = await records.newest("schedule/", 0, 0)
        await put(records, KEY, b"{}")
        for number in range(20):
            await put(records, f"schedule/queue/{number}", b"{}")
        assert await records.newest("schedule/job/", seen, 20) > seen

    asyncio.run(run())


def test_what_changed_is_told_by_key_and_also_what_is_just_changing(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        _, records = await records_on(store)
        start = await records.newest("schedule/", 0, 0)
        first = await put(records, KEY, b"one")
        assert first
        await put(records, "schedule/node/n1", b"up")
        assert records.changed("schedule/job/", start) == {KEY: first}
        assert records.changed("schedule/job/", first) == {}
        change = asyncio.create_task(put(records, KEY, b"two", first))
        await asyncio.sleep(0)
        assert records.changed("schedule/job/", first) == {KEY: 0}
        second = await change
        assert records.changed("schedule/job/", first) == {KEY: second}
        assert await records.change({}, {}, [KEY], request_id=random_id())
        assert list(records.changed("schedule/job/", first) or {}) == [KEY]
        assert records.changed("schedule/job/", start - 1) is None  # from before this controller

    stores.run(run)


def test_more_changes_than_an_answer_holds_are_to_be_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_records, "_MAX_TOLD", 2)

    async def run() -> None:
        _, records = await records_on(FaultyStore())
        start = await records.newest("schedule/", 0, 0)
        for number in range(2):
            await put(records, f"{KEY}{number}", b"x")
        assert len(records.changed("schedule/", start) or {}) == 2
        await put(records, KEY, b"x")
        assert records.changed("schedule/", start) is None

    asyncio.run(run())
