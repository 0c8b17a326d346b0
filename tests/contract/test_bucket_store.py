"""What every object store does, moto and a real one alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_core.errors import AlreadyExistsError, CorruptDataError, NotFoundError, RefusedError, UnavailableError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.bucket.probing import probe
from sdrs_storaged.bucket.s3 import fill
from sdrs_storaged.bucket.store import ObjectStore
from tests.support.backups import HASTE, SMALL_PART_BYTES, content
from tests.support.s3_servers import S3Server


@pytest.fixture
def bucket(s3_server: S3Server, tmp_path: Path) -> Iterator[Bucket]:
    with open_bucket(s3_server.target(tmp_path), HASTE) as bucket:
        yield bucket


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return bucket.store


def test_what_is_put_is_there_whole_or_in_ranges(store: ObjectStore) -> None:
    store.put("a/b", b"0123456789")

    into = bytearray(4)
    stream = store.open("a/b", 3, 4)
    fill(stream, memoryview(into))
    stream.close()

    assert store.get("a/b", 10) == b"0123456789"
    assert into == b"3456"
    assert store.head("a/b").size_bytes == 10


def test_a_put_replaces_what_is_there(store: ObjectStore) -> None:
    store.put("a", b"old")
    store.put("a", memoryview(b"newer"))

    assert store.get("a", 100) == b"newer"


def test_an_empty_object_is_one(store: ObjectStore) -> None:
    store.put("a", b"")

    assert store.get("a", 100) == b""


def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError):
        store.get("a", 1)
    with pytest.raises(NotFoundError):
        store.head("a")
    with pytest.raises(NotFoundError):
        store.open("a", 0, 1)


def test_an_object_larger_than_expected_is_not_read(store: ObjectStore) -> None:
    store.put("a", b"0123456789")

    with pytest.raises(RefusedError, match="not one of ours"):
        store.get("a", 9)


def test_a_range_past_the_end_is_corrupt_data(store: ObjectStore) -> None:
    store.put("a", b"0123456789")

    for offset, size_bytes in ((5, 6), (10, 1), (100, 1)):
        with pytest.raises(CorruptDataError, match="shorter than its record"):
            store.open("a", offset, size_bytes)


def test_a_put_only_if_absent_is_refused_where_something_is(store: ObjectStore) -> None:
    store.put("a", b"first", only_if_absent=True)

    with pytest.raises(AlreadyExistsError):
        store.put("a", b"second", only_if_absent=True)
    assert store.get("a", 100) == b"first"


def test_a_listing_has_everything_under_a_prefix_in_order(
    store: ObjectStore, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"x/{number:02d}" for number in range(7)]
    for key in [*reversed(keys), "y"]:
        store.put(key, b"1")
    # Three pages.
    plain = store._client.get_paginator  # type: ignore[attr-defined]
    monkeypatch.setattr(
        store._client,  # type: ignore[attr-defined]
        "get_paginator",
        lambda name: _Small(plain(name)),
    )

    assert [found.key for found in store.list("x/")] == keys
    assert [found.key for found in store.list("")] == [*keys, "y"]
    assert list(store.list("z")) == []


class _Small:
    def __init__(self, paginator: object) -> None:
        self._paginator = paginator

    def paginate(self, **arguments: object) -> object:
        return self._paginator.paginate(**arguments, PaginationConfig={"PageSize": 3})  # type: ignore[attr-defined]


def test_what_is_deleted_is_gone_and_what_was_not_there_does_not_matter(store: ObjectStore) -> None:
    for key in ("a", "b", "c"):
        store.put(key, b"1")

    assert store.delete(["a", "c", "never"]) == {}
    assert [found.key for found in store.list("")] == ["b"]
    assert store.delete([]) == {}


def test_an_upload_in_parts_becomes_visible_when_it_is_completed(store: ObjectStore) -> None:
    first, second = content(SMALL_PART_BYTES), b"the end"
    upload_id = store.begin_upload("big")
    # In any order, and one of them twice.
    parts = [store.put_part("big", upload_id, 2, second)]
    store.put_part("big", upload_id, 1, content(SMALL_PART_BYTES, seed=9))
    parts.insert(0, store.put_part("big", upload_id, 1, first))

    assert set(store.parts("big", upload_id)) >= set(parts)
    assert [(upload.key, upload.upload_id) for upload in store.uploads("bi")] == [("big", upload_id)]
    with pytest.raises(NotFoundError):
        store.head("big")
    store.complete_upload("big", upload_id, parts)
    assert store.get("big", SMALL_PART_BYTES + 100) == first + second
    assert list(store.uploads("")) == []


def test_an_upload_that_is_aborted_leaves_nothing(store: ObjectStore) -> None:
    upload_id = store.begin_upload("big")
    part = store.put_part("big", upload_id, 1, b"1")

    store.abort_upload("big", upload_id)
    store.abort_upload("big", upload_id)

    assert list(store.uploads("")) == []
    with pytest.raises(NotFoundError):
        list(store.parts("big", upload_id))
    # moto answers 500 instead.
    with pytest.raises((NotFoundError, UnavailableError)):
        store.complete_upload("big", upload_id, [part])


def test_a_probe_finds_all_that_is_needed_and_leaves_nothing(s3_server: S3Server, tmp_path: Path) -> None:
    target = s3_server.target(tmp_path)

    steps = list(probe(target, HASTE))

    assert [step.name for step in steps if not step.ok] == []
    names = "open owner write read read-range list multipart overwrite-if-none delete"
    assert [step.name for step in steps] == names.split()
    with open_bucket(target, HASTE) as bucket:
        assert list(bucket.store.list("")) == []
        assert list(bucket.store.uploads("")) == []
