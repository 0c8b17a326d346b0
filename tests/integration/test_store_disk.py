"""A disk and its folder: whose it is, how full it is, whether it can be trusted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sdrs_core import checksums
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.cluster import DiskState
from sdrs_core.errors import DiskFailedError, FullError, InvalidArgumentError, RefusedError, SdrsError
from sdrs_core.ids import ClusterId, NodeId
from sdrs_storaged import fault_points
from sdrs_storaged.store.capacity import Thresholds
from sdrs_storaged.store.disk import Disk
from tests.support.file_systems import needs_root, small_file_system
from tests.support.stores import CLUSTER, NODE, all_keys, get, open_disk, opened, origin, path_of, payload, put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


class Faults:
    """Arms fault points in this process, as SDRS_FAULT_POINTS does for a daemon."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def arm(self, text: str) -> None:
        fault_points._visits.clear()
        self._path.write_text(text)

    def disarm(self) -> None:
        self._path.unlink(missing_ok=True)


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setattr(fault_points, "_setting", str(tmp_path / "faults"))
    return Faults(tmp_path / "faults")


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "tmpfs", 8) as folder:
        yield folder


def fill(folder: Path) -> Path:
    ballast = folder / "tmp" / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        for chunk in (1 << 20, 4096, 1):
            while True:
                try:
                    file.write(bytes(chunk))
                except OSError:
                    break
    return ballast


# --- whose folder ---


def test_a_disk_keeps_its_identity(folder: Path) -> None:
    disk = open_disk(folder)
    disk.close()
    again = open_disk(folder)
    again.close()
    assert again.disk_id == disk.disk_id
    assert json.loads((folder / "sdrs-disk.json").read_text())["cluster_id"] == CLUSTER


def test_a_fresh_filesystem_is_accepted(folder: Path) -> None:
    (folder / "lost+found").mkdir(parents=True)
    open_disk(folder).close()


def test_a_folder_with_other_files_is_refused_and_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("mine")
    with pytest.raises(RefusedError, match=r"not empty.*thesis\.tex"):
        open_disk(folder)
    assert os.listdir(folder) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "said"), [("d" * 32, NODE, "cluster"), (CLUSTER, "node-2", "node node-1")]
)
def test_a_folder_of_another_cluster_or_node_is_refused(folder: Path, cluster_id: str, node_id: str, said: str) -> None:
    open_disk(folder).close()
    with pytest.raises(RefusedError, match=f"belongs to {said}"):
        Disk.open(folder, cluster_id=ClusterId(cluster_id), node_id=NodeId(node_id))
    open_disk(folder).close()  # a refusal does not keep the lock


@pytest.mark.parametrize("content", ["", "{}", '{"format": 99', '{"cluster_id": "x"}'])
def test_an_unreadable_identity_is_refused(folder: Path, content: str) -> None:
    open_disk(folder).close()
    (folder / "sdrs-disk.json").write_text(content)
    with pytest.raises(RefusedError, match="cannot be read"):
        open_disk(folder)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RefusedError, match="cannot be used"):
        open_disk(tmp_path / "file" / "disk")


def test_a_second_daemon_on_the_folder_is_refused_with_the_pid_of_the_first(folder: Path) -> None:
    disk = open_disk(folder)
    program = (
        "import sys; from pathlib import Path; from tests.support.stores import open_disk; open_disk(Path(sys.argv[1]))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    second = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, env=environment, text=True
    )
    disk.close()
    assert second.returncode == 1
    assert f"folder {folder} is in use by process {os.getpid()}" in second.stderr
    open_disk(folder).close()


def test_leftovers_in_tmp_are_swept(folder: Path) -> None:
    open_disk(folder).close()
    (folder / "tmp" / "half-a-fragment").write_bytes(b"x")
    open_disk(folder).close()
    assert os.listdir(folder / "tmp") == []


# --- how full ---


