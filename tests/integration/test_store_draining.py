"""Disks that an operator drains: nothing new comes, all that is there is read, and moves to another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_core.cluster import DiskState
from sdrs_core.errors import DiskFailedError, RefusedError
from sdrs_storaged.store import shelf
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import StoredFragment
from tests.support.stores import get, opened, origin, path_of, payload, put

DATA = payload(5000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FragmentStore]:
    with opened(tmp_path / "a", tmp_path / "b") as found:
        yield found


def _folder(store: FragmentStore, stored: StoredFragment) -> Path:
    return next(Path(disk.path) for disk in store.disks() if disk.id == stored.disk_id)


def _drain(store: FragmentStore, *stored: StoredFragment) -> None:
    store.set_draining({fragment.disk_id for fragment in stored})


def test_a_drained_disk_takes_nothing_new_and_gives_what_it_has(store: FragmentStore) -> None:
    first = put(store, DATA)
    _drain(store, first)
    assert {disk.id: disk.state for disk in store.disks()}[first.disk_id] is DiskState.DRAINING
    assert all(put(store, DATA).disk_id != first.disk_id for _ in range(3))
    assert get(store, first) == DATA
    store.set_draining({disk.id for disk in store.disks()})
    with pytest.raises(RefusedError, match="drained"):
        put(store, DATA)
    store.set_draining(set())
    assert {disk.state for disk in store.disks()} == {DiskState.OK}
    put(store, DATA)


def test_an_equal_fragment_on_another_disk_takes_the_place_of_a_drained_one(store: FragmentStore) -> None:
    blob = origin()
    first = put(store, DATA, blob)
    _drain(store, first)
    assert store.is_draining(first)
    second = put(store, DATA, blob)
    assert second.disk_id != first.disk_id
    # Both are there: what stays is what is told.
    assert path_of(_folder(store, first), first).exists()
    assert store.lookup(*first.key) == second
    assert store.list(None, 10) == [second]
    store.drop_drained(second)
    assert not path_of(_folder(store, first), first).exists()
    assert store.list(None, 10) == [second]
    assert {disk.id: disk.fragment_count for disk in store.disks()} == {first.disk_id: 0, second.disk_id: 1}
    assert get(store, second) == DATA


def test_what_does_not_leave_its_disk_is_not_dropped(store: FragmentStore) -> None:
    first = put(store, DATA)
    store.drop_drained(first)
    store.set_draining({disk.id for disk in store.disks()})
    store.drop_drained(first)
    assert get(store, first) == DATA


def test_a_fragment_counts_as_held_all_the_while_it_moves(
    store: FragmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new copy has its name, and no fsync of its folder came back yet."""
    blob = origin()
    first = put(store, DATA, blob)
    _drain(store, first)
    named, may_go_on = threading.Event(), threading.Event()

    def reach(point: str) -> None:
        if point == "fragment.renamed":
            named.set()
            assert may_go_on.wait(30)

    monkeypatch.setattr(shelf, "reach", reach)
    moving = threading.Thread(target=put, args=(store, DATA, blob))
    moving.start()
    try:
        assert named.wait(30)
        assert store.lookup(*first.key) is not None
        assert [stored.key for stored in store.list(None, 10)] == [first.key]
    finally:
        may_go_on.set()
        moving.join()


def test_a_move_that_fails_leaves_the_old_copy(store: FragmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = origin()
    first = put(store, DATA, blob)
    _drain(store, first)
    monkeypatch.setattr("sdrs_storaged.store.disk.os.fsync", _broken)
    with pytest.raises(DiskFailedError):
        put(store, DATA, blob)
    monkeypatch.undo()
    assert store.lookup(*first.key) == first
    assert get(store, first) == DATA


def _broken(fd: int) -> None:
    raise OSError(5, "Input/output error")
