"""All transfers of a process share one bound of memory, and none waits for another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import blake3
import pytest

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import CorruptDataError, NotFoundError, UnavailableError
from sdrs_storaged.bucket import uploading
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.downloading import CHUNKS_PER_SPAN, open_object
from sdrs_storaged.bucket.encryption import CHUNK_BYTES
from sdrs_storaged.bucket.store import ObjectStore, Part, StoredObject
from sdrs_storaged.bucket.transfer_memory import BUFFER_BYTES, TransferMemory
from sdrs_storaged.bucket.uploading import upload
from tests.support.backups import HASTE

PART_BYTES = 1 << 20
PARTS = 12
CONCURRENCY = 4
WAIT_SECONDS = 20.0


class CountedMemory(TransferMemory):
    """Tells how many buffers are out, and how many were at most."""

    def __init__(self, shared_bytes: int) -> None:
        super().__init__(shared_bytes)
        self.out = self.most = 0
        self._counting = threading.Lock()

    def take(self, size_bytes: int, *, is_own: bool) -> memoryview | None:
        buffer = super().take(size_bytes, is_own=is_own)
        if buffer is not None:
            with self._counting:
                self.out += 1
                self.most = max(self.most, self.out)
        return buffer

    def give(self, buffer: memoryview, shared_bytes: int) -> None:
        with self._counting:
            self.out -= 1
        super().give(buffer, shared_bytes)


class Store:
    """Of one object. Parts wait until ``gate`` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.parts: dict[int, bytes] = {}
        self.held = 0
        self.is_failing = False
        self.is_complete = False
        self.content = b""

    def head(self, key: str) -> StoredObject:
        if not self.is_complete:
            raise NotFoundError("not yet")
        return StoredObject(key, sum(map(len, self.parts.values())), "", 0)

    def uploads(self, prefix: str) -> Iterator[object]:
        return iter(())

    def begin_upload(self, key: str) -> str:
        return "1"

    def put_part(self, key: str, upload_id: str, number: int, data: memoryview) -> Part:
        self.held += 1
        assert self.gate.wait(WAIT_SECONDS)
        if self.is_failing:
            raise UnavailableError("the store is out of order")
        self.parts[number] = bytes(data)
        return Part(number, len(data), "")

    def complete_upload(self, key: str, upload_id: str, parts: list[Part]) -> None:
        self.is_complete = True

    def abort_upload(self, key: str, upload_id: str) -> None:
        return

    def open(self, key: str, offset: int, size_bytes: int) -> Stream:
        return Stream(self.content[offset : offset + size_bytes])


class Stream:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def readinto(self, into: memoryview) -> int:
        piece, self._data = self._data[: len(into)], self._data[len(into) :]
        into[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        return


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "PART_BYTES", PART_BYTES)


def _bucket(store: Store, memory: TransferMemory) -> Bucket:
    as_store: ObjectStore = store  # type: ignore[assignment]
    return Bucket(Target(TargetName("nas"), "backups", concurrency=CONCURRENCY), as_store, None, HASTE, memory)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


DATA = b"".join(bytes([number]) * PART_BYTES for number in range(PARTS))


def _upload(store: Store, memory: TransferMemory, data: bytes = DATA, identity: str = "") -> None:
    blocks = (memoryview(data)[start : start + 50_000] for start in range(0, len(data), 50_000))
    identity = identity or blake3.blake3(DATA).hexdigest()
    upload(_bucket(store, memory), ObjectPlace("name", len(DATA)), blocks, blake3=identity)


def test_uploads_at_once_hold_one_buffer_each_and_what_they_share() -> None:
    memory = CountedMemory(shared_bytes=2 * PART_BYTES)
    stores = [Store() for _ in range(5)]
    threads = [threading.Thread(target=_upload, args=(store, memory)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)

    assert [b"".join(store.parts[number] for number in sorted(store.parts)) for store in stores] == [DATA] * 5
    assert memory.most <= len(stores) + 2
    assert memory.out == 0


def test_a_store_that_hangs_does_not_keep_memory_from_other_uploads() -> None:
    memory = CountedMemory(shared_bytes=3 * PART_BYTES)
    hanging, other = Store(), Store()
    hanging.gate.clear()
    thread = threading.Thread(target=_upload, args=(hanging, memory))
    thread.start()
    try:
        # Everything that is shared, and its own.
        wait_until(lambda: memory.out == 4)
        _upload(other, memory)
        assert other.is_complete
        assert not hanging.is_complete
    finally:
        hanging.gate.set()
        thread.join(WAIT_SECONDS)
    assert hanging.is_complete


def test_whatever_an_upload_ends_with_its_memory_comes_back() -> None:
    memory = CountedMemory(shared_bytes=8 * PART_BYTES)
    failing = Store()
    failing.is_failing = True

    with pytest.raises(UnavailableError):
        _upload(failing, memory)
    assert memory.out == 0
    with pytest.raises(CorruptDataError):
        _upload(Store(), memory, DATA[: 5 * PART_BYTES + 10])
    assert memory.out == 0
    with pytest.raises(CorruptDataError):
        _upload(Store(), memory, identity="0" * 64)
    assert memory.out == 0


def test_after_the_last_transfer_no_page_is_kept_whoever_still_refers_to_it() -> None:
    memory, store = TransferMemory(), Store()
    kept: list[memoryview] = []
    put_part = store.put_part

    def keep(key: str, upload_id: str, number: int, data: memoryview) -> Part:
        kept.append(data)
        return put_part(key, upload_id, number, data)

    store.put_part = keep  # type: ignore[method-assign]

    _upload(store, memory)

    assert store.is_complete
    # Pages that went back are read as zeros.
    assert not any(any(data) for data in kept)


def test_readers_read_ahead_only_as_far_as_all_of_them_may() -> None:
    memory = CountedMemory(shared_bytes=2 * BUFFER_BYTES)
    store = Store()
    store.content = bytes(3 * CHUNKS_PER_SPAN * CHUNK_BYTES + 5)
    bucket = _bucket(store, memory)
    readers = [open_object(bucket, ObjectPlace("name", len(store.content))) for _ in range(3)]
    piece = bytearray(CHUNK_BYTES)
    for _ in range(3 * CHUNKS_PER_SPAN):
        for reader in readers:
            reader.receive(memoryview(piece))
    most = memory.most
    for reader in readers:
        reader.close()
        reader.close()

    assert most <= len(readers) + 2
    wait_until(lambda: memory.out == 0)
