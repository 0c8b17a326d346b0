"""The inventory is an index: lost, damaged or stale, it is derived from the files again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sdrs_storaged.store import inventory
from sdrs_storaged.store.fragment import StoredFragment
from tests.support.stores import all_keys, flip_bit, get, opened, path_of, payload, put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def fill(folder: Path, count: int = 5) -> list[StoredFragment]:
    with opened(folder) as store:
        return sorted((put(store, payload(100, seed)) for seed in range(count)), key=lambda stored: stored.key)


def listed(folder: Path) -> list[StoredFragment]:
    with opened(folder) as store:
        assert store.disks()[0].fragment_count == len(store.list(None, 100))
        return list(store.list(None, 100))


def damage_in_the_middle(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096] + os.urandom(4096))


DAMAGES = {
    "lost": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "not a database": lambda path: path.write_bytes(os.urandom(10_000)),
    "damaged pages": damage_in_the_middle,
    "truncated": lambda path: os.truncate(path, 5000),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_an_inventory_that_is_gone_is_built_from_the_files(folder: Path, damage: object) -> None:
    stored = fill(folder)
    assert callable(damage)
    damage(folder / inventory.INVENTORY_NAME)
    assert listed(folder) == stored


def test_a_stale_inventory_is_brought_up_to_date(folder: Path, tmp_path: Path) -> None:
    old = fill(folder)
    shutil.copy(folder / inventory.INVENTORY_NAME, tmp_path / "old.db")
    with opened(folder) as store:
        store.delete(old[0].blob_id, 0)
        new = put(store, b"new")
    shutil.copy(tmp_path / "old.db", folder / inventory.INVENTORY_NAME)
    assert listed(folder) == sorted([*old[1:], new], key=lambda stored: stored.key)


def test_many_rows_of_one_folder_are_compared_by_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = fill(folder, 40)
    for fragment in stored[::2]:
        path_of(folder, fragment).unlink()
    monkeypatch.setattr(inventory, "_PAGE_ROWS", 1)
    assert listed(folder) == stored[1::2]


def test_a_damaged_file_without_a_row_is_not_listed_and_not_deleted(folder: Path) -> None:
    stored = fill(folder)
    flip_bit(path_of(folder, stored[0]), 50)
    (folder / inventory.INVENTORY_NAME).unlink()
    assert listed(folder) == stored[1:]
    assert path_of(folder, stored[0]).exists()


def test_files_that_are_not_ours_are_left_alone(folder: Path) -> None:
    stored = fill(folder)
    stranger = folder / "fragments" / "ab" / "README"
    stranger.write_text("?")
    assert listed(folder) == stored
    assert stranger.exists()


def test_reads_and_deletes_do_not_depend_on_the_inventory(folder: Path) -> None:
    with opened(folder) as store:
        stored, other = put(store, b"data"), put(store, b"other")
        store._disks[0].inventory.close()
        for path in folder.glob("inventory.db*"):
            path.unlink()
        assert get(store, stored) == b"data"
        assert store.delete(stored.blob_id, 0)
        assert all_keys(store) == [other.blob_id]
