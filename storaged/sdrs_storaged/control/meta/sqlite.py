"""The MetaStore in one SQLite file, for a controller on one machine.

Transactions wait in a bounded queue. One task takes all that are there, hands them to the writer's thread as one commit
and answers them when it is durable; meanwhile the next ones gather. Reads have a thread and a connection of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sdrs_storaged.control.meta import limits
from sdrs_storaged.control.meta.in_process import InProcessMetaStore, Retention, Stretch
from sdrs_storaged.control.meta.sqlite_file import FileLock, open_database, open_reader
from sdrs_storaged.control.meta.sqlite_reader import Reader
from sdrs_storaged.control.meta.sqlite_writer import FORGET_REVISIONS, Outcome, Work, Writer
from sdrs_storaged.control.meta.store import LEADER_KEY, Compare, Delete, Entry, Op, Page, TxnResult

T = TypeVar("T")

MAX_QUEUED = 1024
MAX_COMMIT_TXNS = 256


@dataclass(frozen=True, slots=True)
class _Pending:
    work: Work
    answer: asyncio.Future[TxnResult]


class _OpenFile:
    """The blocking parts of one open store, opened and closed together."""

    def __init__(self, path: Path, retention: Retention) -> None:
        with ExitStack() as opened:
            opened.callback(FileLock(path).release)
            writing = opened.enter_context(closing(open_database(path)))
            reading = opened.enter_context(closing(open_reader(path)))
            self.writer = Writer(writing, path, retention)
            self.reader = Reader(reading, path)
            self.close = opened.pop_all().close


class SqliteMetaStore(InProcessMetaStore):
    """Open it with ``open``; it belongs to the event loop that it was opened on."""

    def __init__(self, path: Path, file: _OpenFile) -> None:
        super().__init__(str(path), file.writer.revision)
        self._file = file
        self._queue: asyncio.Queue[_Pending | None] = asyncio.Queue(MAX_QUEUED)
        self._writer_thread = ThreadPoolExecutor(1, "meta-writer")
        self._reader_thread = ThreadPoolExecutor(1, "meta-reader")
        self._committing = asyncio.create_task(self._commit_queued(), name="meta-commit")

    @classmethod
    async def open(cls, path: str | Path, retention: Retention | None = None) -> SqliteMetaStore:
        """RefusedError if another process has it or it is not ours, CorruptDataError if it is damaged."""
        file = await asyncio.to_thread(_OpenFile, Path(path), retention or Retention())
        store = cls(Path(path), file)
        try:
            # The lock is ours, so whoever led is dead.
            await store.txn([Compare.present(LEADER_KEY)], [Delete(LEADER_KEY)])
        except BaseException:
            await store.close()
            raise
        return store

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
        limits.check_txn(compare, then)
        return await self._submit(Work(tuple(compare), tuple(then)))

    async def get(self, key: str) -> Entry | None:
        limits.check_key(key)
        return await self._read(lambda: self._file.reader.get(key))

    async def range(self, prefix: str, *, after: str = "", limit: int = 1000) -> Page:
        for text in (prefix, after):
            limits.check_prefix(text)
        limits.check_page(limit)
        return await self._read(lambda: self._file.reader.page(prefix, after, limit))

    async def revision(self) -> int:
        return (await self._read(self._file.reader.counters)).revision

    async def _read_history(self, prefix: str, from_revision: int) -> Stretch:
        return await self._read(lambda: self._file.reader.history(prefix, from_revision))

    async def _forget_before(self, revision: int) -> None:
        oldest = (await self._read(self._file.reader.counters)).oldest
        while oldest < revision:
            oldest = min(revision, oldest + FORGET_REVISIONS)
            await self._submit(Work(forget_before=oldest))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._wake_watches()
            await self._queue.put(None)  # only wakes the task
            await self._committing
            await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        self._writer_thread.shutdown()
        self._reader_thread.shutdown()
        self._file.close()

    async def _read(self, read: Callable[[], T]) -> T:
        self._refuse_if_closed()
        return await asyncio.get_running_loop().run_in_executor(self._reader_thread, read)

    async def _submit(self, work: Work) -> TxnResult:
        self._refuse_if_closed()
        pending = _Pending(work, asyncio.get_running_loop().create_future())
        await self._queue.put(pending)
        return await pending.answer

    async def _commit_queued(self) -> None:
        loop = asyncio.get_running_loop()
        while gathered := await self._gather():
            works = [pending.work for pending in gathered]
            outcomes = await loop.run_in_executor(self._writer_thread, self._file.writer.commit, works)
            self._announce(self._file.writer.revision)
            for pending, outcome in zip(gathered, outcomes, strict=True):
                _answer(pending, outcome)
            if self._file.writer.checkpoint_due:
                await loop.run_in_executor(self._writer_thread, self._file.writer.checkpoint)

    async def _gather(self) -> list[_Pending]:
        """All that wait, up to one commit's fill; empty once the store was closed and all were answered."""
        gathered: list[_Pending] = []
        # Those that wait for a place in the queue get it while a commit runs: empty here means that all were taken.
        while not gathered and not (self._closed and self._queue.empty()):
            waiting = [await self._queue.get()]
            while not self._queue.empty() and len(waiting) < MAX_COMMIT_TXNS:
                waiting.append(self._queue.get_nowait())
            gathered = [pending for pending in waiting if pending is not None]
        return gathered


def _answer(pending: _Pending, outcome: Outcome) -> None:
    if pending.answer.done():  # the caller gave up
        return
    if isinstance(outcome, TxnResult):
        pending.answer.set_result(outcome)
    else:
        pending.answer.set_exception(outcome)
