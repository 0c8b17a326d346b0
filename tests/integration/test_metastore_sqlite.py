"""What only the SQLite MetaStore promises: surviving kill -9, one opener, full and failing disks, group commit."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import cast

import pytest

from sdrs_core.errors import CorruptDataError, FullError, InternalError, RefusedError, UnavailableError
from sdrs_storaged import fault_points
from sdrs_storaged.control.meta.in_process import Retention
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.meta.sqlite_file import open_database
from sdrs_storaged.control.meta.sqlite_writer import Work, Writer
from sdrs_storaged.control.meta.store import Compare, EventKind, Put, Term, TxnResult
from tests.support.file_systems import needs_root, small_file_system

DEADLINE_SECONDS = 60

# Leads, then writes pairs from several tasks at once, and prints each pair's number once it is acknowledged.
WRITER_PROGRAM = """
import asyncio, sys
from sdrs_storaged.control.meta.sqlite import SqliteMetaStore
from sdrs_storaged.control.meta.store import Put

async def write(store, first):
    for number in range(first, 1_000_000, 4):
        await store.txn([], [Put(f"left/{number}", b"%d" % number), Put(f"right/{number}", b"%d" % number)])
        print(number, flush=True)

async def main():
    store = await SqliteMetaStore.open(sys.argv[1])
    term = await store.campaign("writer")
    print(term.number, flush=True)
    await asyncio.gather(*(write(store, first) for first in range(4)))

asyncio.run(main())
"""


def run(path: Path, test: Callable[[SqliteMetaStore], Awaitable[None]], retention: Retention | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            store = await SqliteMetaStore.open(path, retention)
            try:
                await test(store)
            finally:
                await store.close()

    asyncio.run(main())


async def everything(store: SqliteMetaStore) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    after, more = "", True
    while more:
        page = await store.range("", after=after)
        found |= {entry.key: entry.value for entry in page.entries}
        after, more = page.entries[-1].key if page.entries else "", page.more
    return found


class Faults:
    """Arms the fault points of this process, and counts how often each was passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed: Counter[str] = Counter()
        self.armed: dict[str, int] = {}
        monkeypatch.setattr(fault_points, "reach", self._reach)

    def _reach(self, name: str) -> None:
        self.passed[name] += 1
        if name in self.armed:
            raise OSError(self.armed[name], os.strerror(self.armed[name]))


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "small", 2) as folder:
        yield folder


