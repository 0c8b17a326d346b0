"""Group commit: many transactions, each under its own savepoint and revision, made durable by one fsync.

Used by one thread at a time. After an error other than a full disk the file is not written again (I9): a commit that
failed may lie in the page cache and look whole, and a second fsync would say so.
"""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdrs_core.errors import InternalError, SdrsError, UnavailableError
from sdrs_storaged import fault_points
from sdrs_storaged.control.meta.changes import events_of, holds
from sdrs_storaged.control.meta.in_process import Counters, Retention, event_bytes
from sdrs_storaged.control.meta.limits import OPERATION_OVERHEAD_BYTES
from sdrs_storaged.control.meta.sqlite_file import code_of, key_span, read_counters, translated
from sdrs_storaged.control.meta.store import Compare, Entry, Event, EventKind, Op, TxnResult

# One commit drops at most this many old revisions, so that none waits for a long cleaning.
FORGET_REVISIONS = 1000
CHECKPOINT_COMMITS = 500
CHECKPOINT_BYTES = 4 << 20

# After these nothing is on disk, and nothing was lost.
_HARMLESS_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}
_DISK_CODES = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True, slots=True)
class Work:
    """One transaction to carry out, or (``forget_before``) a step of compaction."""

    compare: Sequence[Compare] = ()
    then: Sequence[Op] = ()
    forget_before: int = 0


Outcome = TxnResult | SdrsError


class Writer:
    def __init__(self, database: sqlite3.Connection, path: Path, retention: Retention) -> None:
        self._database = database
        self._path = path
        self._retention = retention
        self._counters = read_counters(database)
        self._failure: UnavailableError | None = None
        self._unchecked_commits = 0
        self._unchecked_bytes = 0

    @property
    def revision(self) -> int:
        """The newest revision that is durable."""
        return self._counters.revision

    def commit(self, works: Sequence[Work]) -> list[Outcome]:
        """Carry out ``works`` in order. If the commit fails, no one of them is answered as done."""
        if self._failure:
            return [copy.copy(self._failure) for _ in works]
        before = self._counters
        try:
            self._database.execute("BEGIN IMMEDIATE")
            outcomes = [self._run(work) for work in works]
            self._trim()
            if self._counters != before:
                self._store_counters()
            fault_points.reach("meta.commit")
            self._database.execute("COMMIT")
        except Exception as error:
            self._counters = before
            verdict = self._after_failed_commit(error)
            return [copy.copy(verdict) for _ in works]
        try:
            fault_points.reach("meta.committed")
        except OSError as error:
            failure = self._fail(error)
            return [copy.copy(failure) for _ in works]
        self._unchecked_commits += 1
        return outcomes

    @property
    def checkpoint_due(self) -> bool:
        grown = self._unchecked_commits >= CHECKPOINT_COMMITS or self._unchecked_bytes >= CHECKPOINT_BYTES
        return grown and self._failure is None

    def checkpoint(self) -> None:
        """Move the log into the database; what is in the log is durable already, so nobody needs to wait for this."""
        self._unchecked_commits = self._unchecked_bytes = 0
        try:
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            if code_of(error) not in _HARMLESS_CODES:  # otherwise the log just stays for the next time
                self._fail(error)

    def _run(self, work: Work) -> Outcome:
        before = self._counters
        self._database.execute("SAVEPOINT work")
        try:
            outcome: Outcome = self._decide_and_apply(work)
        except sqlite3.Error as error:
            if code_of(error) in _DISK_CODES or not self._database.in_transaction:
                raise
            # A defect of this transaction alone: the others of the commit go on.
            self._database.execute("ROLLBACK TO work")
            self._counters = before
            outcome = InternalError(f"the metadata store {self._path} could not carry out a transaction: {error}")
        self._database.execute("RELEASE work")
        return outcome

    def _decide_and_apply(self, work: Work) -> TxnResult:
        if not all(holds(condition, self._lookup(condition.key)) for condition in work.compare):
            return TxnResult(False, self._counters.revision)
        revision = self._counters.revision + 1
        if events := events_of(work.then, revision, self._lookup, self._keys_under):
            added_bytes = sum(map(event_bytes, events))
            self._unchecked_bytes += added_bytes
            history_bytes = self._counters.history_bytes + added_bytes
            self._counters = replace(self._counters, revision=revision, history_bytes=history_bytes)
            for position, event in enumerate(events):
                self._apply(event, position)
        if work.forget_before > self._counters.oldest:
            self._forget_before(work.forget_before)
        return TxnResult(True, self._counters.revision)

    def _apply(self, event: Event, position: int) -> None:
        entry, key = event.entry, event.entry.key.encode()
        if event.kind is EventKind.PUT:
            self._database.execute(
                "INSERT INTO kv VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, "
                "mod_revision = excluded.mod_revision, version = excluded.version",
                (key, entry.value, entry.create_revision, entry.mod_revision, entry.version),
            )
        else:
            self._database.execute("DELETE FROM kv WHERE key = ?", (key,))
        self._database.execute(
            "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)",
            (entry.mod_revision, position, event.kind.value, key, entry.value, entry.create_revision, entry.version),
        )

    def _trim(self) -> None:
        """Keep history within its retention, a bounded step at a time."""
        for _ in range(FORGET_REVISIONS):
            if not self._retention.exceeded_by(self._counters):
                return
            self._forget_before(self._counters.oldest + 1)

    def _forget_before(self, revision: int) -> None:
        dropped = self._database.execute(
            "DELETE FROM history WHERE revision < ? RETURNING length(key) + length(value)", (revision,)
        )
        dropped_bytes = sum(size_bytes + OPERATION_OVERHEAD_BYTES for (size_bytes,) in dropped)
        history_bytes = self._counters.history_bytes - dropped_bytes
        self._counters = Counters(self._counters.revision, revision, history_bytes)

    def _store_counters(self) -> None:
        self._database.execute(
            "UPDATE counters SET revision = ?, oldest = ?, history_bytes = ?",
            (self._counters.revision, self._counters.oldest, self._counters.history_bytes),
        )

    def _lookup(self, key: str) -> Entry | None:
        row = self._database.execute(
            "SELECT value, create_revision, mod_revision, version FROM kv WHERE key = ?", (key.encode(),)
        ).fetchone()
        return Entry(key, *row) if row else None

    def _keys_under(self, prefix: str) -> Iterator[str]:
        rows = self._database.execute("SELECT key FROM kv WHERE key >= ? AND key < ? ORDER BY key", key_span(prefix))
        return (key.decode() for (key,) in rows)

    def _after_failed_commit(self, error: Exception) -> SdrsError:
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error as worse:
            return self._fail(worse)
        if not isinstance(error, (sqlite3.Error, OSError)):
            return InternalError(f"the metadata store {self._path} could not commit: {error!r}")
        return translated(error, self._path) if code_of(error) in _HARMLESS_CODES else self._fail(error)

    def _fail(self, error: Exception) -> UnavailableError:
        self._failure = UnavailableError(
            f"the metadata store {self._path} takes no more writes: its disk failed ({error}), "
            "and what was being written may or may not be there; check the disk, then start this process again",
            path=self._path,
        )
        return self._failure
