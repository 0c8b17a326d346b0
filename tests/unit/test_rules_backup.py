"""P25, I2, I7: what may be relied on in a bucket, and what may go from it, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sdrs_core.backup import layout
from sdrs_core.backup.runs import RunKind
from sdrs_core.backup.targets import Keep, Policy, Target, TargetName
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import AlreadyExistsError, RefusedError, SdrsError, StaleTermError
from sdrs_core.ids import NodeId, PoolName
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup import ranges
from sdrs_storaged.control.meta.store import Delete
from tests.support.backed_up import BucketView
from tests.support.backup_nodes import Backed
from tests.support.s3_servers import S3Server, moto_s3  # noqa: F401

A, B = NodeId("a"), NodeId("b")


@pytest.fixture
def target(moto_s3: S3Server, tmp_path: Path) -> Target:  # noqa: F811
    return moto_s3.target(tmp_path)


async def with_backups(target: Target, *steps: int, keep: Keep = Keep(last=1)) -> Backed:  # noqa: B008
    backed = await Backed.start(target, node_ids=(A, B))
    policy = Policy(target.name, DEFAULT_POOL, keep=keep)
    await backed.harness.controller.backups.policies.set(policy)
    for step in steps:
        await backed.harness.save(step)
        backed.harness.clock.advance(1)
    if steps:
        assert (await backed.run()).failure == ""
    return backed


@contextmanager
def put_directly(target: Target, key: str, data: bytes = b"left") -> Iterator[None]:
    with open_bucket(target) as bucket:
        bucket.store.put(key, data)
        yield


@pytest.fixture(params=[False, True])
def in_ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with so many objects that they are not all held at once."""
    if request.param:
        monkeypatch.setattr(ranges, "MAX_HELD", 1)


@pytest.mark.usefixtures("in_ranges")
def test_what_is_on_no_record_goes_after_two_complete_looks(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1)
        cluster_id = backed.harness.controller.members.cluster.id
        key, manifest = f"{cluster_id}/objects/aa/{'a' * 64}-run", f"{cluster_id}/shards/{'5' * 32}/000000.json"
        with put_directly(target, key), put_directly(target, manifest), BucketView(target) as view:
            assert (await backed.run(RunKind.PRUNE)).deleted_objects == 0
            assert key in view.object_keys()
            assert (await backed.run(RunKind.PRUNE)).deleted_objects == 2
            assert key not in view.object_keys()
            assert len(view.restorable()) == 1

    asyncio.run(run())


def test_a_listing_that_breaks_off_deletes_nothing(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1)
        cluster_id = backed.harness.controller.members.cluster.id
        key = f"{cluster_id}/objects/aa/{'a' * 64}-run"
        with put_directly(target, key), BucketView(target) as view:
            await backed.run(RunKind.PRUNE)

            def broken(store: ManifestStore) -> Iterator[object]:
                raise RefusedError("the listing broke off")
                yield

            with monkeypatch.context() as patched:
                patched.setattr(ManifestStore, "shards", broken)
                assert (await backed.run(RunKind.PRUNE)).failure == "the listing broke off"
            assert key in view.object_keys()

    asyncio.run(run())


def test_what_the_store_refuses_to_delete_stays_condemned_and_goes_later(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1, 2)

        delete = ManifestStore.delete

        def refuse(store: ManifestStore, keys: list[str]) -> dict[str, SdrsError]:
            locked = [key for key in keys if "/checkpoints/" in key]
            delete(store, [key for key in keys if key not in locked])
            return {key: RefusedError("it is under a lock") for key in locked}

        with monkeypatch.context() as patched:
            patched.setattr(ManifestStore, "delete", refuse)
            run = await backed.run(RunKind.PRUNE)
        assert (run.failure, run.deleted_checkpoints) == ("", 0)
        assert any("under a lock" in problem for problem in run.problems)
        assert await backed.steps() == [2]
        with BucketView(target) as view:
            assert len(view.restorable()) == 2, "nothing of it went while its commit record is there"
            assert (await backed.run(RunKind.PRUNE)).deleted_checkpoints == 1
            assert len(view.restorable()) == 1
            assert {place.key for place in view.places()} == view.object_keys()

    asyncio.run(run())


def test_a_backup_that_is_held_after_it_was_chosen_stays(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1, 2)
        backups = backed.harness.controller.backups
        choose = backups.pruning._choose

        async def chosen_then_held(*asked: object) -> object:
            chosen = await choose(*asked)  # type: ignore[arg-type]
            await backups.copies.hold(target.name, chosen[0].value.job, 1, held=True)
            return chosen

        backups.pruning._choose = chosen_then_held  # type: ignore[assignment, method-assign]
        assert (await backed.run(RunKind.PRUNE)).deleted_checkpoints == 0
        assert await backed.steps() == [1, 2]

    asyncio.run(run())


@pytest.mark.usefixtures("in_ranges")
def test_of_what_an_older_catalog_believes_in_only_what_is_gone_is_uploaded_again(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1, 2, 3, keep=Keep())
        backups = backed.harness.controller.backups
        with BucketView(target) as view, open_bucket(target) as bucket:
            before = view.object_keys()
            gone = min(before)
            bucket.store.delete([gone])
            await backups.targets.change(target.name, lambda record: replace(record, incarnation=0))
            await backed.run()
            after = view.object_keys()
            assert len(view.restorable()) == 3
        assert before - after == {gone}
        assert len(after) == len(before)

    asyncio.run(run())


