"""Segments: whose they are, when they may be used again, and what a restart finds (P12)."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sdrs_core.checksums import BLOCK_BYTES, digest
from sdrs_core.errors import FullError, InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import random_id
from sdrs_proto.staging import SEGMENT_ALIGN_BYTES as UNIT
from sdrs_proto.v1.staging_pb2 import StagedBlob, StagedShard
from sdrs_storaged.staging.segment import Copy, Segment
from sdrs_storaged.staging.segments import KEEP_SECONDS, Segments

PLENTY = 1 << 40


@pytest.fixture
def open_segments(tmp_path: Path) -> Iterator[Callable[..., Segments]]:
    opened: list[Segments] = []

    def reopen(budget_bytes: int = 4 * UNIT, spare_bytes: int = PLENTY, *, dies: bool = False) -> Segments:
        """As the next run of the daemon; the last one closed its files, or (``dies``) merely lost them."""
        for earlier in opened:
            if dies:
                os.close(earlier._lock_fd)
            else:
                earlier.close()
        opened.clear()
        opened.append(Segments(tmp_path / "staging", budget_bytes, lambda: spare_bytes))
        return opened[0]

    yield reopen
    for last in opened:
        last.close()


def sealed(segment: Segment, *, size_bytes: int = 10, offset: int = 0) -> StagedShard:
    blob = StagedBlob(offset=offset, size_bytes=size_bytes)
    return StagedShard(id=random_id(), segment_id=segment.id, blobs=[blob])


def test_a_segment_is_all_there_and_nobody_elses_to_read(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    segment = segments.reserve("trainer", UNIT + 1)
    found = os.fstat(segment.fd)
    assert (segment.size_bytes, found.st_size) == (2 * UNIT, 2 * UNIT)
    assert found.st_blocks * 512 >= 2 * UNIT  # its pages are there: none has to be found while somebody copies
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert stat.S_IMODE(segments.folder.stat().st_mode) == 0o700


def test_a_reservation_is_whole_or_refused_and_the_total_is_bounded(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments(budget_bytes=4 * UNIT)
    first = segments.reserve("a", 3 * UNIT)
    with pytest.raises(FullError, match="staging are free"):
        segments.reserve("b", 2 * UNIT)
    assert segments.taken_bytes == 3 * UNIT
    segments.reserve("b", UNIT)
    segments.free("a", first.id)
    assert segments.taken_bytes == UNIT
    assert not first.path.exists()
    segments.reserve("b", 3 * UNIT)


def test_memory_that_the_machine_needs_is_not_handed_out(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments(spare_bytes=UNIT)
    with pytest.raises(FullError, match="to spare"):
        segments.reserve("a", 2 * UNIT)
    assert segments.taken_bytes == 0
    segments.reserve("a", UNIT)


def test_only_its_owner_may_seal_a_segment_or_give_it_back(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    segment = segments.reserve("a", UNIT)
    with pytest.raises(NotFoundError, match="none of this process"):
        segments.seal("b", sealed(segment))
    with pytest.raises(NotFoundError):
        segments.free("b", segment.id)
    segments.seal("a", sealed(segment))
    with pytest.raises(NotFoundError):
        segments.free("a", segment.id)  # the daemon's, until it is in
    with pytest.raises(InvalidArgumentError, match="sealed already"):
        segments.seal("a", sealed(segment))
    segments.release(segment)
    segments.seal("a", sealed(segment))  # and again, warm


def test_a_blob_beyond_its_segment_is_refused(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    segment = segments.reserve("a", UNIT)
    with pytest.raises(InvalidArgumentError, match="lies beyond"):
        segments.seal("a", sealed(segment, offset=UNIT - 5))
    with pytest.raises(InvalidArgumentError, match="blobs"):
        segments.seal("a", StagedShard(id=random_id(), segment_id=segment.id))
    segments.seal("a", sealed(segment, offset=UNIT - 10))


def test_a_process_that_is_gone_leaves_what_it_sealed_and_nothing_else(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    kept, dropped, other = (segments.reserve(owner, UNIT) for owner in ("a", "a", "b"))
    segments.seal("a", sealed(kept))
    segments.end("a")
    assert (kept.path.exists(), dropped.path.exists(), other.path.exists()) == (True, False, True)
    segments.release(kept)
    assert not kept.path.exists()
    assert segments.taken_bytes == UNIT


def test_a_stopped_process_that_wakes_up_writes_only_into_its_own_segment(
    open_segments: Callable[..., Segments],
) -> None:
    """It was taken for gone, its segment freed, and another process reserves at once: P12's schedule."""
    segments = open_segments(budget_bytes=UNIT)
    with mmap.mmap(segments.reserve("stopped", UNIT).fd, UNIT) as its_own:
        segments.end("stopped")
        mine = segments.reserve("other", UNIT)
        os.pwrite(mine.fd, b"mine", 0)
        segments.seal("other", sealed(mine, size_bytes=4))
        its_own[:4] = b"late"
        read = bytearray(4)
        mine.read_into(memoryview(read), 0)
        assert read == b"mine"


@pytest.mark.parametrize("dies", [False, True], ids=["stopped", "killed"])
def test_the_next_run_finds_what_was_sealed_and_removes_the_rest(
    open_segments: Callable[..., Segments], dies: bool
) -> None:
    segments = open_segments()
    kept, loose = segments.reserve("a", UNIT), segments.reserve("a", UNIT)
    os.pwrite(kept.fd, b"0123456789", 0)
    shard = sealed(kept)
    segments.seal("a", shard)
    again = open_segments(dies=dies)
    ((found, segment),) = again.recover()
    assert found == shard
    assert segment is not None
    read = bytearray(10)
    segment.read_into(memoryview(read), 0)
    assert read == b"0123456789"
    assert not loose.path.exists()
    assert again.taken_bytes == UNIT
    again.forget(found)
    again.release(segment)
    assert open_segments().recover() == []


