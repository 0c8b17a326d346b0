"""P3: the record of a shard stays within what a store takes, however many fragments its blobs have."""

from __future__ import annotations

import pytest

from sdrs_core.checkpoints import Blob, ContentKind, Holder, Shard
from sdrs_core.errors import CorruptDataError
from sdrs_core.ids import BlobId, DiskId, NodeId, SaveId, random_id
from sdrs_proto.limits import MAX_BLOBS_PER_SHARD
from sdrs_storaged.control.meta.limits import MAX_REQUEST_BYTES
from sdrs_storaged.control.records import parse, put


def shard_of(blob_count: int, fragment_count: int) -> Shard:
    disks = [DiskId(random_id()) for _ in range(fragment_count)]
    blobs = tuple(
        Blob(
            BlobId(random_id()),
            ordinal,
            1 << 30,
            random_id(),
            "8+3",
            tuple(Holder(NodeId(f"node-{n}"), disks[n], n, random_id()) for n in range(fragment_count)),
        )
        for ordinal in range(blob_count)
    )
    return Shard(SaveId(random_id()), 0, ContentKind.STATE, blob_count << 30, random_id(), blobs, blobs)


def test_the_largest_shard_of_a_wide_code_and_its_mirror_fit_into_a_record() -> None:
    shard = shard_of(MAX_BLOBS_PER_SHARD, 11)
    write = put("shard/x", shard)
    assert len(write.value) < MAX_REQUEST_BYTES * 0.9  # compares and overhead go with it
    assert write.value.isascii(), "an export is text"
    assert parse("shard/x", write.value, Shard) == shard


def test_a_small_record_stays_readable() -> None:
    assert put("shard/x", shard_of(3, 6)).value.startswith(b"{")


@pytest.mark.parametrize("value", [b"zlib:", b"zlib:!!!", b"zlib:AAAA", b"zlib:eJw="])
def test_a_damaged_packed_record_is_named(value: bytes) -> None:
    with pytest.raises(CorruptDataError, match="shard/x"):
        parse("shard/x", value, Shard)
