"""One data folder, taken as one disk: its places, its space, and whether its word can still be trusted.

::

    sdrs-disk.json, sdrs-disk.lock     whose it is (claim.py)
    fragments/<2 hex>/<blob>.<index>   durable fragments
    tmp/                               fragments on their way in; emptied at each opening
    quarantine/                        damaged fragments, each with a note; nobody reads them
    inventory.db                       an index of fragments/ (inventory.py)
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from sdrs_core.cluster import Disk as DiskView
from sdrs_core.cluster import DiskState
from sdrs_core.errors import DiskFailedError, FullError, SdrsError, UnavailableError
from sdrs_core.ids import ClusterId, NodeId, check_random_id
from sdrs_storaged.fault_points import reach
from sdrs_storaged.folders import sync_folder
from sdrs_storaged.store.buffers import BufferPool
from sdrs_storaged.store.capacity import Space, Thresholds
from sdrs_storaged.store.claim import DiskIdentity, claim
from sdrs_storaged.store.fragment import PAGE_BYTES, FragmentKey
from sdrs_storaged.store.inventory import FOLDER_NAMES, Inventory, file_name

_FLUSH_THREADS = 2
_READ_THREADS = 4
_MAX_IDLE_BUFFERS = 12
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_BROKEN = {errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV}


class Disk:
    """Made by ``Disk.open``; holds the folder's lock until ``close``."""

    def __init__(
        self, folder: Path, identity: DiskIdentity, lock_fd: int, thresholds: Thresholds, capacity_bytes: int | None
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.disk_id = identity.disk_id
        self.fragments = folder / "fragments"
        self.inventory = Inventory(folder, self.fragments, identity.disk_id)
        self.space = Space(folder, thresholds, capacity_bytes, lambda: self.inventory.stored_bytes)
        self.buffers = BufferPool(_MAX_IDLE_BUFFERS)
        # Threads here only write what they are given and wait for nobody, so any number of writers may share them.
        self.flusher = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix=f"flush-{identity.disk_id[:8]}")
        # Readers wait for no writer, and writers for no reader (P21).
        self.readers = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix=f"read-{identity.disk_id[:8]}")
        self.direct_io = False
        # An operator's word: what it holds is read, and moves elsewhere; nothing new comes.
        self.draining = False
        self._lock_fd = lock_fd
        self._failure = ""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        cluster_id: ClusterId,
        node_id: NodeId,
        thresholds: Thresholds | None = None,
        capacity_bytes: int | None = None,
    ) -> Disk:
        """Claim the folder, clear what a crash left, and bring the inventory up to date."""
        identity, lock_fd = claim(folder, cluster_id, node_id)
        disk = cls(folder, identity, lock_fd, thresholds or Thresholds(), capacity_bytes)
        try:
            with disk.explained("open"):
                disk._make_folders()
                disk._empty_tmp()
                disk.direct_io = disk._probe_direct_io()
                # I7: a full disk still opens, so that something can be deleted from it; its listings fail until then.
                with suppress(FullError):
                    disk.inventory.prepare()
        except BaseException:
            disk.close()
            raise
        return disk

    def fragment_path(self, key: FragmentKey) -> Path:
        check_random_id(key.blob_id, "blob id")
        return self.fragments / key.blob_id[:2] / file_name(key)

    def temp_path(self, key: FragmentKey) -> Path:
        check_random_id(key.blob_id, "blob id")
        return self.folder / "tmp" / f"{file_name(key)}.{secrets.token_hex(8)}"

    def quarantine_path(self, key: FragmentKey) -> Path:
        return self.folder / "quarantine" / f"{file_name(key)}.{secrets.token_hex(8)}"

    def quarantined(self, key: FragmentKey) -> Path | None:
        """Where a damaged fragment of this name was put, if one was."""
        return min((self.folder / "quarantine").glob(f"{file_name(key)}.*"), default=None)

    @property
    def failed(self) -> bool:
        return bool(self._failure)

    def check_writable(self) -> None:
        if self._failure:
            raise self._failed_error()

    def fail(self, why: str) -> DiskFailedError:
        """For good in this process (I9): after a failed fsync, pages that never reached the disk may count as clean."""
        self._failure = self._failure or why
        return self._failed_error()

    def _failed_error(self) -> DiskFailedError:
        return DiskFailedError(
            f"disk {self.folder} takes no more writes: {self._failure}. Look into the kernel's log, "
            "replace the disk, or restart storaged once it is trusted again",
            disk_id=self.disk_id,
            path=self.folder,
        )

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Turn what the operating system says into our errors, and fail the disk where it broke its word."""
        try:
            yield
        except SdrsError:  # first: some of ours are OSErrors too
            raise
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise self.space.full_error() from error
            if error.errno in _BROKEN:
                raise self.fail(f"{doing}: {error.strerror}") from error
            raise UnavailableError(f"disk {self.folder}: {doing}: {error}", disk_id=self.disk_id) from error

    def sync(self, fd: int, fault_point: str, what: Path) -> None:
        """fsync once. Any error fails the disk, ENOSPC too: a second try would succeed without the lost pages (I9)."""
        self.check_writable()
        try:
            reach(fault_point)
            os.fsync(fd)
        except OSError as error:
            raise self.fail(f"fsync of {what}: {error.strerror}") from error

    def sync_folder_of(self, path: Path) -> None:
        with self.explained(f"open {path.parent}"):
            fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync(fd, "fragment.folder_fsync", path.parent)
        finally:
            os.close(fd)

    def room_bytes(self) -> int:
        """What can be written before it counts as full."""
        return 0 if self._failure or self.draining else self.space.room_bytes()

    def view(self) -> DiskView:
        """The disk as operators and the controller see it."""
        capacity_bytes, used_bytes = self.space.measure()
        return DiskView(
            id=self.disk_id,
            path=str(self.folder),
            state=self._state(),
            capacity_bytes=capacity_bytes,
            used_bytes=used_bytes,
            fragment_count=self.inventory.fragment_count,
            detail=self._failure,
        )

    def _state(self) -> DiskState:
        if self._failure:
            return DiskState.FAILED
        return DiskState.DRAINING if self.draining else self.space.state()

    def close(self) -> None:
        self.flusher.shutdown()
        self.readers.shutdown()
        self.inventory.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _make_folders(self) -> None:
        made = False
        folders = [self.folder / name for name in ("tmp", "quarantine", "fragments")]
        for folder in [*folders, *(self.fragments / name for name in FOLDER_NAMES)]:
            if not folder.exists():
                folder.mkdir()
                made = True
        if made:
            sync_folder(self.fragments)
            sync_folder(self.folder)

    def _empty_tmp(self) -> None:
        with os.scandir(self.folder / "tmp") as entries:
            for entry in entries:
                os.unlink(entry.path)

    def _probe_direct_io(self) -> bool:
        """O_DIRECT may be refused when the file is opened or only when it is written, so write a page."""
        path = self.folder / "tmp" / "probe"
        buffer = self.buffers.take()
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
            try:
                os.pwrite(fd, memoryview(buffer)[:PAGE_BYTES], 0)
            finally:
                os.close(fd)
        except OSError as error:
            return error.errno in _NO_SPACE
        finally:
            path.unlink(missing_ok=True)
            self.buffers.give(buffer)
        return True