def test_a_seal_that_was_cut_short_by_a_crash_was_never_given(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    segment = segments.reserve("a", UNIT)
    shard = sealed(segment)
    (segments.folder / f"{shard.id}.seal.new").write_bytes(shard.SerializeToString())
    again = open_segments(dies=True)
    assert again.recover() == []
    assert [path.name for path in again.folder.iterdir()] == ["lock"]


def test_of_what_is_registered_the_record_stays_and_the_bytes_go(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    segment = segments.reserve("a", UNIT)
    shard = sealed(segment)
    segments.seal("a", shard)
    shard.registered_save_id = random_id()
    segments.record(shard)
    again = open_segments(dies=True)
    assert again.recover() == [(shard, None)]
    assert not segment.path.exists()
    assert again.taken_bytes == 0


class Machine:
    """Its clock, and the memory that it has to spare."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spare_bytes = PLENTY

    def clock(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def kept(tmp_path: Path, machine: Machine) -> Iterator[tuple[Segments, list[Segment]]]:
    """Room for four, and three that processes left: stored elsewhere, and still to be read."""
    segments = Segments(tmp_path / "kept", 4 * UNIT, lambda: machine.spare_bytes, machine.clock)
    left = [leave(segments, owner) for owner in ("a", "b", "c")]
    yield segments, left
    segments.close()


def leave(segments: Segments, owner: str) -> Segment:
    segment = segments.reserve(owner, UNIT)
    shard = sealed(segment)
    segments.seal(owner, shard)
    segments.release(segment, Copy(owner, 0, shard.blobs, {}))
    segments.end(owner)
    return segment


def there(left: list[Segment]) -> list[bool]:
    return [segment.path.exists() for segment in left]


def test_what_a_process_left_goes_oldest_first_when_room_is_needed(kept: tuple[Segments, list[Segment]]) -> None:
    segments, left = kept
    assert segments.kept_bytes == segments.taken_bytes == 3 * UNIT
    with pytest.raises(FullError):
        segments.reserve("d", 5 * UNIT)  # which never fits, so nothing goes for it
    segments.reserve("d", UNIT)
    assert there(left) == [True, True, True]
    reader, _, _ = segments.lend("a", 0, 0)
    segments.reserve("d", 2 * UNIT)
    assert there(left) == [False, False, True]
    assert (segments.taken_bytes, segments.kept_bytes) == (4 * UNIT, UNIT)
    reader.read_into(memoryview(bytearray(10)), 0)  # who reads at this moment is not cut off, and nobody waits for it
    os.close(reader.fd)
    with pytest.raises(NotFoundError):
        segments.lend("a", 0, 0)


def test_what_a_process_left_goes_when_the_machine_needs_its_memory_or_nobody_comes_for_it(
    kept: tuple[Segments, list[Segment]], machine: Machine
) -> None:
    segments, left = kept
    mine = segments.reserve("d", UNIT)
    segments.tidy()
    assert there(left) == [True, True, True]
    machine.now = left[1].left_seconds + KEEP_SECONDS
    segments.tidy()
    assert there(left) == [False, False, True]
    machine.spare_bytes = 0
    segments.tidy()
    assert there([*left, mine]) == [False, False, False, True]


def test_room_that_the_machine_lacks_is_made_of_what_is_kept(
    kept: tuple[Segments, list[Segment]], machine: Machine
) -> None:
    segments, left = kept
    machine.spare_bytes = 0
    with pytest.raises(FullError, match="to spare"):
        segments.reserve("d", UNIT)
    assert there(left) == [False, False, False]


def test_the_checksums_of_what_was_not_sent_from_here_are_made_when_it_is_read(
    open_segments: Callable[..., Segments],
) -> None:
    segments = open_segments()
    segment = segments.reserve("a", 2 * UNIT)
    os.pwrite(segment.fd, b"x" * (BLOCK_BYTES + 5), 100)
    shard = sealed(segment, offset=100, size_bytes=BLOCK_BYTES + 5)
    segments.seal("a", shard)
    segments.release(segment, Copy("save", 3, shard.blobs, {}))
    lent, blob, table = segments.lend("save", 3, 0)
    os.close(lent.fd)
    assert blob.offset == 100
    assert table == digest(b"x" * BLOCK_BYTES) + digest(b"x" * 5)
    with pytest.raises(NotFoundError):
        segments.lend("save", 3, 1)


def test_a_folder_that_others_own_or_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("open", "link"):
        with pytest.raises(RefusedError, match="user alone"):
            Segments(tmp_path / name, UNIT, lambda: PLENTY)


def test_two_daemons_do_not_share_a_folder(open_segments: Callable[..., Segments]) -> None:
    segments = open_segments()
    with pytest.raises(RefusedError, match="in use by process"):
        Segments(segments.folder, UNIT, lambda: PLENTY)


def test_a_stop_with_nothing_sealed_leaves_nothing_behind(tmp_path: Path) -> None:
    segments = Segments(tmp_path / "staging", UNIT, lambda: PLENTY)
    segments.reserve("a", UNIT)
    segments.close()
    assert not segments.folder.exists()
