"""Whose a prefix is, who works on it, and what it says of checkpoints; on moto and on a real store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sdrs_core.backup import layout
from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ObjectPlace, ShardManifest
from sdrs_core.checkpoints import ContentKind
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, NotFoundError, PermissionDeniedError, RefusedError
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.lock import PrefixLock
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from tests.support.backups import CLUSTER, HASTE, get_content, key_file, put_content
from tests.support.s3_servers import S3Server

OTHER = "d" * 32
SAVE = SaveId("5" * 32)
BLOB = BackedUpBlob(3, 100, "h" * 32, "b" * 64, b"\x00\x01" * 8, ObjectPlace(f"{CLUSTER}/objects/aa/aa-run", 100))
SHARD = ShardManifest(SAVE, 0, ContentKind.STATE, 100, "hash", (BLOB,))
RECORD = CommitRecord(
    CLUSTER, SAVE, JobName("llm"), 900, 2, 1, PoolName("fast"), ContentKind.STATE, 100, 1, 2, 3, ("f" * 64,)
)


@pytest.fixture(params=["plain", "encrypted"])
def bucket(request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path) -> Iterator[Bucket]:
    key = key_file(tmp_path / "key", os.urandom(32)) if request.param == "encrypted" else ""
    with open_bucket(s3_server.target(tmp_path, encryption_key=key), HASTE) as bucket:
        yield bucket


def test_a_prefix_belongs_to_the_first_who_claims_it(bucket: Bucket) -> None:
    ours, others = ManifestStore(bucket, CLUSTER), ManifestStore(bucket, OTHER)
    assert ours.read_owner() is None

    ours.claim()

    assert ours.claim().cluster_id == CLUSTER
    with pytest.raises(RefusedError, match=f"belongs to cluster {CLUSTER}.*--take-over"):
        others.claim()
    assert others.take_over().former == (CLUSTER,)
    with pytest.raises(RefusedError, match=OTHER):
        ours.claim()


def test_of_two_who_claim_at_once_one_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = ManifestStore(bucket, CLUSTER), ManifestStore(bucket, OTHER)
    put = bucket.store.put
    # Between our look and our writing.
    monkeypatch.setattr(
        bucket.store,
        "put",
        lambda *a, **k: (monkeypatch.setattr(bucket.store, "put", put), others.claim(), put(*a, **k)),
    )

    with pytest.raises(RefusedError, match=f"claimed by cluster {OTHER} at the same time"):
        ours.claim()


def test_what_is_committed_is_listed_by_job_and_step(bucket: Bucket) -> None:
    manifests = ManifestStore(bucket, CLUSTER)
    key_id = bucket.new_data_key_id(CLUSTER)
    shard_hash = manifests.put_shard(SHARD, key_id)
    records = [
        replace(RECORD, job=JobName(job), step=step, shards=(shard_hash,), data_key_id=key_id)
        for job, step in (("llm", 9), ("llm", 100), ("other", 1))
    ]
    for record in reversed(records):
        manifests.put_commit(record)

    assert list(manifests.commits()) == records
    assert list(manifests.commits("llm")) == records[:2]
    assert manifests.get_commit("llm", 100, SAVE) == records[1]
    assert manifests.get_shard(records[0], 0) == SHARD
    assert list(ManifestStore(bucket, OTHER).commits()) == []

    assert manifests.delete_commit(records[0]) is None
    assert manifests.delete_shards(SAVE) == {}
    assert list(manifests.commits("llm")) == records[1:2]
    assert list(manifests.shards()) == []
    with pytest.raises(NotFoundError):
        manifests.get_commit("llm", 9, SAVE)


def test_a_damaged_manifest_is_never_believed(bucket: Bucket) -> None:
    manifests = ManifestStore(bucket, CLUSTER)
    key_id = bucket.new_data_key_id(CLUSTER)
    record = replace(RECORD, shards=(manifests.put_shard(SHARD, key_id),), data_key_id=key_id)
    manifests.put_commit(record)
    shard_key = layout.shard(CLUSTER, SAVE, 0)
    commit_key = layout.checkpoint(CLUSTER, "llm", 900, SAVE)

    data = bytearray(bucket.store.get(shard_key, 1 << 20))
    data[len(data) // 2] ^= 1
    bucket.store.put(shard_key, data)
    with pytest.raises(CorruptDataError, match="damaged or changed"):
        manifests.get_shard(record, 0)
    # A good one, and not the one that was committed.
    manifests.put_shard(replace(SHARD, size_bytes=99), key_id)
    with pytest.raises(CorruptDataError, match="damaged or changed"):
        manifests.get_shard(record, 0)

    commit = bucket.store.get(commit_key, 1 << 20)
    for damaged in (commit.replace(b'"attempt": 2', b'"attempt": 3'), commit[:-20], b"[]"):
        bucket.store.put(commit_key, damaged)
        with pytest.raises(CorruptDataError):
            list(manifests.commits())
    bucket.store.put(layout.checkpoint(CLUSTER, "llm", 901, SAVE), commit)
    with pytest.raises(CorruptDataError, match="is the commit record of"):
        manifests.get_commit("llm", 901, SAVE)


def test_others_objects_are_only_read(bucket: Bucket) -> None:
    with pytest.raises(InvalidArgumentError, match="not one of cluster"):
        ManifestStore(bucket, CLUSTER).delete([f"{OTHER}/objects/aa/aa-run"])
    bucket.target = replace(bucket.target, source_cluster_id=OTHER)
    with pytest.raises(RefusedError, match="only read"):
        ManifestStore(bucket, OTHER).put_commit(replace(RECORD, cluster_id=OTHER))


def test_a_lock_keeps_others_out_until_it_expires_or_is_released(bucket: Bucket) -> None:
    now = 1000.0
    first = PrefixLock(bucket, CLUSTER, "one", lambda: now, lease_seconds=60)
    second = PrefixLock(bucket, CLUSTER, "two", lambda: now, lease_seconds=60)

    first.acquire(term=3)
    first.acquire(term=3)
    with pytest.raises(RefusedError, match=r"worked on by one of cluster c+ until 1970-01-01T00:17:40"):
        second.acquire()
    now += 50
    first.renew()
    now += 50
    with pytest.raises(RefusedError):
        second.acquire()
    now += 20
    second.acquire()
    with pytest.raises(RefusedError, match="worked on by two"):
        first.renew()
    first.release()
    second.renew()
    second.release()
    first.acquire()


def test_keys_are_rotated_and_the_wrong_one_is_told(s3_server: S3Server, tmp_path: Path) -> None:
    old, new = (key_file(tmp_path / name, os.urandom(32)) for name in ("old", "new"))
    target = s3_server.target(tmp_path, encryption_key=old)
    with open_bucket(target, HASTE) as bucket:
        place = put_content(bucket, b"content" * 1000)
        assert bucket.keys
        old_id = bucket.keys._wrapping.present.id

    with open_bucket(replace(target, encryption_key=new), HASTE) as bucket:
        for action in (lambda b=bucket: get_content(b, place), lambda b=bucket: b.new_data_key_id(CLUSTER)):
            with pytest.raises(PermissionDeniedError, match=f"is encrypted with key {old_id}"):
                action()
    with open_bucket(replace(target, encryption_key=""), HASTE) as bucket:
        with pytest.raises(PermissionDeniedError, match="names no encryption_key"):
            get_content(bucket, place)
    with open_bucket(replace(target, encryption_key=new, former_keys=(old,)), HASTE) as bucket:
        assert bucket.keys
        assert get_content(bucket, place) == b"content" * 1000
        assert bucket.keys.rotate(CLUSTER) == 1
        assert bucket.keys.rotate(CLUSTER) == 0
    with open_bucket(replace(target, encryption_key=new), HASTE) as bucket:
        assert get_content(bucket, place) == b"content" * 1000
        assert bucket.new_data_key_id(CLUSTER) == place.data_key_id
