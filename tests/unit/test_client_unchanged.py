"""What the SDK recognises as unchanged, and what it records so that a later save can."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from sdrs.save.payload import blocks
from sdrs.save.upload import Upload
from sdrs_core.checkpoints import Home, Reference, content_hash
from sdrs_core.checksums import blob_hash, block_spans, digest
from sdrs_core.errors import SaveFailedError
from sdrs_core.ids import SaveId
from sdrs_core.references import LEAST_BYTES, blake3_hasher
from sdrs_core.unchanged import Unchanged
from sdrs_proto.convert import reference_from
from tests.unit.test_client_upload import FakeCluster, failing, setup

A, B, C = (bytes([letter]) * LEAST_BYTES for letter in b"abc")


@dataclass
class Bytes:
    data: bytes
    reads: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def segments(self) -> Iterator[memoryview]:
        self.reads += 1
        yield memoryview(self.data)


@dataclass
class Contents:
    blobs: list[Bytes] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        return sum(blob.size_bytes for blob in self.blobs)


def unchanged_of(contents: Contents) -> Unchanged:
    return Unchanged([blob.size_bytes for blob in contents.blobs], lambda ordinal: blocks(contents.blobs[ordinal]))


def payload(*contents: bytes) -> Contents:
    return Contents([Bytes(content) for content in contents])


def blake3(data: bytes) -> str:
    hasher = blake3_hasher()
    assert hasher
    hasher.update(memoryview(data))
    return hasher.hexdigest()


def checksum(data: bytes) -> str:
    table = b"".join(digest(data[start:end]) for start, end in block_spans(0, len(data)))
    return blob_hash(len(data), table)


def offer(ordinal: int, data: bytes) -> Reference:
    return Reference(ordinal, len(data), checksum(data), blake3(data), Home(SaveId("a" * 32), 1, ordinal))


def test_what_is_unchanged_is_referred_to_and_read_no_more_than_it_must() -> None:
    contents = payload(A, A, B, b"small", C + b"x")
    unchanged = unchanged_of(contents)
    decided = unchanged.refer([offer(0, A), offer(1, A), offer(2, C), offer(3, b"small")])
    assert decided == {1: offer(1, A)}
    # The first and the small one are never compared, and nothing has the size of the last.
    assert [blob.reads for blob in contents.blobs] == [0, 2, 1, 0, 0]
    assert unchanged.refer([offer(1, A)]) == {1: offer(1, A)}
    assert [blob.reads for blob in contents.blobs] == [0, 2, 1, 0, 0]


def test_blake3_is_recorded_of_what_is_new_and_not_of_what_changes_with_each_save() -> None:
    contents = payload(A, B, C)
    unchanged = unchanged_of(contents)
    unchanged.refer([offer(0, A), offer(1, A)])
    assert unchanged.identify(0, checksum(A)) == ""
    assert unchanged.identify(1, checksum(B)) == ""
    assert unchanged.identify(2, checksum(C)) == blake3(C)


def test_what_changed_before_is_not_read_again_until_it_is_stored_unchanged() -> None:
    """Most of a training state changes with every save: nothing but the sending reads it."""
    contents = payload(A, B, C)
    unchanged = unchanged_of(contents)
    assert unchanged.refer([replace(offer(1, A), blake3=""), replace(offer(2, A), blake3=""), offer(3, A)]) == {}
    assert unchanged.identify(1, checksum(B)) == ""
    assert [blob.reads for blob in contents.blobs] == [0, 0, 0]


def test_what_is_the_same_by_its_checksum_but_was_never_hashed_is_stored_with_its_blake3() -> None:
    """So that the save after this one can refer to it."""
    unchanged = unchanged_of(payload(A, B))
    assert unchanged.refer([replace(offer(1, B), blake3="")]) == {}
    assert unchanged.identify(1, checksum(B)) == blake3(B)


def test_the_blake3_of_other_bytes_than_those_that_were_sent_is_not_recorded() -> None:
    """P23: the memory has changed since."""
    contents = payload(A, B)
    unchanged = unchanged_of(contents)
    contents.blobs[1].data = C
    assert unchanged.identify(1, checksum(B)) == ""


def upload_of(cluster: FakeCluster, *contents: bytes) -> Upload:
    return setup(cluster, contents=contents).upload


def test_what_is_unchanged_is_not_sent_and_the_seal_names_its_home() -> None:
    cluster = FakeCluster([("g", 1, "a")], offers=[offer(1, A), offer(2, B)])
    upload_of(cluster, b"index", A, C).run()
    assert sorted(intent.ordinal for intent in cluster.sent) == [0, 2]
    assert {intent.blob_count for intent in cluster.sent} == {3}
    [seal] = cluster.seals
    assert [blob.ordinal for blob in seal.shard.blobs] == [0, 2]
    assert [reference_from(reference) for reference in seal.shard.references] == [offer(1, A)]
    parts = [*seal.shard.blobs, *seal.shard.references]
    hashes = ((part.size_bytes, part.hash) for part in sorted(parts, key=lambda part: part.ordinal))
    assert seal.shard.content_hash == content_hash(hashes)
    # What was stored has another checksum than what was hashed before (it is made up): then it is not known by that.
    assert [blob.blake3 for blob in seal.shard.blobs] == ["", ""]


def test_a_reference_that_is_refused_is_tried_once_and_then_all_is_stored() -> None:
    cluster = FakeCluster([("g", 1, "a")], offers=[offer(1, A)], on_seal=failing(1, SaveFailedError("it is gone")))
    upload_of(cluster, b"index", A).run()
    assert [begin.may_refer for begin in cluster.begins] == [True, False]
    [seal] = cluster.seals
    assert (len(seal.shard.blobs), len(seal.shard.references)) == (2, 0)


def test_who_stores_more_than_was_counted_on_says_so_before_it_sends() -> None:
    cluster = FakeCluster([("g", 1, "a")], offers=[offer(1, A), offer(2, B)], counted_bytes=5)
    cluster.on_send = lambda *_: cluster.other_calls.append(f"sent after {len(cluster.begins)} begins")
    upload_of(cluster, b"index", A, C).run()
    assert [(begin.size_bytes, begin.may_refer) for begin in cluster.begins] == [
        (5 + 2 * LEAST_BYTES, True),
        (5 + LEAST_BYTES, False),
    ]
    assert set(cluster.other_calls) == {"sent after 2 begins"}
    assert len(cluster.seals[0].shard.references) == 1
    exact = FakeCluster([("g", 1, "a")], offers=[offer(1, A), offer(2, B)], counted_bytes=5)
    upload_of(exact, b"index", A, B).run()
    assert len(exact.begins) == 1


def test_without_the_package_nothing_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    unchanged = unchanged_of(payload(A, B))
    assert not unchanged.is_able
    assert unchanged.refer([]) == {}
    assert unchanged.identify(1, checksum(B)) == ""
