"""A catalog in the making, on disk: records by key, until they are written into the MetaStore as a whole.

A file that arrives is only known to be whole at its end, and a rebuild looks at records and fragments several times.
Neither fits into memory (I10), so both lie in a throw-away SQLite file. Methods that end in ``_sync`` block; the others
run them in a thread.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from sdrs_core.errors import FullError, UnavailableError
from sdrs_storaged.control.archive import Record
from sdrs_storaged.seeing_through import see_through

T = TypeVar("T")

_PAGE_ROWS = 500
# After the last key of a prefix: no key has it.
_LAST = "\U0010ffff"


class Staging:
    """Open it with ``open``; ``close`` throws everything away, and is harmless twice."""

    def __init__(self, folder: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=folder, prefix="staging-", ignore_cleanup_errors=True)
        self.database = sqlite3.connect(
            Path(self._folder.name) / "staging.db", check_same_thread=False, isolation_level=None
        )
        # Nothing here outlives the process.
        self.database.execute("PRAGMA journal_mode = OFF")
        self.database.execute("PRAGMA synchronous = OFF")
        self.database.execute("CREATE TABLE record (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    @classmethod
    async def open(cls, folder: Path) -> Staging:
        return await cls.run(cls, folder)

    @staticmethod
    async def run(work: Callable[..., T], *args: object) -> T:
        """Blocking work on the file, in a thread; one at a time. Who is cancelled waits for the thread."""
        try:
            return await see_through(asyncio.to_thread(work, *args))
        except sqlite3.Error as error:
            kind = FullError if "full" in str(error) else UnavailableError
            raise kind(f"the controller's data_dir cannot be written ({error}): free space, check the disk") from error

    def close(self) -> None:
        self.database.close()
        self._folder.cleanup()

    def clear_sync(self) -> None:
        self.database.execute("DELETE FROM record")

    def apply_sync(self, records: Iterable[Record]) -> None:
        """Put, or delete where there is no value, in this order."""
        found = list(records)  # first: what cannot be read must not leave a transaction open
        self.database.execute("BEGIN")
        for key, value in found:
            if value is None:
                self.database.execute("DELETE FROM record WHERE key = ?", (key,))
            else:
                self.database.execute("INSERT OR REPLACE INTO record VALUES (?, ?)", (key, value))
        self.database.execute("COMMIT")

    def get_sync(self, key: str) -> bytes | None:
        row = self.database.execute("SELECT value FROM record WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def count_sync(self, prefix: str = "") -> int:
        query = "SELECT COUNT(*) FROM record WHERE key >= ? AND key < ?"
        return int(self.database.execute(query, (prefix, prefix + _LAST)).fetchone()[0])

    def page_sync(self, prefix: str, after: str) -> list[tuple[str, bytes]]:
        query = "SELECT key, value FROM record WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"
        with closing(self.database.execute(query, (after, prefix, prefix + _LAST, _PAGE_ROWS))) as rows:
            return rows.fetchall()

    def all_sync(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Every record below ``prefix``, a page at a time; those met may be changed meanwhile."""
        after = ""
        while page := self.page_sync(prefix, after):
            yield from page
            after = page[-1][0]
