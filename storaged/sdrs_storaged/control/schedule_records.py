"""The records that a scheduler keeps in the MetaStore, under ``schedule/``: what they mean is its business.

A change compares and writes in one transaction, which carries this controller's term as all others do; that a compared
record moved is an answer, not an error. Each record keeps the id of the request that wrote it: one that is repeated
because its answer was lost, perhaps at another controller, is told by it that it happened.

Whoever waits for changes is woken from memory: all of them pass through here while this controller leads.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_proto.limits import (
    MAX_RECORD_BYTES,
    MAX_RECORD_KEY_BYTES,
    MAX_RECORDS_PER_CHANGE,
)
from sdrs_storaged.control.keys import SCHEDULE
from sdrs_storaged.control.meta.store import Compare, Delete, Op
from sdrs_storaged.control.records import MAX_TXN_BYTES, ConflictError, Records, Stored, put

# I10: packed records grow when they are read.
_MAX_PAGE_BYTES = 4 << 20
_READ_ENTRIES = 100
_MAX_REMEMBERED = 10_000
_MAX_TOLD = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """A value as it is on record: as text where it is text, since catalogs are exported as text."""

    change: str
    text: str = ""
    base64: str = ""

    @property
    def value(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()

    @classmethod
    def of(cls, value: bytes, change: str) -> Kept:
        try:
            return cls(change, text=value.decode())
        except UnicodeDecodeError:
            return cls(change, base64=base64.b64encode(value).decode())


class ScheduleRecords:
    def __init__(self, records: Records) -> None:
        self._records = records
        # The keys that changed of late, in the order of their last changes, and everything older than those.
        self._changes: OrderedDict[str, int] = OrderedDict()
        self._floor_revision: int | None = None
        # Keys whose changes are not answered yet. The answer of a later one may come first: whoever is told of that one
        # is told of these, too.
        self._under_way: Counter[str] = Counter()
        self._changed = asyncio.Event()

    async def get(self, key: str) -> Stored[Kept] | None:
        _check_key(key)
        return await self._records.get(key, Kept)

    async def page(self, prefix: str, *, after: str, limit: int) -> tuple[list[Stored[Kept]], bool]:
        """As many records as fit into an answer, and whether there are more."""
        _check_prefix(prefix)
        found: list[Stored[Kept]] = []
        size_bytes, more = 0, True
        while more:
            entries = min(_READ_ENTRIES, limit - len(found))
            page, more = await self._records.page(prefix, Kept, after=found[-1].key if found else after, limit=entries)
            for index, record in enumerate(page):
                found.append(record)
                size_bytes += len(record.key) + len(record.value.value)
                if len(found) == limit or size_bytes >= _MAX_PAGE_BYTES:
                    return found, more or index + 1 < len(page)
        return found, False

    async def change(
        self, compare: Mapping[str, int], puts: Mapping[str, bytes], deletes: Sequence[str], *, request_id: str
    ) -> int | None:
        """The revision of the change; None: a compared record moved, and nothing was changed."""
        _check_change(compare, puts, deletes)
        if not request_id:
            raise InvalidArgumentError("a change of records needs a request id, by which it is known when repeated")
        writes = [put(key, Kept.of(value, request_id)) for key, value in puts.items()]
        size_bytes = sum(len(write.value) for write in writes)
        if size_bytes > MAX_TXN_BYTES:
            raise InvalidArgumentError(
                f"the records of one change take {size_bytes} bytes as they are stored, {MAX_TXN_BYTES} are allowed: "
                "change fewer at once"
            )
        ops: list[Op] = [*writes, *map(Delete, deletes)]
        touched = [*puts, *deletes]
        self._under_way.update(touched)
        try:
            revision = await self._records.commit(list(map(_unmoved, compare.items())), ops)
        except ConflictError:
            happened = await self._revision_of(request_id, puts)
            if happened is not None:
                self._note(puts, happened)
            return happened
        except UnavailableError:
            # It may have happened: whoever waits looks again.
            self._floor_revision = None
            self._wake()
            raise
        finally:
            self._under_way -= Counter(touched)
        self._note(touched, revision)
        return revision

    async def _revision_of(self, request_id: str, put_keys: Iterable[str]) -> int | None:
        """When this very request happened, as far as its records tell."""
        for key in put_keys:
            found = await self._records.get(key, Kept)
            if found and found.value.change == request_id:
                return found.revision
        return None

    async def newest(self, prefix: str, after_revision: int, wait_seconds: float) -> int:
        """The revision of the newest change under ``prefix``, waited for if it is not higher than ``after_revision``.

        What was changed or deleted before this controller led is not known: it counts as changed when that began.
        """
        _check_prefix(prefix)
        try:
            async with asyncio.timeout(wait_seconds):
                while (revision := await self._newest(prefix)) <= after_revision:
                    await self._changed.wait()
        except TimeoutError:
            revision = await self._newest(prefix)
        return revision

    def changed(self, prefix: str, after_revision: int) -> dict[str, int] | None:
        """What changed under ``prefix`` after this revision, with the revisions; None: not all of it is known here."""
        if self._floor_revision is None or after_revision < self._floor_revision:
            return None
        found = {key: 0 for key in self._under_way if key.startswith(prefix)}
        for key, revision in reversed(self._changes.items()):
            if revision <= after_revision:
                break
            if key.startswith(prefix):
                found.setdefault(key, revision)
        return found if len(found) <= _MAX_TOLD else None

    async def is_of_another_history(self, revision: int) -> bool:
        """Whether nobody can have heard of ``revision`` from this store: a catalog that was brought back from a copy
        counts anew, and whoever waited for more than it had would wait for long.
        """
        return revision > self._records.revision and revision > await self._records.store.revision()

    async def _newest(self, prefix: str) -> int:
        if self._floor_revision is None:
            self._floor_revision = await self._records.store.revision()
        for key, revision in reversed(self._changes.items()):
            if revision <= self._floor_revision:
                break
            if key.startswith(prefix):
                return revision
        return self._floor_revision

    def _note(self, changed: Iterable[str], revision: int) -> None:
        # Answers of the store may overtake each other. A late one counts as the newest: nobody who was told of that
        # one can have missed this one.
        revision = max(revision, next(reversed(self._changes.values()), 0))
        for key in changed:
            self._changes[key] = revision
            self._changes.move_to_end(key)
        while len(self._changes) > _MAX_REMEMBERED:
            _, gone_revision = self._changes.popitem(last=False)
            if self._floor_revision is not None:
                self._floor_revision = max(self._floor_revision, gone_revision)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _unmoved(compared: tuple[str, int]) -> Compare:
    key, revision = compared
    return Compare.revision_is(key, revision) if revision else Compare.absent(key)


def _check_change(compare: Mapping[str, int], puts: Mapping[str, bytes], deletes: Sequence[str]) -> None:
    for count, what in ((len(compare), "compares"), (len(puts) + len(deletes), "writes")):
        if count > MAX_RECORDS_PER_CHANGE:
            raise InvalidArgumentError(
                f"one change {what} {count} records, {MAX_RECORDS_PER_CHANGE} are allowed: make several of it"
            )
    for key in (*compare, *puts, *deletes):
        _check_key(key)
    for key, value in puts.items():
        if len(value) > MAX_RECORD_BYTES:
            raise InvalidArgumentError(f"the record {key} has {len(value)} bytes, {MAX_RECORD_BYTES} are allowed")
    twice = puts.keys() & set(deletes)
    if twice or len(set(deletes)) < len(deletes):
        raise InvalidArgumentError(f"a change names a record twice: {', '.join(sorted(twice) or deletes)}")


def _check_key(key: str) -> None:
    if not key.startswith(SCHEDULE) or key == SCHEDULE:
        raise InvalidArgumentError(f"{key[:80]!r} is no key of a record here: they begin with {SCHEDULE}")
    if len(key.encode()) > MAX_RECORD_KEY_BYTES or not key.isprintable():
        raise InvalidArgumentError(
            f"{key[:80]!r} is no key of a record: use up to {MAX_RECORD_KEY_BYTES} bytes of printable characters"
        )


def _check_prefix(prefix: str) -> None:
    if not prefix.startswith(SCHEDULE):
        raise InvalidArgumentError(f"{prefix[:80]!r} is no prefix of records here: they begin with {SCHEDULE}")
