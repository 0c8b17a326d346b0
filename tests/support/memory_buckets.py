"""Buckets in memory, and checkpoints of a Harness in them: written by hand, as a run would leave them.

``memory_buckets`` is a fixture: every target of its name that is opened in this process is one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ObjectPlace, ShardManifest
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.checkpoints import Save
from sdrs_core.checksums import Buffer
from sdrs_core.errors import NotFoundError, SdrsError, UnavailableError
from sdrs_storaged.bucket import opening
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.patience import Patience
from sdrs_storaged.bucket.store import ByteStream, ObjectStore, Part, StoredObject, Upload
from sdrs_storaged.bucket.transfer_memory import TransferMemory
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.records import Copy, CopyState
from sdrs_storaged.control.records import put
from tests.support.control import Harness

NAS, FAR = TargetName("nas"), TargetName("far")


class MemoryStore(ObjectStore):
    """No multipart uploads: nothing that is uploaded here is so large."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.is_down = False

    def head(self, key: str) -> StoredObject:
        return StoredObject(key, len(self.get(key, 1 << 40)), "", 0)

    def get(self, key: str, max_bytes: int) -> bytes:
        self._check()
        if key not in self.objects:
            raise NotFoundError(f"there is no {key}")
        return self.objects[key]

    def open(self, key: str, offset: int, size_bytes: int) -> ByteStream:
        raise NotImplementedError("only manifests are kept here: the bytes of blobs pass through nodes")

    def put(self, key: str, data: Buffer, *, only_if_absent: bool = False) -> None:
        self._check()
        self.objects[key] = bytes(data)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._check()
        return (StoredObject(k, len(v), "", 0) for k, v in sorted(self.objects.items()) if k.startswith(prefix))

    def delete(self, keys: Sequence[str]) -> dict[str, SdrsError]:
        for key in keys:
            self.objects.pop(key, None)
        return {}

    def begin_upload(self, key: str) -> str:
        raise NotImplementedError("only manifests are kept here: the bytes of blobs pass through nodes")

    def uploads(self, prefix: str) -> Iterator[Upload]:
        return iter(())

    def parts(self, key: str, upload_id: str) -> Iterator[Part]:
        raise NotImplementedError("only manifests are kept here: the bytes of blobs pass through nodes")

    def put_part(self, key: str, upload_id: str, number: int, data: Buffer) -> Part:
        raise NotImplementedError("only manifests are kept here: the bytes of blobs pass through nodes")

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part]) -> None:
        raise NotImplementedError("only manifests are kept here: the bytes of blobs pass through nodes")

    def abort_upload(self, key: str, upload_id: str) -> None:
        return

    def close(self) -> None:
        return

    def _check(self) -> None:
        if self.is_down:
            raise UnavailableError("the store does not answer")


class MemoryBuckets:
    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}

    def store(self, name: str = NAS) -> MemoryStore:
        return self.stores.setdefault(name, MemoryStore())

    def open(self, target: Target, patience: Patience | None = None, memory: TransferMemory | None = None) -> Bucket:
        # By bucket and prefix: two targets may lead to the same place.
        return Bucket(target, self.store(target.bucket), None, Patience(quick_tries=1, tries=1), memory)


@pytest.fixture
def memory_buckets(monkeypatch: pytest.MonkeyPatch) -> MemoryBuckets:
    buckets = MemoryBuckets()
    monkeypatch.setattr(opening, "open_bucket", buckets.open)
    return buckets


async def add_target(harness: Harness, name: TargetName = NAS, **given: str) -> Target:
    target = replace(Target(name, bucket=name), **given)  # type: ignore[arg-type]
    return await harness.controller.backups.targets.add(target, take_over=False, request_id=name)


async def back_up(harness: Harness, save: Save, buckets: MemoryBuckets, target: TargetName = NAS) -> CommitRecord:
    """In the bucket and in the catalog."""
    controller = harness.controller
    known = controller.backups.targets.get(target)
    cluster_id = controller.members.cluster.id
    manifests = ManifestStore(buckets.open(known), cluster_id)
    hashes = []
    for stored in await harness.shards(save):
        shard = await controller.catalog.homes.resolved(stored)
        blobs = tuple(
            BackedUpBlob(
                blob.ordinal,
                blob.size_bytes,
                blob.hash,
                blob.blake3 or "b" * 64,
                b"",
                ObjectPlace(f"{save.step}/{shard.rank}/{blob.ordinal}", blob.size_bytes),
            )
            for blob in shard.blobs
        )
        manifest = ShardManifest(save.save_id, shard.rank, shard.kind, shard.size_bytes, shard.content_hash, blobs)
        hashes.append(manifests.put_shard(manifest))
    record = CommitRecord(
        cluster_id=cluster_id,
        save_id=save.save_id,
        job=save.job,
        step=save.step,
        attempt=save.attempt,
        world_size=save.world_size,
        pool=save.pool,
        kind=save.kind,
        size_bytes=save.size_bytes,
        created_unix_ms=save.created_unix_ms,
        committed_unix_ms=save.committed_unix_ms,
        backed_up_unix_ms=harness.clock.unix_ms(),
        shards=tuple(hashes),
    )
    manifests.put_commit(record)
    copy = Copy(
        target=target,
        cluster_id=cluster_id,
        save_id=save.save_id,
        job=save.job,
        step=save.step,
        attempt=save.attempt,
        world_size=save.world_size,
        pool=save.pool,
        kind=save.kind,
        size_bytes=save.size_bytes,
        created_unix_ms=save.created_unix_ms,
        committed_unix_ms=save.committed_unix_ms,
        state=CopyState.LISTED,
        backed_up_unix_ms=harness.clock.unix_ms(),
    )
    await controller.records.commit([], [put(keys.backup_copy(target, save.save_id), copy)])
    return record


async def evict(harness: Harness, save: Save) -> Save:
    """As if its policy said so, and every byte of the backup had been read."""
    evictor = harness.controller.recovery.evictor
    evictor.verify = _found_sound
    stored = await harness.controller.catalog.get(save.job, save.step)
    await evictor.evict_one(stored, NAS)
    return (await harness.controller.catalog.get(save.job, save.step)).value


async def _found_sound(copy: Copy) -> str:
    return ""