def test_thresholds_and_reservations(folder: Path) -> None:
    with opened(folder, capacity_bytes=20 * BLOCK_BYTES) as store:
        assert store.disks()[0].state is DiskState.OK
        with store.create(origin(), 17 * BLOCK_BYTES + BLOCK_BYTES // 4):
            assert store.disks()[0].state is DiskState.NEAR_FULL
            with pytest.raises(FullError, match=r"8\d\.\d % of 20\.0 MiB.*95 %.*add a disk"):
                store.create(origin(), 2 * BLOCK_BYTES)
        assert store.disks()[0].used_bytes == 0
        stored = put(store, payload(17 * BLOCK_BYTES))
        assert store.disks()[0].state is DiskState.NEAR_FULL
        store.delete(stored.blob_id, 0)
        assert store.disks()[0].used_bytes == 0


def test_what_is_stored_counts_after_reopening(folder: Path) -> None:
    with opened(folder, capacity_bytes=20 * BLOCK_BYTES) as store:
        put(store, payload(3 * BLOCK_BYTES + 1))
        put(store, b"")
        used = store.disks()[0].used_bytes
    with opened(folder, capacity_bytes=20 * BLOCK_BYTES) as store:
        assert store.disks()[0].used_bytes == used > 3 * BLOCK_BYTES


def test_a_blob_of_unknown_size_stops_at_the_threshold(folder: Path) -> None:
    with opened(folder, capacity_bytes=10 * BLOCK_BYTES) as store:
        with pytest.raises(FullError):
            put(store, bytes(20 * BLOCK_BYTES), hint=False)
        assert store.disks()[0].used_bytes == 0
        assert os.listdir(folder / "tmp") == []
        put(store, bytes(BLOCK_BYTES))


def test_full_disks_are_passed_over(tmp_path: Path) -> None:
    with opened(tmp_path / "a", tmp_path / "b", capacity_bytes=10 * BLOCK_BYTES) as store:
        first, second = put(store, payload(5 * BLOCK_BYTES)), put(store, payload(5 * BLOCK_BYTES, 1))
        assert first.disk_id != second.disk_id
        with pytest.raises(FullError):
            store.create(origin(), 6 * BLOCK_BYTES)


def test_thresholds_are_validated() -> None:
    with pytest.raises(InvalidArgumentError):
        Thresholds(near_full=0.9, full=0.8)


@needs_root
def test_a_really_full_disk_refuses_recovers_and_deletes_i7(small_tmpfs: Path) -> None:
    folder = small_tmpfs / "disk"
    open_disk(folder).close()
    with opened(folder) as store:
        kept, deleted = put(store, payload(BLOCK_BYTES)), put(store, payload(BLOCK_BYTES, 1))
        ballast = fill(folder)
        assert store.disks()[0].state is DiskState.FULL
        for hint in (True, False):
            with pytest.raises(FullError):
                put(store, payload(2 * BLOCK_BYTES), hint=hint)
        assert os.listdir(folder / "tmp") == ["ballast"]
        assert store.delete(deleted.blob_id, 0)
        assert get(store, kept) == payload(BLOCK_BYTES)
        ballast.unlink()
        again = put(store, payload(2 * BLOCK_BYTES))
        assert all_keys(store) == sorted([kept.blob_id, again.blob_id])


@pytest.mark.parametrize("inventory_lost", [False, True])
@needs_root
def test_a_disk_that_is_full_when_it_is_opened_can_be_deleted_from_i7(small_tmpfs: Path, inventory_lost: bool) -> None:
    folder = small_tmpfs / "disk"
    with opened(folder) as store:
        kept, deleted = put(store, payload(BLOCK_BYTES)), put(store, payload(BLOCK_BYTES, 1))
    if inventory_lost:
        for path in folder.glob("inventory.db*"):
            path.unlink()
    os.rename(fill(folder), folder / "ballast")  # out of tmp, which is swept
    with opened(folder) as store:
        if inventory_lost:
            with pytest.raises(FullError):  # an error, not a short list
                store.list(None, 10)
        assert get(store, kept) == payload(BLOCK_BYTES)
        assert store.delete(deleted.blob_id, 0)
        assert all_keys(store) == [kept.blob_id]


def test_deleting_works_when_the_inventory_cannot_be_written_i7(folder: Path, faults: Faults) -> None:
    with opened(folder) as store:
        stored, kept = put(store, b"data"), put(store, b"kept")
        faults.arm("inventory.delete=ENOSPC")
        assert store.delete(stored.blob_id, 0)
        assert not path_of(folder, stored).exists()
        assert all_keys(store) == [kept.blob_id]
        assert store._disks[0].inventory.fragment_count == 2
        faults.disarm()
        assert all_keys(store) == [kept.blob_id]
        assert store._disks[0].inventory.fragment_count == 1


# --- whether it can be trusted ---

NO_SPACE_AT = ["fragment.created", "fragment.write", "fragment.write@3", "fragment.synced", "inventory.write"]


@pytest.mark.parametrize("point", NO_SPACE_AT)
def test_no_space_at_any_step_is_a_clean_refusal(folder: Path, faults: Faults, point: str) -> None:
    name, _, visit = point.partition("@")
    blob, data = origin(), payload(5 * BLOCK_BYTES)
    with opened(folder) as store:
        faults.arm(f"{name}=ENOSPC@{visit or 1}")
        with pytest.raises(FullError):
            put(store, data, blob)
        faults.disarm()
        assert store.lookup(blob.blob_id, 0) is None
        assert all_keys(store) == []
        assert os.listdir(folder / "tmp") == []
        assert store._disks[0].space._writing_bytes == store._disks[0].space._pending_bytes == 0
        assert get(store, put(store, data, blob)) == data


@pytest.mark.parametrize("fault", ["fragment.fsync=EIO@1", "fragment.fsync=ENOSPC@1", "fragment.folder_fsync=EIO@1"])
def test_a_failed_fsync_fails_the_disk_for_good_i9(folder: Path, faults: Faults, fault: str) -> None:
    blob = origin()
    with opened(folder) as store:
        kept = put(store, b"kept")
        begun = store.create(origin(), None)
        faults.arm(fault)
        with pytest.raises(DiskFailedError, match="fsync"):
            put(store, b"data", blob)
        faults.disarm()
        # Nothing is tried again and trusted: neither the same blob nor another, nor one that was under way.
        for again in (blob, origin()):
            with pytest.raises(DiskFailedError):
                put(store, b"data", again)
        begun.append(b"x", checksums.digest(b"x"))
        with pytest.raises(DiskFailedError):
            begun.finish(1, checksums.blob_hash(1, checksums.digest(b"x")))
        assert store.lookup(blob.blob_id, 0) is None
        assert all_keys(store) == [kept.blob_id]
        assert get(store, kept) == b"kept"
        usage = store.disks()[0]
        assert (usage.state, store._disks[0].room_bytes()) == (DiskState.FAILED, 0)
        assert "fsync" in usage.detail


def test_an_io_error_while_writing_fails_the_disk_i9(tmp_path: Path, faults: Faults) -> None:
    with opened(tmp_path / "a", tmp_path / "b") as store:
        faults.arm("fragment.write=EIO@3")
        with pytest.raises(DiskFailedError):
            put(store, payload(8 * BLOCK_BYTES))
        faults.disarm()
        assert sorted(usage.state for usage in store.disks()) == [DiskState.FAILED, DiskState.OK]
        data = payload(BLOCK_BYTES)
        assert get(store, put(store, data)) == data  # on the other one


def test_an_error_after_the_rename_is_not_acknowledged_and_can_be_repeated(folder: Path, faults: Faults) -> None:
    blob = origin()
    with opened(folder) as store:
        faults.arm("fragment.renamed=ENOSPC@1")
        with pytest.raises(SdrsError):
            put(store, b"data", blob)
        faults.disarm()
        # The file is there, but a crash could undo its name: it does not count as held (I1).
        assert store.lookup(blob.blob_id, 0) is None
        assert all_keys(store) == []
        stored = put(store, b"data", blob)
        assert store.lookup(blob.blob_id, 0) == stored
        assert all_keys(store) == [blob.blob_id]
