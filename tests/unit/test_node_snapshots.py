"""Copies of the catalog on a node: the newest two, whole, and only of its own cluster."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from sdrs_core.cluster import Authority
from sdrs_core.errors import (
    CorruptDataError,
    FullError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    StaleTermError,
)
from sdrs_core.ids import ClusterId
from sdrs_core.snapshots import MAX_SNAPSHOT_BYTES, SnapshotId
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.snapshots import PIECE_BYTES, SnapshotShelf

CONTENT = os.urandom(PIECE_BYTES + 100) + b"\n{}\n"


def snapshot(revision: int, content: bytes = CONTENT, **given: object) -> SnapshotId:
    found = SnapshotId(
        ClusterId("c1"), 1, 5, revision, 1_700_000_000_000, len(content), xxhash.xxh3_128_hexdigest(content)
    )
    return replace(found, **given)  # type: ignore[arg-type]


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    identity = Identity.open(tmp_path / "node.json", "n1")
    identity.join(ClusterId("c1"))
    identity.obey(Authority(1, 5, 100))
    return identity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


def store(shelf: SnapshotShelf, snapshot: SnapshotId, content: bytes = CONTENT) -> None:
    with shelf.create(snapshot) as writer:
        for start in range(0, len(content), 100_000):
            writer.append(content[start : start + 100_000])
        writer.finish()
    shelf.prune()


def test_the_newest_two_are_kept_and_read_back_also_after_a_restart(folder: Path, identity: Identity) -> None:
    shelf = SnapshotShelf(folder, identity)
    for revision in (9, 100, 20):
        store(shelf, snapshot(revision))
    later = snapshot(3, incarnation=2)
    store(shelf, later)
    again = SnapshotShelf(folder, identity)
    assert again.snapshots() == [later, snapshot(100)]
    assert b"".join(again.read(later)) == CONTENT
    assert max(map(len, again.read(later))) <= PIECE_BYTES
    with pytest.raises(NotFoundError):
        next(again.read(snapshot(20)))
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_copy_of_another_cluster_or_an_older_term_is_refused(folder: Path, identity: Identity) -> None:
    shelf = SnapshotShelf(folder, identity)
    with pytest.raises(RefusedError, match="c2"):
        shelf.create(snapshot(200, cluster_id=ClusterId("c2")))
    with pytest.raises(StaleTermError):
        shelf.create(snapshot(200, term=4))
    store(shelf, snapshot(200, incarnation=2, term=1))
    assert list(folder.iterdir()) == [folder / f"{2:020d}-{200:020d}.snapshot"]


def test_a_copy_that_does_not_match_its_name_is_not_kept(folder: Path, identity: Identity) -> None:
    shelf = SnapshotShelf(folder, identity)
    with pytest.raises(CorruptDataError):
        store(shelf, snapshot(1), CONTENT[:-1] + b"x")
    with pytest.raises(CorruptDataError):
        store(shelf, snapshot(1), CONTENT[:-1])
    with pytest.raises(InvalidArgumentError, match="more bytes"):
        store(shelf, snapshot(1), CONTENT + b"x")
    for size_bytes in (0, MAX_SNAPSHOT_BYTES + 1):
        with pytest.raises(InvalidArgumentError):
            shelf.create(snapshot(1, size_bytes=size_bytes))
    with pytest.raises(InvalidArgumentError):
        shelf.create(snapshot(2**64))
    assert list(folder.iterdir()) == []


def test_what_a_crash_left_half_written_is_swept_and_what_is_damaged_is_not_offered(
    folder: Path, identity: Identity
) -> None:
    shelf = SnapshotShelf(folder, identity)
    store(shelf, snapshot(1))
    shelf.create(snapshot(2)).append(CONTENT[:10])
    assert len(list(folder.iterdir())) == 2
    damaged = folder / f"{1:020d}-{3:020d}.snapshot"
    damaged.write_bytes(b"not ours\n")
    again = SnapshotShelf(folder, identity)
    assert again.snapshots() == [snapshot(1)]
    with pytest.raises(CorruptDataError):
        next(again.read(snapshot(3)))
    assert damaged.exists()


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    folder: Path, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = SnapshotShelf(folder, identity)

    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(FullError):
            shelf.create(snapshot(1))
    assert list(folder.iterdir()) == []
