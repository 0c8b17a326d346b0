"""Where the fragments of all of a node's disks stand: found by name, put there once, taken away.

Publishing, deleting and quarantining change names and rows together under one lock, so that the two agree; the slow
parts (fsyncs) are outside of it. The lock also covers the other disks: a blob's second copy with another content is
refused wherever the first one stands (P8).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from sdrs_core.errors import AlreadyExistsError, CorruptDataError, FullError, NotFoundError, UnavailableError
from sdrs_storaged.fault_points import reach
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.fragment import FragmentKey, StoredFragment
from sdrs_storaged.store.reader import FragmentReader


def is_there(path: Path) -> bool:
    """Whatever it is: also what cannot be read stands in the way of a fragment of this name."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class Shelf:
    def __init__(self, disks: Sequence[Disk]) -> None:
        self._disks = disks
        self._lock = threading.Lock()
        self._unsettled: set[FragmentKey] = set()  # named, but no fsync of their folder succeeded so far

    def holders(self, key: FragmentKey) -> Iterator[tuple[Disk, Path]]:
        """The disks that have a file of this name, sound or not; those that are being drained last."""
        for disk in sorted(self._disks, key=lambda disk: disk.draining):
            path = disk.fragment_path(key)
            if is_there(path):
                yield disk, path

    def is_settled(self, key: FragmentKey) -> bool:
        """False while a crash could still undo the rename: such a fragment does not count as held (I1)."""
        with self._lock:
            return key not in self._unsettled

    def publish(self, disk: Disk, temp: Path, stored: StoredFragment) -> StoredFragment:
        """Give a synced file its final name, durably; an equal fragment that already stands there is as good, unless it
        has to leave its disk.
        """
        disk.check_writable()
        with self._lock:
            standing = self._standing(stored)
            if standing is None:
                standing = disk, stored
                self._unsettled.add(stored.key)
                try:
                    self._place(disk, temp, stored)
                except BaseException:
                    self._unsettled.discard(stored.key)
                    raise
            elif standing[0].draining and not disk.draining:
                # Held all the time: the other copy goes only once this one is durable.
                standing = disk, stored
                self._place(disk, temp, stored)
        holder, stored = standing
        path = holder.fragment_path(stored.key)
        with holder.explained(f"rename {path}"):
            reach("fragment.renamed")
        # Also for an equal one that stood there: its own writer may not have come to this point.
        holder.sync_folder_of(path)
        # Not after an error: the file stays (an equal writer may count on it), but is not listed as held.
        with self._lock:
            self._unsettled.discard(stored.key)
        return stored

    def remove(self, disk: Disk, key: FragmentKey) -> bool:
        """Unlink; the row goes too if it can: on a full disk it is dropped by a later listing (I7)."""
        path = disk.fragment_path(key)
        with self._lock, disk.explained(f"delete {path}"):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            finally:
                self._unsettled.discard(key)
                self._forget_row(disk, key)
        disk.sync_folder_of(path)
        return True

    def quarantine(self, disk: Disk, key: FragmentKey, reason: str, inode: int | None = None) -> bool:
        """Move the file aside, with a note that says why; ``inode`` spares a fresh copy that took its place."""
        path = disk.fragment_path(key)
        with self._lock:
            if not is_there(path) or (inode is not None and path.lstat().st_ino != inode):
                return False
            aside = self._move_aside(disk, key, reason)
        disk.sync_folder_of(aside)
        disk.sync_folder_of(path)
        return True

    def drop_stale_row(self, disk: Disk, key: FragmentKey) -> None:
        with self._lock:
            if not disk.fragment_path(key).exists():
                self._forget_row(disk, key)

    def _standing(self, stored: StoredFragment) -> tuple[Disk, StoredFragment] | None:
        for disk, path in self.holders(stored.key):
            try:
                with FragmentReader(disk, stored.key) as reader:
                    held = reader.stored
            except NotFoundError:
                continue
            except CorruptDataError as error:
                if not disk.failed:
                    self._move_aside(disk, stored.key, error.message)
                continue
            if held.fragment_hash != stored.fragment_hash:
                raise AlreadyExistsError(
                    f"fragment {stored.fragment_index} of blob {stored.blob_id} already stands in {path} with hash "
                    f"{held.fragment_hash}, which {stored.fragment_hash} does not replace: use a blob id only once",
                    blob_id=stored.blob_id,
                )
            if not disk.failed:
                return disk, held
        return None

    def _place(self, disk: Disk, temp: Path, stored: StoredFragment) -> None:
        path = disk.fragment_path(stored.key)
        try:
            with disk.explained(f"link {path}"):
                # The row first: a disk too full for it fails the write before anything is acknowledged.
                disk.inventory.add(stored)
                # link, not rename: it never replaces (P8).
                os.link(temp, path)
        except BaseException:
            if not is_there(path):
                self._forget_row(disk, stored.key)
            raise

    def _move_aside(self, disk: Disk, key: FragmentKey, reason: str) -> Path:
        path, aside = disk.fragment_path(key), disk.quarantine_path(key)
        with disk.explained(f"quarantine {path}"):
            os.rename(path, aside)
        with suppress(OSError):  # a full disk: the move is what matters
            aside.with_name(aside.name + ".json").write_text(json.dumps({"path": str(path), "reason": reason}))
        self._forget_row(disk, key)
        return aside

    def _forget_row(self, disk: Disk, key: FragmentKey) -> None:
        """The index may lag behind the files: listings leave out what is not there, and opening compares both."""
        with suppress(FullError, UnavailableError, OSError):
            disk.inventory.remove(key)
