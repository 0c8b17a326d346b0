"""I5, P25: damage in a bucket that was found once is not forgotten before it is mended, and nothing new rests on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sdrs_core.backup import layout
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob
from sdrs_core.errors import RefusedError
from sdrs_core.ids import NodeId
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.control.backup import verifying
from sdrs_storaged.control.backup.records import RunKind
from tests.support import backup_nodes
from tests.support.backed_up import BucketView
from tests.support.backup_nodes import Backed
from tests.support.control import JOB
from tests.support.s3_servers import S3Server, moto_s3  # noqa: F401

A, B = NodeId("a"), NodeId("b")


@pytest.fixture
def target(moto_s3: S3Server, tmp_path: Path) -> Target:  # noqa: F811
    return moto_s3.target(tmp_path)


@pytest.fixture
def unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """All checkpoints have the same content."""

    def same_for_all(blob: Blob) -> bytes:
        return b"s" * blob.size_bytes

    monkeypatch.setattr(backup_nodes, "_content", same_for_all)


def spoil(target: Target, key: str) -> None:
    """Other bytes of the same size, which a look at names and sizes does not notice."""
    with open_bucket(target) as bucket:
        bucket.store.put(key, b"?" * bucket.store.head(key).size_bytes)


async def damaged_steps(backed: Backed) -> list[int]:
    copies = backed.harness.controller.backups.copies
    return sorted([stored.value.step async for stored in copies.of_target(backed.target.name) if stored.value.damage])


def test_a_sampled_verification_does_not_clear_what_a_full_one_has_found(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        backed = await Backed.start(target, node_ids=(A, B))
        save = await backed.harness.save(1, world_size=2)
        await backed.run()
        with BucketView(target) as view:
            [record] = view.manifests.commits()
            [blob] = view.manifests.get_shard(record, 1).blobs
        assert record.save_id == save.save_id
        spoil(target, blob.place.key)
        await backed.run(RunKind.VERIFY, full=True)
        assert await damaged_steps(backed) == [1]
        # Of the content only the first object is drawn.
        monkeypatch.setattr(verifying, "_SAMPLE", 0.0)
        assert (await backed.run(RunKind.VERIFY)).failed_checkpoints == 1
        assert await damaged_steps(backed) == [1]

    asyncio.run(run())


@pytest.mark.usefixtures("unchanged")
def test_content_that_is_sound_under_another_name_does_not_vouch_for_a_damaged_backup(target: Target) -> None:
    async def run() -> None:
        backed = await Backed.start(target, node_ids=(A, B))
        saves = [await backed.harness.save(step) for step in (1, 2)]
        await backed.run()
        with BucketView(target) as view:
            [place] = view.places()
        spoil(target, place.key)
        await backed.run(RunKind.VERIFY, full=True)
        assert await damaged_steps(backed) == [1, 2]
        # The first that is looked at is mended, the other is not in the cluster any more.
        mended, lost = sorted(saves, key=lambda save: save.save_id)
        await backed.harness.controller.catalog.delete(JOB, lost.step, why="test")
        assert (await backed.run()).done_checkpoints == 1
        assert await damaged_steps(backed) == [lost.step]
        await backed.run(RunKind.VERIFY, full=True)
        assert await damaged_steps(backed) == [lost.step]
        assert mended.step != lost.step

    asyncio.run(run())


@pytest.mark.usefixtures("unchanged")
def test_a_backup_that_was_interrupted_does_not_go_on_with_content_that_was_found_damaged(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        backed = await Backed.start(target, node_ids=(A, B))
        await backed.harness.save(1)
        await backed.run()
        await backed.harness.save(2)

        def refuse(*_: object) -> None:
            raise RefusedError("the bucket is full")

        with monkeypatch.context() as patch:
            patch.setattr(ManifestStore, "put_commit", refuse)
            assert (await backed.run()).failure
        with BucketView(target) as view:
            [place] = view.places()
            spoil(target, place.key)
            await backed.run(RunKind.VERIFY, full=True)
            assert (await backed.run()).done_checkpoints == 2
            assert len(view.restorable()) == 2

    asyncio.run(run())


def test_all_that_is_damaged_in_a_backup_is_mended_not_only_what_is_found_first(target: Target) -> None:
    async def run() -> None:
        backed = await Backed.start(target, node_ids=(A, B))
        await backed.harness.save(1, world_size=3)
        await backed.run()
        with BucketView(target) as view:
            for place in view.places():
                spoil(target, place.key)
            await backed.run(RunKind.VERIFY, full=True)
            assert (await backed.run()).done_checkpoints == 1
            assert len(view.restorable()) == 1

    asyncio.run(run())


def test_content_whose_manifest_was_lost_is_looked_up_before_it_is_relied_on(target: Target) -> None:
    async def run() -> None:
        backed = await Backed.start(target, node_ids=(A, B))
        await backed.harness.save(1, world_size=2)
        await backed.run()
        with BucketView(target) as view, open_bucket(target) as bucket:
            [record] = view.manifests.commits()
            [place, _] = view.places()
            bucket.store.delete([layout.checkpoint(record.cluster_id, JOB, 1, record.save_id), place.key])
            await backed.run(RunKind.VERIFY)
            assert (await backed.run()).done_checkpoints == 1
            assert len(view.restorable()) == 1

    asyncio.run(run())


def test_a_commit_record_that_cannot_be_read_does_not_hide_the_others_of_its_bucket(target: Target) -> None:
    async def run() -> None:
        backed = await Backed.start(target, node_ids=(A, B))
        first, second = [await backed.harness.save(step) for step in (1, 2)]
        await backed.run()
        with BucketView(target) as view:
            spoil(target, next(key for key in view.manifests.commit_keys() if first.save_id in key))
        listing = backed.harness.controller.backups.listing
        found, _ = await listing.from_bucket(target.name, job="", after="", limit=10)
        assert [(one.record and one.record.save_id, bool(one.damage)) for one in found] == [
            (None, True),
            (second.save_id, False),
        ]
        assert layout.parse_checkpoint(found[0].key)[1:] == (JOB, 1, first.save_id)
        page, token = await listing.from_bucket(target.name, job="", after="", limit=1)
        following, _ = await listing.from_bucket(target.name, job="", after=token, limit=1)
        assert [one.key for one in page + following] == [one.key for one in found]

    asyncio.run(run())
