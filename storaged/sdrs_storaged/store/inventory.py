"""The index of one disk's fragments, in SQLite beside them.

It is derived: the files are the truth. At each opening it is compared with the file names, and it is built anew when it
is lost or damaged. Reads and deletes never depend on it; listings do, and a listing that could not be brought up to
date is an error, never a short list (I7). Paged throughout: memory does not grow with the number of fragments (I10).
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sdrs_core.codes import MIRROR
from sdrs_core.errors import CorruptDataError, FullError, UnavailableError, UnsupportedError
from sdrs_core.ids import BlobId, DiskId
from sdrs_storaged.fault_points import reach
from sdrs_storaged.folders import sync_folder
from sdrs_storaged.store.fragment import (
    OPEN_FLAGS,
    UNREADABLE_ERRNOS,
    FragmentKey,
    StoredFragment,
    file_bytes,
    read_contents,
)

INVENTORY_NAME = "inventory.db"
FOLDER_NAMES = [f"{number:02x}" for number in range(256)]
_NAME = re.compile(r"([0-9a-f]{32})\.(0|[1-9][0-9]{0,8})\Z")
_PAGE_ROWS = 1000
_FIRST = FragmentKey(BlobId(""), 0)
_SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS fragments (
    blob_id TEXT NOT NULL,
    fragment_index INTEGER NOT NULL,
    save_id TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    fragment_hash TEXT NOT NULL,
    created_unix_seconds REAL NOT NULL,
    code TEXT NOT NULL,
    source_size_bytes INTEGER NOT NULL,
    source_hash TEXT NOT NULL,
    file_bytes INTEGER NOT NULL,
    PRIMARY KEY (blob_id, fragment_index)
) WITHOUT ROWID
"""
_COLUMNS = "save_id, size_bytes, fragment_hash, created_unix_seconds, code, source_size_bytes, source_hash"
# SQLITE_ERROR too: a table of another shape under our version number.
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}

T = TypeVar("T")


