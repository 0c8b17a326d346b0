"""How an object is cut, and that an upload holds no more than a few parts."""

from __future__ import annotations

from collections.abc import Iterator

import blake3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import NotFoundError
from sdrs_storaged.bucket import uploading
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.encryption import DataKey, sealed_bytes
from sdrs_storaged.bucket.store import ObjectStore, Part, StoredObject
from sdrs_storaged.bucket.uploading import part_bytes_of, upload
from sdrs_storaged.node.pacing import Pace
from tests.support.backups import HASTE


@settings(deadline=None)
@given(st.integers(1, 5 << 40))
def test_an_object_is_cut_into_parts_that_stores_take(stored_bytes: int) -> None:
    part_bytes = part_bytes_of(stored_bytes)

    assert part_bytes >= uploading.PART_BYTES
    assert -(-stored_bytes // part_bytes) <= 9000
    assert part_bytes <= 5 << 30


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 3 << 20), st.integers(50_000, 2 << 20))
def test_an_object_is_sealed_alike_however_its_blocks_come(size_bytes: int, block_bytes: int) -> None:
    data = bytes(size_bytes)

    def sealed(step: int) -> bytes:
        cipher = DataKey("key", bytes(32)).cipher("name", size_bytes)
        blocks = (memoryview(data)[start : start + step] for start in range(0, size_bytes, step))
        return b"".join(cipher.seal_all(blocks))

    assert sealed(block_bytes) == sealed(1 << 20)
    assert len(sealed(block_bytes)) == sealed_bytes(size_bytes)


class _Store:
    """Keeps what it is sent, and notes in which memory that came."""

    def __init__(self) -> None:
        self.done: dict[int, bytes] = {}
        self.memory: dict[int, object] = {}
        self.size_bytes = -1

    def head(self, key: str) -> StoredObject:
        if self.size_bytes < 0:
            raise NotFoundError("not yet")
        return StoredObject(key, self.size_bytes, "", 0)

    def uploads(self, prefix: str) -> Iterator[object]:
        return iter(())

    def begin_upload(self, key: str) -> str:
        return "1"

    def put_part(self, key: str, upload_id: str, number: int, data: memoryview) -> Part:
        self.done[number] = bytes(data)
        self.memory[id(data.obj)] = data.obj
        return Part(number, len(data), "")

    def complete_upload(self, key: str, upload_id: str, parts: list[Part]) -> None:
        self.size_bytes = sum(part.size_bytes for part in parts)
        assert [part.number for part in parts] == list(range(1, len(parts) + 1))


def test_an_upload_of_many_parts_uses_the_memory_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    part_bytes, part_count, at_once = 1 << 20, 20, 3
    monkeypatch.setattr(uploading, "PART_BYTES", part_bytes)
    store = _Store()
    bucket = Bucket(_target(at_once), _as_store(store), None, HASTE)
    data = b"".join(bytes([number]) * part_bytes for number in range(part_count))
    blocks = (memoryview(data)[start : start + 300_000] for start in range(0, len(data), 300_000))

    upload(bucket, ObjectPlace("name", len(data)), blocks, blake3=blake3.blake3(data).hexdigest())

    assert b"".join(store.done[number] for number in sorted(store.done)) == data
    # Those that are sent, and one that is filled meanwhile (I10).
    assert len(store.memory) <= at_once + 1


def test_an_upload_keeps_to_its_pace() -> None:
    store = _Store()
    slept: list[float] = []
    put: list[bytes] = []
    store.put = lambda key, data: put.append(bytes(data))  # type: ignore[attr-defined]
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(1 << 20, lambda: False, clock=lambda: now[0], processor_clock=lambda: 0.0, sleep=sleep)
    data = bytes(4 << 20)
    blocks = (memoryview(data)[start : start + (1 << 20)] for start in range(0, len(data), 1 << 20))
    identity = blake3.blake3(data).hexdigest()
    bucket = Bucket(_target(2), _as_store(store), None, HASTE)

    upload(bucket, ObjectPlace("name", len(data)), blocks, blake3=identity, pace=pace)

    assert put == [data]
    assert sum(slept) == pytest.approx(4.0)


def _target(concurrency: int) -> Target:
    return Target(TargetName("nas"), "backups", concurrency=concurrency)


def _as_store(store: _Store) -> ObjectStore:
    return store  # type: ignore[return-value]