@pytest.mark.parametrize("fault", ["", "meta.commit=kill@25", "meta.committed=kill@25"])
def test_every_acknowledged_transaction_survives_kill_9_and_none_is_torn(path: Path, fault: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", WRITER_PROGRAM, path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SDRS_FAULT_POINTS": fault, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with program:
        assert program.stdout is not None
        dead_term = Term(int(program.stdout.readline()), "writer")
        acknowledged: list[int] = []
        for line in program.stdout:
            if line.endswith("\n"):  # the last one may be cut off
                acknowledged.append(int(line))
            if not fault and len(acknowledged) == 40:
                program.send_signal(signal.SIGKILL)
    assert program.returncode == -signal.SIGKILL
    assert len(acknowledged) >= 20
    # What the dead process wrote but did not fsync must be made durable before anybody can read it.
    log = path.with_name("meta.db-wal")
    assert log.stat().st_size > 0
    with closing(open_database(path)):
        assert log.stat().st_size == 0

    async def test(store: SqliteMetaStore) -> None:
        found = await everything(store)
        newest = await store.revision()
        left = {int(key.removeprefix("left/")): value for key, value in found.items() if key.startswith("left/")}
        right = {int(key.removeprefix("right/")): value for key, value in found.items() if key.startswith("right/")}
        assert left == right == {number: b"%d" % number for number in left}
        assert set(acknowledged) <= set(left)
        assert len(left) <= len(acknowledged) + 4, "no more than each task's last one can be there unacknowledged"

        replayed: dict[str, bytes] = {}
        async with aclosing(store.watch("", 1)) as batches:
            async for batch in batches:
                for event in batch.events:
                    if event.kind is EventKind.PUT:
                        replayed[event.entry.key] = event.entry.value
                    else:
                        del replayed[event.entry.key]
                if batch.revision == newest:
                    break
        assert replayed == found

        term = await store.campaign("next")
        assert term.number > dead_term.number
        assert not (await store.txn([dead_term.unchanged()], [Put("late", b"")])).succeeded

    run(path, test)


def test_state_revisions_and_terms_go_on_after_reopening(path: Path) -> None:
    terms: list[Term] = []
    revisions: list[int] = []

    async def test(store: SqliteMetaStore) -> None:
        terms.append(await store.campaign("c"))
        revisions.append((await store.txn([], [Put(f"k{len(terms)}", b"")])).revision)
        assert len((await store.range("k")).entries) == len(terms)

    for _ in range(3):
        run(path, test)
    assert [term.number for term in terms] == [1, 2, 3]
    assert revisions == sorted(set(revisions))


def test_a_second_opener_is_refused_until_the_first_closes(path: Path) -> None:
    async def test(store: SqliteMetaStore) -> None:
        with pytest.raises(RefusedError, match=r"meta\.db is in use"):
            await SqliteMetaStore.open(path)
        assert (await store.txn([], [Put("a", b"")])).succeeded

    run(path, test)
    run(path, test)


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_changes_nothing_and_recovers(path: Path, faults: Faults, fault: int) -> None:
    async def test(store: SqliteMetaStore) -> None:
        before = (await store.txn([], [Put("a", b"1")])).revision
        faults.armed["meta.commit"] = fault
        answers = await asyncio.gather(
            *(store.txn([], [Put("a", b"2"), Put(f"k{n}", b"")]) for n in range(5)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [FullError] * 5
        assert len({id(answer) for answer in answers}) == 5
        page = await store.range("")
        assert ([entry.value for entry in page.entries], page.revision) == ([b"1"], before)
        faults.armed.clear()
        assert (await store.txn([Compare.value_is("a", b"1")], [Put("a", b"3")])) == TxnResult(True, before + 1)
        async with aclosing(store.watch("", before)) as batches:
            assert [(await anext(batches)).events[0].entry.value for _ in range(2)] == [b"1", b"3"]

    run(path, test)


@needs_root
def test_a_really_full_disk_refuses_and_recovers(small_disk: Path) -> None:
    path, filler = small_disk / "meta.db", small_disk / "filler"
    acknowledged: list[str] = []

    async def write_until_refused(store: SqliteMetaStore) -> None:
        for number in range(1000):
            await store.txn([], [Put(f"k{number:04}", b"v" * 10_000)])
            acknowledged.append(f"k{number:04}")

    async def fill(store: SqliteMetaStore) -> None:
        filler.write_bytes(b"x" * (1 << 20))
        with pytest.raises(FullError):
            await write_until_refused(store)
        assert [entry.key for entry in (await store.range("k")).entries] == acknowledged
        filler.unlink()
        await store.txn([], [Put("k9999", b"")])
        acknowledged.append("k9999")

    async def look(store: SqliteMetaStore) -> None:
        assert [entry.key for entry in (await store.range("k")).entries] == acknowledged

    run(path, fill)
    run(path, look)


@pytest.mark.parametrize("point", ["meta.commit", "meta.committed"])
def test_a_failed_commit_is_never_retried_and_trusted(path: Path, faults: Faults, point: str) -> None:
    async def test(store: SqliteMetaStore) -> None:
        await store.txn([], [Put("a", b"1")])
        faults.armed[point] = errno.EIO
        with pytest.raises(UnavailableError, match="takes no more writes"):
            await store.txn([], [Put("a", b"2")])
        faults.armed.clear()
        commits = faults.passed["meta.commit"]
        with pytest.raises(UnavailableError, match="takes no more writes"):
            await store.txn([], [Put("a", b"3")])
        assert faults.passed["meta.commit"] == commits
        entry = await store.get("a")
        assert entry is not None
        assert entry.value == (b"1" if point == "meta.commit" else b"2")

    run(path, test)

    async def reopened(store: SqliteMetaStore) -> None:
        assert (await store.txn([Compare.present("a")], [Put("a", b"4")])).succeeded

    run(path, reopened)


def test_many_transactions_share_few_commits(path: Path, faults: Faults) -> None:
    async def test(store: SqliteMetaStore) -> None:
        before = faults.passed["meta.commit"]
        results = await asyncio.gather(*(store.txn([], [Put(f"k{n}", b"")]) for n in range(2000)))
        assert len({result.revision for result in results}) == 2000
        # The queue holds 1,024 and a commit takes 256: some 8 full ones, and a few short ones in between.
        assert faults.passed["meta.commit"] - before <= 20

    run(path, test)


def test_transactions_of_one_commit_see_each_other(path: Path) -> None:
    async def test(store: SqliteMetaStore) -> None:
        results = await asyncio.gather(
            *(store.txn([Compare.version_is("a", n)], [Put("a", b"%d" % n)]) for n in range(100))
        )
        assert all(result.succeeded for result in results)

    run(path, test)


def test_a_defective_transaction_leaves_the_others_of_its_commit_alone(path: Path) -> None:
    unstorable = cast(bytes, [1, 2])
    with closing(open_database(path)) as database:
        writer = Writer(database, path, Retention())
        first, torn, last = writer.commit(
            [Work(then=[Put("a", b"")]), Work(then=[Put("b", b""), Put("c", unstorable)]), Work(then=[Put("d", b"")])]
        )
        assert (first, last) == (TxnResult(True, 1), TxnResult(True, 2))
        assert isinstance(torn, InternalError)
        assert database.execute("SELECT key FROM kv ORDER BY key").fetchall() == [(b"a",), (b"d",)]
        assert database.execute("SELECT key FROM history").fetchall() == [(b"a",), (b"d",)]


def test_the_log_and_the_history_stay_small(path: Path) -> None:
    async def test(store: SqliteMetaStore) -> None:
        for _ in range(60):
            await store.txn([], [Put("a", b"v" * 500_000)])
        assert path.with_name("meta.db-wal").stat().st_size < 20_000_000

    run(path, test, Retention(history_bytes=2_000_000))
    assert path.stat().st_size < 10_000_000


def test_commits_are_durable_by_configuration(path: Path) -> None:
    with closing(open_database(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert database.execute("PRAGMA synchronous").fetchone() == (2,)


def test_files_that_are_not_a_sound_store_are_refused(tmp_path: Path) -> None:
    async def nothing(store: SqliteMetaStore) -> None:
        pass

    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"this is no database" * 1000)
    with pytest.raises(CorruptDataError, match=r"garbage\.db"):
        run(garbage, nothing)
    assert garbage.read_bytes().startswith(b"this is no database"), "a file that is not ours is left as it is"

    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE photos (name TEXT)")
    with pytest.raises(RefusedError, match="another program"):
        run(foreign, nothing)

    newer = tmp_path / "newer.db"
    run(newer, nothing)
    with closing(sqlite3.connect(newer)) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(RefusedError, match="format 99"):
        run(newer, nothing)

    with pytest.raises(UnavailableError, match="check its folder"):
        run(tmp_path / "no-such-folder" / "meta.db", nothing)


def test_a_damaged_file_is_found_on_opening(path: Path) -> None:
    async def fill(store: SqliteMetaStore) -> None:
        for number in range(200):
            await store.txn([], [Put(f"k{number}", b"v" * 1000)])

    run(path, fill)
    with path.open("r+b") as file:
        for page in range(3, 40):
            file.seek(page * 4096)
            file.write(b"\xa5" * 16)
    with pytest.raises(CorruptDataError, match="snapshot"):
        run(path, fill)
