"""Fragments through the whole engine: in, out, damaged, swapped, deleted."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sdrs_core import checksums
from sdrs_core.checkpoints import Verdict
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    FullError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from sdrs_core.ids import BlobId
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_storaged.store import reader
from sdrs_storaged.store.buffers import BUFFER_BYTES
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.shelf import Shelf
from tests.support.stores import all_keys, flip_bit, get, hash_of, opened, origin, path_of, payload, put, table_of

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 123, 4 * BUFFER_BYTES]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


@pytest.fixture(params=["direct", "buffered"])
def store(folder: Path, request: pytest.FixtureRequest) -> Iterator[FragmentStore]:
    with opened(folder) as store:
        if request.param == "buffered":
            store._disks[0].direct_io = False
        yield store


@pytest.mark.parametrize("hint", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_read(store: FragmentStore, folder: Path, size: int, hint: bool) -> None:
    data = payload(size)
    stored = put(store, data, hint=hint)
    assert get(store, stored) == data
    assert store.lookup(stored.blob_id, 0) == stored
    assert store.verify(stored.blob_id, 0, stored.fragment_hash).verdict is Verdict.OK
    assert list(store.list(None, 10)) == [stored]
    assert os.listdir(folder / "tmp") == []


def test_the_payload_lies_contiguous_for_sendfile(store: FragmentStore) -> None:
    data = payload(3 * BLOCK_BYTES + 5)
    stored = put(store, data)
    with store.open(stored.blob_id, 0) as reader:
        assert b"".join(bytes(piece) for piece in reader.pieces(0, len(data))) == data
        middle = slice(len(data) // 3, len(data) - len(data) // 5)
        assert b"".join(bytes(piece) for piece in reader.pieces(middle.start, middle.stop)) == data[middle]
        assert (reader.meta.job, reader.meta.step, reader.meta.rank, reader.meta.ordinal) == ("llm-7b", 1000, 7, 2)


def test_blocks_are_received_into_the_writers_own_buffers(store: FragmentStore) -> None:
    data = payload(7 * BLOCK_BYTES)
    with store.create(origin(), len(data)) as writer:
        for start, end in checksums.block_spans(0, len(data)):
            block = writer.next_block()
            block[: end - start] = data[start:end]
            writer.commit_block(end - start, checksums.digest(data[start:end]))
            with pytest.raises(ValueError, match="released"):
                block[0] = 0
        writer.next_block()  # as a receiver does that waits for more, and finds the end
        stored = writer.finish(len(data), hash_of(data))
    assert get(store, stored) == data


def test_a_block_of_the_source_itself_is_stored_under_the_digest_of_what_was_taken(store: FragmentStore) -> None:
    data = payload(BLOCK_BYTES + 3)
    with store.create(origin(), len(data)) as writer:
        table = b""
        for start, end in checksums.block_spans(0, len(data)):
            writer.next_block()[: end - start] = data[start:end]
            table += writer.commit_block(end - start, None)
        stored = writer.finish(len(data), checksums.blob_hash(len(data), table))
    assert table == table_of(data)
    assert get(store, stored) == data


def test_a_block_damaged_on_the_way_is_refused_and_can_be_sent_again(store: FragmentStore) -> None:
    data = payload(BLOCK_BYTES + 3)
    with store.create(origin(), None) as writer:
        writer.append(data[:BLOCK_BYTES], checksums.digest(data[:BLOCK_BYTES]))
        with pytest.raises(CorruptDataError, match="block 1"):
            writer.append(b"abd", checksums.digest(b"abc"))
        writer.append(data[BLOCK_BYTES:], checksums.digest(data[BLOCK_BYTES:]))
        stored = writer.finish(len(data), hash_of(data))
    assert get(store, stored) == data


@pytest.mark.parametrize(("size", "other"), [(4, b"abc"), (3, b"abd")])
def test_a_blob_that_is_not_what_was_announced_is_refused(
    store: FragmentStore, folder: Path, size: int, other: bytes
) -> None:
    blob = origin()
    with store.create(blob, 3) as writer:
        writer.append(b"abc", checksums.digest(b"abc"))
        with pytest.raises(CorruptDataError):
            writer.finish(size, hash_of(other))
    assert store.lookup(blob.blob_id, 0) is None
    assert os.listdir(folder / "tmp") == []


def test_misuse_of_a_writer_is_refused(store: FragmentStore) -> None:
    with store.create(origin(), None) as writer:
        with pytest.raises(InvalidArgumentError):
            writer.commit_block(1, checksums.digest(b"a"))
        with pytest.raises(InvalidArgumentError):
            writer.append(bytes(BLOCK_BYTES + 1), b"")
        writer.append(b"short", checksums.digest(b"short"))
        with pytest.raises(InvalidArgumentError, match="follows a short one"):
            writer.append(b"more", checksums.digest(b"more"))
    with pytest.raises(RefusedError, match="is over"):
        writer.next_block()
    with pytest.raises(InvalidArgumentError):
        store.open(BlobId("../../etc/passwd"), 0)


def test_an_aborted_writer_leaves_nothing(store: FragmentStore, folder: Path) -> None:
    blob = origin()
    with store.create(blob, 8 * BLOCK_BYTES) as writer:
        for _ in range(5):
            writer.append(bytes(BLOCK_BYTES), checksums.digest(bytes(BLOCK_BYTES)))
        writer.abort()
        writer.abort()
    assert os.listdir(folder / "tmp") == []
    assert store.lookup(blob.blob_id, 0) is None


def test_late_bytes_of_a_cancelled_receive_reach_no_other_fragment(store: FragmentStore) -> None:
    writer = store.create(origin(), None)
    late = writer.next_block()[:]
    writer.abort()
    data = payload(BLOCK_BYTES)
    with store.create(origin(), None) as other:
        block = other.next_block()
        block[:] = data
        late[:] = bytes(BLOCK_BYTES)
        other.commit_block(BLOCK_BYTES, checksums.digest(data))  # its bytes are its own


def test_a_rename_never_replaces_p8(store: FragmentStore, folder: Path) -> None:
    blob = origin()
    stored = put(store, b"first", blob)
    inode = path_of(folder, stored).stat().st_ino
    assert put(store, b"first", blob) == stored
    with pytest.raises(AlreadyExistsError, match="does not replace"):
        put(store, b"second", blob)
    assert path_of(folder, stored).stat().st_ino == inode
    assert get(store, stored) == b"first"
    assert list(store.list(None, 10)) == [stored]


def test_a_file_that_appears_at_the_last_moment_is_not_replaced_either_p8(
    store: FragmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = origin()
    stored = put(store, b"first", blob)
    monkeypatch.setattr(Shelf, "_standing", lambda self, stored: None)
    with pytest.raises(UnavailableError, match="File exists"):
        put(store, b"second", blob)
    assert get(store, stored) == b"first"
    assert list(store.list(None, 10)) == [stored]


def test_a_link_that_fails_leaves_no_row(store: FragmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*paths: Path) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_space)
        with pytest.raises(FullError):
            put(store, b"data")
    assert store.disks()[0].fragment_count == 0
    put(store, b"data")
    assert store.disks()[0].fragment_count == 1


def test_racing_writers_of_one_blob_agree_on_one_content_p8(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b") as store:
        blob = origin()
        writers = [store.create(blob, None) for _ in range(6)]
        for number, writer in enumerate(writers):
            writer.append(bytes([number % 2]), checksums.digest(bytes([number % 2])))
        barrier = threading.Barrier(len(writers))
        won: list[int] = []

        def finish(number: int) -> None:
            barrier.wait()
            try:
                writers[number].finish(1, hash_of(bytes([number % 2])))
                won.append(number % 2)
            except AlreadyExistsError:
                pass

        threads = [threading.Thread(target=finish, args=(number,)) for number in range(len(writers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 3
        assert len(set(won)) == 1
        assert len(store.list(None, 10)) == 1


def test_a_second_content_is_refused_also_when_it_comes_to_another_disk_p8(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b", capacity_bytes=64 * BLOCK_BYTES) as store:
        blob = origin()
        first = put(store, payload(2 * BLOCK_BYTES), blob)
        assert store.create(blob, 1).meta.disk_id != first.disk_id  # the emptier one
        with pytest.raises(AlreadyExistsError):
            put(store, b"second", blob)
        assert put(store, payload(2 * BLOCK_BYTES), blob).disk_id == first.disk_id


Damage = Callable[[Path], None]
DAMAGES: dict[str, Damage] = {
    "header": lambda path: flip_bit(path, 100),
    "first block": lambda path: flip_bit(path, PAYLOAD_OFFSET + 17),
    "last block": lambda path: flip_bit(path, PAYLOAD_OFFSET + 2 * BLOCK_BYTES + 1),
    "table": lambda path: flip_bit(path, -60),
    "blob hash": lambda path: flip_bit(path, -30),
    "trailer": lambda path: flip_bit(path, -1),
    "truncated": lambda path: os.truncate(path, PAYLOAD_OFFSET + BLOCK_BYTES),
    "empty": lambda path: os.truncate(path, 0),
    "a folder in its place": lambda path: _replace(path, Path.mkdir),
    "a loop of links": lambda path: _replace(path, lambda path: path.symlink_to(path)),
    "a link to nothing": lambda path: _replace(path, lambda path: path.symlink_to("/nothing/here")),
    "a pipe": lambda path: _replace(path, os.mkfifo),
}


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_detected_and_quarantined_i5(store: FragmentStore, folder: Path, damage: Damage) -> None:
    data = payload(2 * BLOCK_BYTES + 100)
    stored = put(store, data)
    path = path_of(folder, stored)
    damage(path)
    with pytest.raises(CorruptDataError) as caught:
        get(store, stored)
    for name in (stored.blob_id, str(path)):
        assert name in caught.value.message
    assert caught.value.facts["disk_id"] == stored.disk_id
    result = store.verify(stored.blob_id, 0, stored.fragment_hash)
    assert result.verdict is Verdict.CORRUPT
    assert stored.blob_id in result.detail
    assert len(os.listdir(folder / "quarantine")) == 2  # the file and its note
    assert store.list(None, 10) == []
    assert store.disks()[0].fragment_count == 0
    absence = store.verify(stored.blob_id, 0)
    assert absence.verdict is Verdict.MISSING
    assert str(folder / "quarantine" / stored.blob_id) in absence.detail
    # Repair can put a good one in its place.
    again = put(store, data, origin(stored.blob_id))
    assert get(store, again) == data


def test_what_cannot_be_read_for_now_is_undecided(store: FragmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = put(store, payload(BLOCK_BYTES))
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        with monkeypatch.context() as patched:
            patched.setattr(reader, "read_contents", _raiser(OSError(number, os.strerror(number))))
            with pytest.raises(UnavailableError, match="cannot be read now"):
                store.verify(stored.blob_id, 0, stored.fragment_hash)
    for number in (errno.EIO, errno.EACCES, errno.EISDIR):
        with monkeypatch.context() as patched:
            patched.setattr(reader, "read_contents", _raiser(OSError(number, os.strerror(number))))
            assert store.lookup(stored.blob_id, 0) is None, "damage is not held"
    assert store.verify(stored.blob_id, 0, stored.fragment_hash).verdict is Verdict.OK


def _raiser(error: OSError) -> Callable[[int], object]:
    def fail(_: int) -> object:
        raise error

    return fail


def test_the_damaged_block_is_named(store: FragmentStore, folder: Path) -> None:
    stored = put(store, payload(3 * BLOCK_BYTES))
    flip_bit(path_of(folder, stored), PAYLOAD_OFFSET + BLOCK_BYTES)
    with store.open(stored.blob_id, 0) as reader, pytest.raises(CorruptDataError, match="block 1 "):
        reader.verify()


def test_fragments_swapped_between_two_blobs_are_detected(store: FragmentStore, folder: Path) -> None:
    one, two = put(store, b"one"), put(store, b"two")
    one_path, two_path = path_of(folder, one), path_of(folder, two)
    one_path.rename(folder / "aside")
    two_path.rename(one_path)
    (folder / "aside").rename(two_path)
    for stored in (one, two):
        with pytest.raises(CorruptDataError, match="wrong name"):
            store.open(stored.blob_id, 0)
        assert store.verify(stored.blob_id, 0, stored.fragment_hash).verdict is Verdict.CORRUPT


def test_a_sound_fragment_that_is_not_the_recorded_blob_is_corrupt(store: FragmentStore) -> None:
    stored = put(store, b"one")
    result = store.verify(stored.blob_id, 0, hash_of(b"two"))
    assert result.verdict is Verdict.CORRUPT
    assert "on record" in result.detail
    # I7: whoever asked may be the one who is wrong.
    assert get(store, stored) == b"one"


def test_a_new_copy_of_a_blob_replaces_one_with_a_damaged_footer(store: FragmentStore, folder: Path) -> None:
    blob = origin()
    stored = put(store, b"data", blob)
    flip_bit(path_of(folder, stored), -1)
    assert store.lookup(blob.blob_id, 0) is None
    assert get(store, put(store, b"data", blob)) == b"data"
    assert len(os.listdir(folder / "quarantine")) == 2


def test_verify_tells_its_progress(store: FragmentStore) -> None:
    stored = put(store, payload(2 * BUFFER_BYTES + 1))
    seen: list[int] = []
    store.verify(stored.blob_id, 0, progress=seen.append)
    assert seen == [BUFFER_BYTES, 2 * BUFFER_BYTES, 2 * BUFFER_BYTES + 1]


def test_a_copy_repaired_during_its_verification_is_not_quarantined(store: FragmentStore, folder: Path) -> None:
    blob, data = origin(), payload(2 * BUFFER_BYTES)
    stored = put(store, data, blob)
    flip_bit(path_of(folder, stored), PAYLOAD_OFFSET + BUFFER_BYTES)

    def repair(checked_bytes: int) -> None:
        store.quarantine(blob.blob_id, 0, "found by somebody else")
        put(store, data, blob)

    assert store.verify(blob.blob_id, 0, progress=repair).verdict is Verdict.CORRUPT
    assert get(store, stored) == data


def test_a_deleted_fragment_is_gone(store: FragmentStore, folder: Path) -> None:
    stored = put(store, b"data")
    assert store.delete(stored.blob_id, 0)
    assert not store.delete(stored.blob_id, 0)
    assert not path_of(folder, stored).exists()
    assert store.list(None, 10) == []
    with pytest.raises(NotFoundError):
        store.open(stored.blob_id, 0)


def test_a_file_deleted_behind_our_back_is_missing_and_not_listed(store: FragmentStore, folder: Path) -> None:
    stored, kept = put(store, b"data"), put(store, b"kept")
    path_of(folder, stored).unlink()
    assert store.verify(stored.blob_id, 0).verdict is Verdict.MISSING
    assert list(store.list(None, 10)) == [kept]
    assert store.disks()[0].fragment_count == 1


def test_listings_are_paged_over_all_disks(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b", capacity_bytes=64 * BLOCK_BYTES) as store:
        stored = [put(store, payload(100, seed)) for seed in range(7)]
        assert len({fragment.disk_id for fragment in stored}) == 2
        assert all_keys(store) == sorted(fragment.blob_id for fragment in stored)
        with pytest.raises(InvalidArgumentError):
            store.list(None, 0)


def test_indices_of_one_blob_are_apart(store: FragmentStore) -> None:
    blob_id = origin().blob_id
    zero, one = put(store, b"zero", origin(blob_id, 0)), put(store, b"one", origin(blob_id, 1))
    assert (get(store, zero), get(store, one)) == (b"zero", b"one")
    store.delete(blob_id, 0)
    assert list(store.list(None, 10)) == [one]