class Inventory:
    """Opened by the holder of the disk's lock, so no other process can have the database open."""

    def __init__(self, folder: Path, fragments: Path, disk_id: DiskId) -> None:
        self._path = folder / INVENTORY_NAME
        self._fragments = fragments
        self._disk_id = disk_id
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        self.fragment_count = 0
        self.stored_bytes = 0

    def prepare(self) -> None:
        """Open and bring up to date; also tried by each later call as long as it has not worked."""
        self._run(lambda database: None)

    def add(self, stored: StoredFragment) -> None:
        reach("inventory.write")
        self._run(lambda database: self._insert(database, stored))

    def remove(self, key: FragmentKey) -> None:
        reach("inventory.delete")
        with self._lock:
            if self._database is not None:  # otherwise opening compares rows with files anyway
                self._run(lambda database: self._delete(database, key))

    def list(self, after: FragmentKey | None, limit: int) -> Sequence[StoredFragment]:
        """The next ``limit`` rows in the order of their keys."""
        return self._run(lambda database: self._page(database, after or _FIRST, limit))

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                if self._database is None:
                    self._open()
                assert self._database is not None
                return work(self._database)
            except sqlite3.DatabaseError as error:
                code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
                if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_CANTOPEN and self._no_space()):
                    raise FullError(
                        f"the inventory {self._path} cannot be written, its disk is full: "
                        "delete checkpoints, free space or add a disk",
                        path=self._path,
                    ) from error
                self.close()
                if code in _DAMAGED:
                    self._throw_away()
                raise UnavailableError(
                    f"the inventory {self._path} cannot be used now ({error}); it is built again at the next try",
                    path=self._path,
                ) from error

    def _no_space(self) -> bool:
        stat = os.statvfs(self._path.parent)
        return stat.f_bavail == 0 or (stat.f_files > 0 and stat.f_favail == 0)

    def _throw_away(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    def _open(self) -> None:
        try:
            database = self._connect()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _DAMAGED:
                raise
            self._throw_away()
            database = self._connect()
        try:
            self._reconcile(database)
        except BaseException:
            database.close()
            raise
        self._database = database

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        try:
            # Exclusive: no shared-memory file, which a full disk could not back (SIGBUS).
            database.execute("PRAGMA locking_mode=EXCLUSIVE")
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            if database.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("quick_check found damage")
            if database.execute("PRAGMA user_version").fetchone() != (_SCHEMA_VERSION,):
                database.execute("DROP TABLE IF EXISTS fragments")
                database.execute(_SCHEMA)
                database.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            database.execute(f"SELECT {_COLUMNS}, file_bytes FROM fragments LIMIT 1")
        except BaseException:
            database.close()
            raise
        return database

    def _reconcile(self, database: sqlite3.Connection) -> None:
        """Rows without files go, files without rows are read; one transaction for each folder."""
        for folder in (self._fragments / name for name in FOLDER_NAMES):
            database.execute("BEGIN")
            has_fragments = self._add_missing(database, folder)
            self._drop_stale(database, folder.name)
            database.execute("COMMIT")
            # A crash may have come between a rename and its folder's fsync, and what is listed must be durable (I1).
            if has_fragments:
                sync_folder(folder)
        self.fragment_count, self.stored_bytes = database.execute(
            "SELECT COUNT(*), COALESCE(SUM(file_bytes), 0) FROM fragments"
        ).fetchone()

    def _add_missing(self, database: sqlite3.Connection, folder: Path) -> bool:
        """Whether the folder has any fragment."""
        has_fragments = False
        with os.scandir(folder) as entries:
            for entry in entries:
                key = _parse_name(entry.name)
                has_fragments |= key is not None
                if key is None or self._has(database, key):
                    continue
                fd = -1
                try:
                    fd = os.open(entry.path, OPEN_FLAGS)
                    contents = read_contents(fd)
                except (CorruptDataError, UnsupportedError):
                    continue  # not listed, so it does not count; left where it is for whoever verifies it
                except OSError as error:
                    if error.errno not in UNREADABLE_ERRNOS | {errno.ENOENT}:
                        raise
                    continue
                finally:
                    if fd >= 0:
                        os.close(fd)
                if contents.meta.key == key:
                    self._insert(database, contents.stored_on(self._disk_id))
        return has_fragments

    def _drop_stale(self, database: sqlite3.Connection, prefix: str) -> None:
        after = FragmentKey(BlobId(prefix), 0)
        while True:
            rows = [row for row in self._page(database, after, _PAGE_ROWS) if row.blob_id.startswith(prefix)]
            for row in rows:
                if not (self._fragments / prefix / file_name(row.key)).exists():
                    self._delete(database, row.key)
            if len(rows) < _PAGE_ROWS:
                return
            after = rows[-1].key

    def _has(self, database: sqlite3.Connection, key: FragmentKey) -> bool:
        query = "SELECT 1 FROM fragments WHERE blob_id = ? AND fragment_index = ?"
        return database.execute(query, key).fetchone() is not None

    def _insert(self, database: sqlite3.Connection, stored: StoredFragment) -> None:
        cursor = database.execute(
            "INSERT INTO fragments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                *stored.key,
                stored.save_id,
                stored.size_bytes,
                stored.fragment_hash,
                stored.created_unix_seconds,
                stored.code,
                stored.source_size_bytes,
                stored.source_hash,
                (size := _file_bytes(stored)),
            ),
        )
        self.fragment_count += cursor.rowcount
        self.stored_bytes += cursor.rowcount * size

    def _delete(self, database: sqlite3.Connection, key: FragmentKey) -> None:
        query = "DELETE FROM fragments WHERE blob_id = ? AND fragment_index = ? RETURNING file_bytes"
        for (size_bytes,) in database.execute(query, key).fetchall():
            self.fragment_count -= 1
            self.stored_bytes -= size_bytes

    def _page(self, database: sqlite3.Connection, after: FragmentKey, limit: int) -> Sequence[StoredFragment]:
        rows = database.execute(
            f"SELECT blob_id, fragment_index, {_COLUMNS} FROM fragments "
            "WHERE (blob_id, fragment_index) > (?, ?) ORDER BY blob_id, fragment_index LIMIT ?",
            (*after, limit),
        )
        return [
            StoredFragment(blob_id, index, save_id, self._disk_id, *others) for blob_id, index, save_id, *others in rows
        ]


def _file_bytes(stored: StoredFragment) -> int:
    return file_bytes(stored.size_bytes, 0 if stored.code == MIRROR else stored.source_size_bytes)


def file_name(key: FragmentKey) -> str:
    return f"{key.blob_id}.{key.fragment_index}"


def _parse_name(name: str) -> FragmentKey | None:
    """The key in a file name, or None: a file that we did not name is left alone."""
    match = _NAME.match(name)
    return FragmentKey(BlobId(match[1]), int(match[2])) if match else None
