"""Typed records over the MetaStore: JSON values, and transactions that carry the controller's term."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from sdrs_core.errors import CorruptDataError, RefusedError, SdrsError, StaleTermError
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import LEADER_KEY, Compare, Entry, MetaStore, Op, Put, Term
from sdrs_storaged.logs import get_log

log = get_log("records")

T = TypeVar("T")
PAGE_ENTRIES = 500
# P3; the bytes leave room for the compares below the MetaStore's 1.5 MiB.
MAX_TXN_RECORDS = 100
MAX_TXN_BYTES = 1 << 20
# P3: a shard with many blobs of many fragments each outgrows a record, and what it names is named over and over. Packed
# it is still text, as catalogs are exported.
_PACK_BYTES = 128 << 10
_PACKED = b"zlib:"
_MAX_UNPACKED_BYTES = 64 << 20
# How often a change is decided anew after a ConflictError, before its caller is told to try again.
MAX_TRIES = 20


class ConflictError(SdrsError):
    """Somebody else changed a record in between: read it again and decide anew. It never leaves the controller."""

    reason = "CONFLICT"


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Made once for each kind of record: making one costs more than using it."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A record with the revision that a change of it must compare (P4)."""

    key: str
    value: T
    revision: int

    def unchanged(self) -> Compare:
        return Compare.revision_is(self.key, self.revision)


@dataclass(frozen=True, slots=True)
class Seal:
    """Why nothing in this store changes any more (P18)."""

    because: str
    unix_ms: int


def put(key: str, value: Any) -> Put:
    text = _adapter(type(value)).dump_json(value)
    return Put(key, text if len(text) < _PACK_BYTES else _PACKED + base64.b64encode(zlib.compress(text, 1)))


def batched(writes: Iterable[tuple[T, Put]]) -> Iterator[list[tuple[T, Put]]]:
    """Writes in portions that fit into a transaction each (P3); one that is larger than that goes alone."""
    batch: list[tuple[T, Put]] = []
    batch_bytes = 0
    for write in writes:
        write_bytes = len(write[1].value)
        if batch and (len(batch) == MAX_TXN_RECORDS or batch_bytes + write_bytes > MAX_TXN_BYTES):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(write)
        batch_bytes += write_bytes
    if batch:
        yield batch


class Records:
    """What the controller reads and writes. Every write holds only while its term leads (I2, I3)."""

    def __init__(self, store: MetaStore, term: Term) -> None:
        self.store = store
        self.term = term
        # The highest revision that this controller knows of: the store may never answer with a lower one (P18).
        self.revision = 0
        # The highest that was written in this very term, or before it: what nodes are told. What it reads may be of a
        # later term.
        self.written_revision = 0
        # P18: a reason not to change anything any more: a node has seen a later history than ours, or ours goes on in
        # another store.
        self.frozen_because = ""

    async def get(self, key: str, kind: type[T]) -> Stored[T] | None:
        entry = await self.store.get(key)
        if entry is None:
            return None
        self.revision = max(self.revision, entry.mod_revision)
        return stored_from(entry, kind)

    async def look(self, key: str, kind: type[T]) -> tuple[Stored[T] | None, int]:
        """As ``get``, and the revision of the moment that it shows: a record that is not there has none of its own."""
        known = self.revision
        page = await self.store.range(key, limit=1)
        self._went_back(page.revision, known)
        entry = next((entry for entry in page.entries if entry.key == key), None)
        return (stored_from(entry, kind) if entry else None), page.revision

    async def page(
        self, prefix: str, kind: type[T], *, after: str = "", limit: int = PAGE_ENTRIES
    ) -> tuple[list[Stored[T]], bool]:
        known = self.revision
        page = await self.store.range(prefix, after=after, limit=limit)
        self._went_back(page.revision, known)  # reads go on
        return [stored_from(entry, kind) for entry in page.entries], page.more

    async def all(self, prefix: str, kind: type[T]) -> AsyncIterator[Stored[T]]:
        """Every record below ``prefix``, a page at a time."""
        after, more = "", True
        while more:
            found, more = await self.page(prefix, kind, after=after)
            for record in found:
                yield record
                after = record.key

    async def commit(self, compare: Sequence[Compare], then: Sequence[Op]) -> int:
        """Change records in one transaction; its revision. ConflictError if a compared record moved."""
        if self.frozen_because:
            raise RefusedError(self.frozen_because)
        # P18: the seal is compared, not only looked at: what was on its way to the store when it was set cannot land.
        unsealed = Compare.absent(keys.SEAL)
        known = self.revision
        result = await self.store.txn([self.term.unchanged(), unsealed, *compare], then)
        if self._went_back(result.revision, known):
            raise RefusedError(self.frozen_because)
        if result.succeeded:
            self.written_revision = max(self.written_revision, result.revision)
            return result.revision
        await self.check_leading()
        raise ConflictError("a record changed in between")

    async def check_leading(self) -> None:
        """Raise if this controller may change nothing (any more). Terms never return, so all that it knew until the
        check was the truth at its time.
        """
        if not self.frozen_because and (seal := await self.get(keys.SEAL, Seal)):
            self.frozen_because = seal.value.because
        if self.frozen_because:
            raise RefusedError(self.frozen_because)
        known = self.revision
        page = await self.store.range(LEADER_KEY, limit=1)
        if self._went_back(page.revision, known):
            raise RefusedError(self.frozen_because)
        if not page.entries or page.entries[0].value != self.term.record():
            raise StaleTermError("this controller no longer leads: ask the active one")

    def _went_back(self, revision: int, known: int) -> bool:
        """``known`` is what was known before the store was asked: answers may overtake each other, but none is older
        than that, unless the store itself was put back to the past under this controller (P18).
        """
        if revision < known:
            self.frozen_because = (
                f"the metadata store went back from revision {known} to {revision}: the metadata was rolled back. "
                "Nothing is changed or collected until the newer metadata is put back"
            )
            log.error("metadata_rolled_back", seen_revision=known, own_revision=revision)
        self.revision = max(self.revision, revision)
        return revision < known


def stored_from(entry: Entry, kind: type[T]) -> Stored[T]:
    return Stored(entry.key, parse(entry.key, entry.value, kind), entry.mod_revision)


def parse(key: str, value: bytes, kind: type[T]) -> T:
    """What ``put`` wrote; CorruptDataError names the record if it cannot be read."""
    try:
        parsed: T = _adapter(kind).validate_json(_unpacked(value) if value.startswith(_PACKED) else value)
    except (binascii.Error, zlib.error) as error:
        raise CorruptDataError(f"the metadata record {key} cannot be unpacked: {error}") from error
    except ValidationError as error:
        raise CorruptDataError(f"the metadata record {key} cannot be read: {error.errors()[0]['msg']}") from error
    return parsed


def _unpacked(value: bytes) -> bytes:
    return zlib.decompressobj().decompress(base64.b64decode(value[len(_PACKED) :], validate=True), _MAX_UNPACKED_BYTES)
