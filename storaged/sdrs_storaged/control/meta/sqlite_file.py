"""The file behind the SQLite MetaStore: its lock, its schema, and what SQLite's errors mean.

Keys are stored as the bytes of their UTF-8 form, so that SQLite orders them as the contract says.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from pathlib import Path

from sdrs_core.errors import CorruptDataError, FullError, InternalError, RefusedError, SdrsError, UnavailableError
from sdrs_storaged.control.meta.in_process import Counters

APPLICATION_ID = 0x53445253  # "SDRS"
SCHEMA_VERSION = 1

_SCHEMA = (
    """CREATE TABLE kv (
        key BLOB PRIMARY KEY, value BLOB NOT NULL,
        create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL, version INTEGER NOT NULL)""",
    """CREATE TABLE history (
        revision INTEGER NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL,
        key BLOB NOT NULL, value BLOB NOT NULL, create_revision INTEGER NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (revision, position))""",
    """CREATE TABLE counters (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        revision INTEGER NOT NULL, oldest INTEGER NOT NULL, history_bytes INTEGER NOT NULL)""",
    "INSERT INTO counters VALUES (1, 0, 1, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class FileLock:
    """One process at a time has the file open. The lock goes with the process, however it ends."""

    def __init__(self, path: Path) -> None:
        lock_path = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise translated(error, path) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise RefusedError(
                f"the metadata store {path} is in use by another process: stop that one first, or use another folder",
                path=path,
            ) from None

    def release(self) -> None:
        os.close(self._fd)


def open_database(path: Path) -> sqlite3.Connection:
    """The writing connection, on a file that is ours, whole and durable; made if it did not exist."""
    database = _connect(path)
    try:
        _make_or_check_schema(database, path)
        if _single(database, "PRAGMA journal_mode = WAL") != "wal":
            raise RefusedError(f"the metadata store {path} cannot use a write-ahead log there: use a local file system")
        database.execute("PRAGMA synchronous = FULL")
        # A checkpoint started by SQLite itself would keep its errors to itself (I9), so the writer starts them.
        database.execute("PRAGMA wal_autocheckpoint = 0")
        if (verdict := _single(database, "PRAGMA quick_check(1)")) != "ok":
            raise _corrupt(path, str(verdict))
        # After a kill -9 the log may hold commits that were never fsynced. Nobody may see them before they are durable.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except (sqlite3.Error, OSError) as error:
        database.close()
        raise translated(error, path) from error
    except SdrsError:
        database.close()
        raise
    return database


def open_reader(path: Path) -> sqlite3.Connection:
    database = _connect(path)
    database.execute("PRAGMA query_only = 1")
    return database


def _connect(path: Path) -> sqlite3.Connection:
    try:
        # Each connection is used by one thread at a time, but not by the one that opened it.
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise translated(error, path) from error


def _make_or_check_schema(database: sqlite3.Connection, path: Path) -> None:
    application_id = _single(database, "PRAGMA application_id")
    version = _single(database, "PRAGMA user_version")
    if _single(database, "SELECT count(*) FROM sqlite_schema") == 0:
        database.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            database.execute(statement)
        database.execute("COMMIT")
    elif application_id != APPLICATION_ID:
        raise RefusedError(f"{path} is a database of another program: move it away, or use another folder", path=path)
    elif version != SCHEMA_VERSION:
        raise RefusedError(
            f"the metadata store {path} has format {version}, this program knows format {SCHEMA_VERSION}: "
            "use the version of storaged that wrote it, or a newer one",
            path=path,
        )


def read_counters(database: sqlite3.Connection) -> Counters:
    return Counters(*database.execute("SELECT revision, oldest, history_bytes FROM counters").fetchone())


def key_span(prefix: str, after: str = "") -> tuple[bytes, bytes]:
    """The half-open range of stored keys that start with ``prefix`` and come after ``after``."""
    start = prefix.encode()
    # UTF-8 has no byte 0xff: adding one to the last byte never overflows, and 0xff is after every key.
    end = start[:-1] + bytes([start[-1] + 1]) if start else b"\xff"
    return max(start, after.encode() + b"\0" if after else b""), end


def code_of(error: sqlite3.Error | OSError) -> int:
    """SQLite's primary code for ``error``; errors of the operating system count as what SQLite makes of them."""
    if isinstance(error, OSError):
        return sqlite3.SQLITE_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else sqlite3.SQLITE_IOERR
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # absent where Python itself found the fault
    return code & 0xFF


def translated(error: sqlite3.Error | OSError, path: Path) -> SdrsError:
    """What an error of the disk or of SQLite means for the caller."""
    match code_of(error):
        case sqlite3.SQLITE_FULL:
            return FullError(
                f"the metadata store {path} has no room ({error}): nothing was changed, free disk space and repeat",
                path=path,
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _corrupt(path, str(error))
        case sqlite3.SQLITE_BUSY:
            return UnavailableError(
                f"the metadata store {path} is locked by another program: let that one finish, then repeat", path=path
            )
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return UnavailableError(
                f"the metadata store {path} cannot be used ({error}): check its folder, permissions and disk", path=path
            )
        case _:
            return InternalError(f"the metadata store {path} failed: {error}", path=path)


def _corrupt(path: Path, detail: str) -> CorruptDataError:
    return CorruptDataError(
        f"the metadata store {path} is not a sound database ({detail}): keep the file, and restore it from a snapshot",
        path=path,
    )


def _single(database: sqlite3.Connection, statement: str) -> object:
    return database.execute(statement).fetchone()[0]
