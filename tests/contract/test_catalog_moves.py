"""A catalog moves from one store to another (P18): sealed here, whole there, on every kind of store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from sdrs_core.cluster import Authority
from sdrs_core.errors import CorruptDataError, RefusedError, UnavailableError
from sdrs_core.failover import first_epoch
from sdrs_core.ids import NodeId
from sdrs_storaged.control import export, keys, replacement
from sdrs_storaged.control.archive import CHUNK_BYTES
from sdrs_storaged.control.export import Exporter
from sdrs_storaged.control.imports import Importer, stage
from sdrs_storaged.control.members import ClusterRecord
from sdrs_storaged.control.meta.store import MetaStore, Page, Put
from sdrs_storaged.control.replacement import Replacement
from sdrs_storaged.control.staging import Staging
from tests.support.catalogs import Cluster, cluster_on, contents, empty_on, exported, fill, imported
from tests.support.control import JOB, attempt, node
from tests.support.metastores import DEADLINE_SECONDS, Stores


def on_two(stores: Stores, test: Callable[[MetaStore, MetaStore], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), stores.empty() as first, stores.empty() as second:
            await test(first, second)

    asyncio.run(main())


async def whole(file: bytes) -> AsyncIterator[bytes]:
    yield file


def expected_after_move(before: dict[str, bytes]) -> dict[str, object]:
    """Every record as it was, but the cluster's incarnation and the groups' epochs."""
    moved = {key: json.loads(value) for key, value in before.items()}
    moved[keys.CLUSTER]["incarnation"] += 1
    for key, value in moved.items():
        if key.startswith(keys.GROUPS):
            value["epoch"] = first_epoch(2)
    return moved


def test_a_moved_catalog_has_every_record_and_goes_on(stores: Stores, tmp_path: Path) -> None:
    async def run(first: MetaStore, second: MetaStore) -> None:
        source = await cluster_on(first)
        await fill(source)
        listed = await source.states()
        pending = await source.begin(50, by=attempt(2), world_size=2)
        before = await contents(first)
        target = await empty_on(second)
        result = await imported(target, await exported(source, seal=True), tmp_path)
        assert {key: json.loads(value) for key, value in (await contents(second)).items()} == expected_after_move(
            before
        )
        cluster = source.controller.members.cluster
        assert (result.cluster_id, result.incarnation, result.record_count) == (cluster.id, 2, len(before) - 1)
        # The nodes come over with what they saw, and the saves under way with them.
        target.node_ids = source.node_ids
        await target.register()
        assert await target.states() == listed
        again = await target.begin(50, by=attempt(2), world_size=2)
        assert (again.save.save_id, again.capability) == (pending.save.save_id, pending.capability)
        assert (await target.seal(again, rank=0)).value == "committed"
        assert (await target.save(70, by=attempt(2))).state.value == "committed"

    on_two(stores, run)


def test_a_sealed_store_changes_nothing_any_more_also_after_a_restart(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        source = await cluster_on(store)
        await fill(source)
        file = await exported(source, seal=True)
        before = await contents(store)
        for _ in range(2):
            for change in (
                source.begin(99, by=attempt(2)),
                source.create_pool("new"),
                source.controller.catalog.delete(JOB, 10, why="by request"),
                source.controller.members.register(node(NodeId("n")), "key", seen=Authority()),
                source.controller.collector.collect(),
            ):
                with pytest.raises(RefusedError, match="goes on elsewhere"):
                    await change
            assert 20 in await source.steps()
            await source.start()
        assert await contents(store) == before
        again = (await exported(source, seal=True)).splitlines()
        assert again[1:-1] == file.splitlines()[1:-1]  # the file may have been lost on its way

    stores.run(run)


def test_what_was_on_its_way_to_the_store_does_not_land_after_the_seal() -> None:
    async def run() -> None:
        source = Cluster()
        await source.start()
        begun = await source.begin(10)
        files: list[bytes] = []

        async def seal_first(number: int) -> None:
            source.store.heal()
            files.append(await exported(source, seal=True))

        source.store.before = seal_first
        with pytest.raises(RefusedError, match="goes on elsewhere"):
            await source.seal(begun)
        assert files[0].splitlines()[1:-1] == (await exported(source)).splitlines()[1:-1]

    asyncio.run(run())


def test_a_seal_whose_answer_was_lost_holds_all_the_same() -> None:
    async def run() -> None:
        source = Cluster()
        await source.start()
        source.store.lose_answer_of(1)
        with pytest.raises(UnavailableError):
            await exported(source, seal=True)
        with pytest.raises(RefusedError, match="goes on elsewhere"):
            await source.begin(10)
        assert await exported(source, seal=True)

    asyncio.run(run())


def test_a_copy_without_seal_is_of_one_moment_while_the_catalog_changes(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE_ENTRIES", 4)

    async def run(first: MetaStore) -> None:
        source = await cluster_on(first)
        await fill(source)
        read_page, changed = first.range, False

        async def change_after(prefix: str, *, after: str = "", limit: int = 1000) -> Page:
            nonlocal changed
            page = await read_page(prefix, after=after, limit=limit)
            if not changed and after > keys.SHARDS and page.more:
                # What is changed and deleted now was read before; what is new partly comes on the pages that are left.
                changed = True
                await source.save(80, by=attempt(2))
                await source.controller.catalog.delete(JOB, 10, why="by request")
            return page

        monkeypatch.setattr(first, "range", change_after)
        file = await exported(source)
        assert changed
        monkeypatch.setattr(first, "range", read_page)
        staging = await Staging.open(tmp_path)
        await stage(staging, whole(file))
        copied = {key: staging.get_sync(key) for key in await contents(first)}
        assert copied == await contents(first)
        assert staging.count_sync() == len(copied)
        staging.close()

    stores.run(run)


def test_a_snapshot_is_refused_where_an_export_is_wanted_and_nothing_is_written(stores: Stores, tmp_path: Path) -> None:
    async def run(first: MetaStore, second: MetaStore) -> None:
        source = await cluster_on(first)
        await fill(source)
        target = await empty_on(second)
        before = await contents(second)
        with pytest.raises(RefusedError, match="sdrs meta rebuild --snapshot FILE"):
            await imported(target, await exported(source), tmp_path)
        assert await contents(second) == before
        await source.save(80, by=attempt(2))
        await imported(target, await exported(source, seal=True), tmp_path)
        assert await target.states() == await source.states()

    on_two(stores, run)


def test_chunks_are_bounded_however_large_a_record_is(stores: Stores) -> None:
    async def run(store: MetaStore) -> None:
        source = await empty_on(store)
        await store.txn([], [Put("x/large", b'"' + b"x" * 1_400_000 + b'"')])
        pieces = [piece async for piece in Exporter(source.records, source.clock).export(with_secrets=True)]
        assert len(pieces) > 1
        assert max(map(len, pieces)) <= CHUNK_BYTES

    stores.run(run)


@pytest.mark.parametrize("damage", ["torn", "flipped", "no cluster"])
def test_a_damaged_file_changes_nothing(stores: Stores, tmp_path: Path, damage: str) -> None:
    async def run(first: MetaStore, second: MetaStore) -> None:
        source = await cluster_on(first)
        await fill(source)
        file = await exported(source, seal=True)
        bad = {
            "torn": file[: len(file) * 2 // 3],
            "flipped": file.replace(b'step\\":20', b'step\\":21', 1),
            "no cluster": file.replace(b'"key":"cluster"', b'"key":"clusters"', 1),
        }[damage]
        assert bad != file
        target = await empty_on(second)
        before = await contents(second)
        with pytest.raises(CorruptDataError):
            await imported(target, bad, tmp_path)
        assert await contents(second) == before
        await target.create_pool("still-works")

    on_two(stores, run)
    assert list(tmp_path.glob("staging-*")) == []


@pytest.mark.parametrize("what", ["node", "pool", "sealed"])
def test_an_import_is_refused_where_something_could_be_lost(stores: Stores, tmp_path: Path, what: str) -> None:
    async def run(first: MetaStore, second: MetaStore) -> None:
        source = await cluster_on(first)
        file = await exported(source, seal=True)
        target = await (cluster_on(second) if what == "node" else empty_on(second))
        if what == "pool":
            await target.create_pool("mine")
        elif what == "sealed":
            await exported(target, seal=True)
        before = await contents(second)
        with pytest.raises(RefusedError):
            await imported(target, file, tmp_path)
        assert await contents(second) == before

    on_two(stores, run)


def _without_history(names: Iterable[str]) -> set[str]:
    """A controller that starts again on nothing makes its pool again, and tells that under a new name."""
    return {name for name in names if not name.startswith(keys.EVENTS)}


@pytest.mark.parametrize("answer_is_lost", [False, True])
def test_an_import_that_was_interrupted_anywhere_is_undone_or_repeated(tmp_path: Path, answer_is_lost: bool) -> None:
    async def run() -> None:
        source = Cluster()
        await source.start()
        await fill(source)
        file = await exported(source, seal=True)
        number, interrupted = 0, True
        while interrupted:
            number += 1
            target = await empty_on()
            before, txns_before = await contents(target.store), target.store.txn_count
            if answer_is_lost:
                target.store.lose_answer_of(number)
            else:
                target.store.fail(number, UnavailableError("the store is out of reach"))
            try:
                importer = Importer(Replacement(target.records, target.store.heal), tmp_path)
                await importer.run(whole(file))
                interrupted = number <= target.store.txn_count - txns_before
                await target.start()
            except UnavailableError:
                target.store.heal()
                with pytest.raises(RefusedError, match="interrupted"):
                    await target.create_pool("new")
                if number % 2:
                    await target.start()
                    assert _without_history(await contents(target.store)) == _without_history(before)
                await imported(target, file, tmp_path)
            assert await target.states() == await source.states()
        assert number > 4

    # Small transactions, so that there are several.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdrs_storaged.control.records.MAX_TXN_RECORDS", 10)
        patch.setattr(replacement, "MAX_TXN_RECORDS", 2)
        asyncio.run(run())


def test_nothing_of_an_interrupted_import_is_left_after_one_of_another_file(tmp_path: Path) -> None:
    async def run() -> None:
        full, small = Cluster(), Cluster()
        await full.start()
        await fill(full)
        await small.start()
        target = await empty_on()
        target.store.fail(4, UnavailableError("the store is out of reach"))
        with pytest.raises(UnavailableError):
            await imported(target, await exported(full, seal=True), tmp_path)
        assert set(await contents(target.store)) & set(await contents(full.store)) > {keys.CLUSTER}
        target.store.heal()
        importer = Importer(Replacement(target.records, lambda: None), tmp_path)
        await importer.run(whole(await exported(small, seal=True)))
        assert set(await contents(target.store)) == set(await contents(small.store))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdrs_storaged.control.records.MAX_TXN_RECORDS", 10)
        asyncio.run(run())


def test_an_import_is_carried_through_when_its_caller_hangs_up(tmp_path: Path) -> None:
    async def run() -> None:
        source = Cluster()
        await source.start()
        await fill(source)
        file = await exported(source, seal=True)
        target = await empty_on()
        hung_up = asyncio.Event()

        async def slow(number: int) -> None:
            hung_up.set()
            await asyncio.sleep(0)

        target.store.before = slow
        replaced = asyncio.Event()
        importer = Importer(Replacement(target.records, replaced.set), tmp_path)
        call = asyncio.create_task(importer.run(whole(file)))
        await hung_up.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(DEADLINE_SECONDS):
            await replaced.wait()
        target.store.heal()
        await target.start()
        assert await target.states() == await source.states()

    asyncio.run(run())


def test_two_imports_at_once_do_not_mix(tmp_path: Path) -> None:
    async def run() -> None:
        source = Cluster()
        await source.start()
        await fill(source)
        file = await exported(source, seal=True)
        target = await empty_on()
        importer = Importer(Replacement(target.records, lambda: None), tmp_path)
        calls = [importer.run(whole(file)) for _ in range(2)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Imported", "RefusedError"]

    asyncio.run(run())


def test_a_copy_without_secrets_gets_new_ones_when_it_is_taken_in(tmp_path: Path) -> None:
    async def run() -> None:
        source = Cluster()
        await source.start()
        await source.save(10)
        file = await exported(source, seal=True, with_secrets=False)
        target = await empty_on()
        await imported(target, file, tmp_path)
        cluster = await target.records.get(keys.CLUSTER, ClusterRecord)
        assert cluster
        assert len(cluster.value.secret) == 32
        assert cluster.value.secret != source.controller.members.cluster.secret

    asyncio.run(run())