@pytest.mark.usefixtures("in_ranges")
def test_content_that_an_older_catalog_believes_in_is_uploaded_again(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1)
        backups = backed.harness.controller.backups
        with BucketView(target) as view, open_bucket(target) as bucket:
            bucket.store.delete(sorted(view.object_keys()))
            # As if another catalog had been put in the place of this one.
            await backups.targets.change(target.name, lambda record: replace(record, incarnation=0))
            run = await backed.run()
            assert (run.failure, run.done_checkpoints) == ("", 1)
            assert len(view.restorable()) == 1

    asyncio.run(run())


def test_a_backup_that_the_catalog_forgot_is_taken_in_and_never_taken_for_rubbish(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1, 2, keep=Keep())
        backups = backed.harness.controller.backups
        [forgotten, *_] = [stored async for stored in backups.copies.of_target(target.name) if stored.value.step == 1]
        [uses] = [stored async for stored in backups.copies.uses(target.name, forgotten.value.save_id)]
        await backups.pruning._forget(target, forgotten.value)
        [identity] = uses.value.identities
        await backups._records.commit([], [Delete(keys.backup_object(target.name, identity))])
        await backed.run(RunKind.PRUNE)
        await backed.run(RunKind.PRUNE)
        assert await backed.steps() == [1, 2]
        with BucketView(target) as view:
            assert len(view.restorable()) == 2

    asyncio.run(run())


@pytest.mark.usefixtures("in_ranges")
def test_a_catalog_with_a_gap_deletes_nothing(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1)
        backups = backed.harness.controller.backups
        [known] = [stored.key async for stored in backups.copies.objects(target.name)]
        await backups._records.commit([], [Delete(known)])
        for _ in range(2):
            assert "nothing is deleted" in (await backed.run(RunKind.PRUNE)).failure
        with BucketView(target) as view:
            assert len(view.restorable()) == 1

    asyncio.run(run())


def test_a_deposed_controller_publishes_nothing(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target)
        await backed.harness.save(1)
        old = backed.harness.controller.backups
        put_shards = old._backing_up._put_shards

        async def deposed_meanwhile(work: object) -> list[str]:
            shards = await put_shards(work)  # type: ignore[arg-type]
            await backed.harness.start()
            return shards

        old._backing_up._put_shards = deposed_meanwhile  # type: ignore[assignment, method-assign]
        with pytest.raises(StaleTermError):
            await backed.run()
        with BucketView(target) as view:
            assert not view.restorable()
        # The next controller goes on with the very run.
        runs = backed.harness.controller.backups.runs
        await runs._pass_once()
        await runs._tasks[target.name]
        assert await backed.steps() == [1]

    asyncio.run(run())


@pytest.mark.parametrize("kind", [RunKind.BACKUP, RunKind.PRUNE])
def test_once_another_cluster_has_taken_a_prefix_over_nothing_is_written_or_deleted_there(
    target: Target, kind: RunKind
) -> None:
    async def run() -> None:
        backed = await with_backups(target, 1, 2)
        await backed.harness.save(3)
        with BucketView(target) as view, open_bucket(target) as bucket:
            before = view.restorable()
            ManifestStore(bucket, "f" * 32).take_over()
            assert f"cluster {'f' * 32} has taken over" in (await backed.run(kind)).failure
            assert view.restorable() == before

    asyncio.run(run())


def test_a_node_that_cannot_reach_the_bucket_is_passed_over(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target)
        await backed.harness.create_pool("two", mirrors=2)
        for failing in (A, B):
            backed.nodes.failing = {failing}
            await backed.harness.save(1 if failing == A else 2, pool=PoolName("two"))
            run = await backed.run()
            assert (run.failure, run.done_checkpoints) == ("", 1)
        assert [node_id for node_id, _ in backed.nodes.uploads] == [B, A]

    asyncio.run(run())


def test_two_targets_of_a_cluster_never_share_a_place_by_whatever_name_they_reach_it(target: Target) -> None:
    alias = replace(target, name=TargetName("alias"), endpoint=target.endpoint.replace("127.0.0.1", "localhost"))

    async def run() -> None:
        targets = (await with_backups(target)).harness.controller.backups.targets
        for take_over in (False, True):
            with pytest.raises(AlreadyExistsError, match=f"target {target.name} already"):
                await targets.add(alias, take_over=take_over, request_id="")
        assert [record.target for record in targets.all()] == [target]

        await targets.remove(target.name, accept_data_loss=True, only_there=_none)
        await targets.add(alias, take_over=False, request_id="")

        with pytest.raises(AlreadyExistsError, match="target alias already"):
            await targets.add(target, take_over=False, request_id="")

    asyncio.run(run())


def test_a_place_claimed_before_targets_were_named_is_still_ones_own(target: Target) -> None:
    async def run() -> None:
        backed = await with_backups(target)
        with open_bucket(target) as bucket:
            values = json.loads(bucket.store.get(layout.OWNER, 10_000))
            del values["target"]
            bucket.store.put(layout.OWNER, json.dumps(values).encode())

        added = await backed.harness.controller.backups.targets.add(target, take_over=False, request_id="")

        assert added == target

    asyncio.run(run())


async def _none(target: TargetName) -> int:
    return 0
