"""Content into buckets and out again, on moto and on a real store, as it is and encrypted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import blake3
import pytest

from sdrs_core.errors import CorruptDataError, UnavailableError
from sdrs_storaged.bucket import uploading
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.downloading import CHUNKS_PER_SPAN, open_object
from sdrs_storaged.bucket.encryption import CHUNK_BYTES, SEALED_CHUNK_BYTES
from sdrs_storaged.bucket.opening import open_bucket
from sdrs_storaged.bucket.uploading import upload
from tests.support.backups import (
    CLUSTER,
    HASTE,
    SMALL_PART_BYTES,
    blocks_of,
    content,
    get_content,
    key_file,
    put_content,
)
from tests.support.s3_servers import S3Server

BIG_BYTES = 2 * SMALL_PART_BYTES + 12_345


class Told:
    """The last of what was told."""

    done_bytes = sent_bytes = 0

    def __call__(self, done_bytes: int, sent_bytes: int) -> None:
        assert done_bytes >= self.done_bytes
        self.done_bytes, self.sent_bytes = done_bytes, sent_bytes


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "PART_BYTES", SMALL_PART_BYTES)


@pytest.fixture(params=["plain", "encrypted"])
def bucket(request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path) -> Iterator[Bucket]:
    key = key_file(tmp_path / "key", os.urandom(32)) if request.param == "encrypted" else ""
    with open_bucket(s3_server.target(tmp_path, encryption_key=key), HASTE) as bucket:
        yield bucket


def test_content_comes_back_as_it_went_in(bucket: Bucket) -> None:
    for size_bytes in (0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, SMALL_PART_BYTES):
        data, told = content(size_bytes), Told()

        place = put_content(bucket, data, progress=told)

        assert get_content(bucket, place) == data
        assert told.done_bytes == size_bytes
        assert told.sent_bytes >= size_bytes


def test_content_of_several_parts_is_read_from_any_place_on(bucket: Bucket) -> None:
    data, told = content(BIG_BYTES), Told()
    place = put_content(bucket, data, block_bytes=333_333, progress=told)

    for offset in (0, 1, CHUNK_BYTES, CHUNKS_PER_SPAN * CHUNK_BYTES + 77, BIG_BYTES - 1, BIG_BYTES):
        assert get_content(bucket, place, offset) == data[offset:]
    assert told.done_bytes == len(data)


def test_an_upload_goes_on_where_another_stopped(bucket: Bucket) -> None:
    data, identity = content(BIG_BYTES), blake3.blake3(content(BIG_BYTES)).hexdigest()
    place = bucket.new_place(CLUSTER, identity, "run", len(data))

    def broken() -> Iterator[memoryview]:
        yield from blocks_of(data[: SMALL_PART_BYTES + 3 * CHUNK_BYTES])
        raise UnavailableError("the source is gone")

    with pytest.raises(UnavailableError, match="the source is gone"):
        upload(bucket, place, broken(), blake3=identity)
    (left,) = bucket.store.uploads("")
    there = list(bucket.store.parts(place.key, left.upload_id))
    told = Told()
    upload(bucket, place, blocks_of(data), blake3=identity, progress=told)

    assert len(there) == 1
    assert told.done_bytes == len(data)
    assert told.sent_bytes < len(data) - SMALL_PART_BYTES + 1000
    assert get_content(bucket, place) == data
    assert list(bucket.store.uploads("")) == []


def test_a_source_that_turns_out_damaged_leaves_what_was_sent(bucket: Bucket) -> None:
    """Another holder of the same content goes on with it."""
    data, identity = content(BIG_BYTES), blake3.blake3(content(BIG_BYTES)).hexdigest()
    place = bucket.new_place(CLUSTER, identity, "run", len(data))

    def damaged() -> Iterator[memoryview]:
        yield from blocks_of(data[: SMALL_PART_BYTES + 3 * CHUNK_BYTES])
        raise CorruptDataError("a block does not match its checksum")

    with pytest.raises(CorruptDataError, match="a block does not match"):
        upload(bucket, place, damaged(), blake3=identity)

    assert len(list(bucket.store.uploads(""))) == 1


def test_an_upload_that_is_aborted_under_way_can_be_tried_again(bucket: Bucket) -> None:
    data, identity = content(BIG_BYTES), blake3.blake3(content(BIG_BYTES)).hexdigest()
    place = bucket.new_place(CLUSTER, identity, "run", len(data))

    def aborting() -> Iterator[memoryview]:
        for number, block in enumerate(blocks_of(data)):
            if number == 7:
                for left in list(bucket.store.uploads("")):
                    bucket.store.abort_upload(left.key, left.upload_id)
            yield block

    with pytest.raises(UnavailableError):
        upload(bucket, place, aborting(), blake3=identity)
    upload(bucket, place, blocks_of(data), blake3=identity)

    assert get_content(bucket, place) == data


def test_parts_that_are_there_with_other_bytes_are_sent_again(bucket: Bucket) -> None:
    data, identity = content(BIG_BYTES), blake3.blake3(content(BIG_BYTES)).hexdigest()
    place = bucket.new_place(CLUSTER, identity, "run", len(data))
    upload_id = bucket.store.begin_upload(place.key)
    # The second is once right and once wrong.
    for number, seed in ((1, 8), (2, 9)):
        bucket.store.put_part(place.key, upload_id, number, content(SMALL_PART_BYTES, seed=seed))
    if bucket.keys is None:
        bucket.store.put_part(place.key, upload_id, 2, data[SMALL_PART_BYTES : 2 * SMALL_PART_BYTES])

    upload(bucket, place, blocks_of(data), blake3=identity)

    assert get_content(bucket, place) == data


def test_a_whole_object_that_is_there_is_not_sent_again(bucket: Bucket) -> None:
    data = content(BIG_BYTES)
    place = put_content(bucket, data, run_id="run")

    def unread() -> Iterator[memoryview]:
        raise AssertionError("it was read again")
        yield

    upload(bucket, place, unread(), blake3=blake3.blake3(data).hexdigest())


@pytest.mark.parametrize("size_bytes", [1000, SMALL_PART_BYTES + 1000])
def test_content_that_is_not_what_was_announced_never_becomes_visible(bucket: Bucket, size_bytes: int) -> None:
    data = content(size_bytes)
    place = bucket.new_place(CLUSTER, blake3.blake3(data).hexdigest(), "run", len(data))

    for wrong in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"1"):
        with pytest.raises(CorruptDataError, match="not uploaded"):
            upload(bucket, place, blocks_of(wrong), blake3=blake3.blake3(data).hexdigest())

    assert list(bucket.store.list(f"{CLUSTER}/objects/")) == []
    assert list(bucket.store.uploads("")) == []


def test_an_upload_ends_when_its_caller_says_so_and_can_go_on(bucket: Bucket) -> None:
    data, identity = content(BIG_BYTES), blake3.blake3(content(BIG_BYTES)).hexdigest()
    place = bucket.new_place(CLUSTER, identity, "run", len(data))
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 8:
            raise UnavailableError("called off")

    with pytest.raises(UnavailableError, match="called off"):
        upload(bucket, place, blocks_of(data), blake3=identity, check=check)
    upload(bucket, place, blocks_of(data), blake3=identity)

    assert get_content(bucket, place) == data


@pytest.mark.parametrize("bucket", ["encrypted"], indirect=True)
def test_a_changed_byte_in_the_bucket_is_never_decrypted(bucket: Bucket) -> None:
    place = put_content(bucket, content(3 * CHUNK_BYTES))
    sealed = bytearray(bucket.store.get(place.key, 10 * CHUNK_BYTES))
    first, second, third = (
        sealed[start : start + SEALED_CHUNK_BYTES] for start in range(0, len(sealed), len(sealed) // 3)
    )
    flipped = third[:-500] + bytes([third[-500] ^ 1]) + third[-499:]
    for changed in (first + second + flipped, second + first + third):
        bucket.store.put(place.key, changed)
        with pytest.raises(CorruptDataError, match="does not decrypt"):
            get_content(bucket, place)
    # Cut between two chunks, with a record to match.
    bucket.store.put(place.key, first + second)
    with pytest.raises(CorruptDataError, match="does not decrypt"):
        get_content(bucket, replace(place, size_bytes=2 * CHUNK_BYTES))


def test_an_object_shorter_than_its_record_is_corrupt(bucket: Bucket) -> None:
    place = put_content(bucket, content(5000))
    bucket.store.put(place.key, bucket.store.get(place.key, 10_000)[:4000])

    with pytest.raises(CorruptDataError, match="shorter than its record"):
        get_content(bucket, place)


@pytest.mark.parametrize("bucket", ["encrypted"], indirect=True)
def test_names_and_bytes_of_encrypted_objects_tell_nothing(bucket: Bucket) -> None:
    data = b"secret words " * 1000

    place = put_content(bucket, data)

    assert blake3.blake3(data).hexdigest()[:16] not in place.key
    assert b"secret" not in bucket.store.get(place.key, 1 << 20)


def test_a_reader_that_is_closed_early_leaves_no_thread_at_work(bucket: Bucket) -> None:
    place = put_content(bucket, content(BIG_BYTES))
    reader = open_object(bucket, place)
    reader.receive(memoryview(bytearray(10)))

    reader.close()
    reader.close()
