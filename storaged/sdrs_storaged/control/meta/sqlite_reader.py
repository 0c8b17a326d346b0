"""Reads from the SQLite MetaStore, on a connection of their own so that they never wait behind an fsync.

They are linearizable all the same: a transaction is answered after its commit, and every read begins with the newest
commit. Used by one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdrs_storaged.control.meta.in_process import STRETCH_REVISIONS, Counters, Stretch, page_of, stretch_of
from sdrs_storaged.control.meta.sqlite_file import key_span, read_counters, translated
from sdrs_storaged.control.meta.store import Entry, Event, EventKind, Page


class Reader:
    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database = database
        self._path = path

    @contextmanager
    def _snapshot(self) -> Iterator[Counters]:
        """All that is read inside is of one moment. Kept short: a long one would keep the log from being emptied."""
        try:
            self._database.execute("BEGIN")
            try:
                yield read_counters(self._database)
            finally:
                self._database.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def counters(self) -> Counters:
        with self._snapshot() as counters:
            return counters

    def get(self, key: str) -> Entry | None:
        with self._snapshot():
            row = self._database.execute(
                "SELECT key, value, create_revision, mod_revision, version FROM kv WHERE key = ?", (key.encode(),)
            ).fetchone()
        return _entry(row) if row else None

    def page(self, prefix: str, after: str, limit: int) -> Page:
        with self._snapshot() as counters:
            rows = self._database.execute(
                "SELECT key, value, create_revision, mod_revision, version FROM kv "
                "WHERE key >= ? AND key < ? ORDER BY key LIMIT ?",
                (*key_span(prefix, after), limit + 1),
            )
            return page_of(map(_entry, rows), limit, counters.revision)

    def history(self, prefix: str, from_revision: int) -> Stretch:
        with self._snapshot() as counters:
            counters.check_kept(from_revision)
            scanned_to = min(counters.revision, from_revision + STRETCH_REVISIONS - 1)
            rows = self._database.execute(
                "SELECT kind, key, value, create_revision, revision, version FROM history "
                "WHERE revision BETWEEN ? AND ? AND key >= ? AND key < ? ORDER BY revision, position",
                (from_revision, scanned_to, *key_span(prefix)),
            )
            return stretch_of((Event(EventKind(kind), _entry(row)) for kind, *row in rows), scanned_to)


def _entry(row: Sequence[Any]) -> Entry:
    key, *rest = row
    return Entry(key.decode(), *rest)
