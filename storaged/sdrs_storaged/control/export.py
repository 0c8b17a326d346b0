"""Reading the whole catalog out of the MetaStore: to move it (sealed, P18), or as a copy for the day it is lost (P19).

A copy is consistent: pages are read one after the other, and what changed since the first is added from the store's
history. A bookmark that is written last tells when the history has been followed far enough. A sealed store does not
change, and needs none of it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime

from sdrs_core.errors import UnavailableError
from sdrs_storaged.control import keys
from sdrs_storaged.control.archive import CHUNK_BYTES, Encoder, Header, Record, is_content
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import CompactedError, EventKind
from sdrs_storaged.control.records import PAGE_ENTRIES, ConflictError, Records, Seal, put
from sdrs_storaged.control.tables import ClusterRecord
from sdrs_storaged.logs import get_log

log = get_log("export")


@dataclass(frozen=True, slots=True)
class Bookmark:
    unix_ms: int


async def check_sealed(records: Records) -> str:
    """Why nothing may change any more, if the catalog was exported and sealed; else "". From here on it is kept (P18).

    A controller asks before it loads: it then serves what it has, and refuses every change with the reason.
    """
    seal = await records.get(keys.SEAL, Seal)
    if seal:
        records.frozen_because = seal.value.because
    return seal.value.because if seal else ""


class Exporter:
    def __init__(self, records: Records, clock: Clock) -> None:
        self._records = records
        self._clock = clock

    async def seal(self) -> None:
        """From here on nothing changes in this store. Sealing twice is harmless: an export may have to be repeated."""
        if await check_sealed(self._records):
            return
        now = datetime.fromtimestamp(self._clock.unix_ms() / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        seal = Seal(
            f"this cluster was exported at {now} and goes on elsewhere: ask the controller that imported it. To go on "
            "here, import the file into an empty controller",
            self._clock.unix_ms(),
        )
        try:
            await self._records.commit([], [put(keys.SEAL, seal)])
        except ConflictError:
            raise UnavailableError("the records of the cluster changed in between: try again") from None
        self._records.frozen_because = seal.because
        log.warning("catalog_sealed", why=seal.because)

    async def export(self, *, with_secrets: bool) -> AsyncGenerator[bytes, None]:
        """The file, in pieces of at most 1 MiB.

        A sealed catalog goes on as the next incarnation: nodes follow it, and refuse what is left behind (P18).
        """
        cluster = await self._records.get(keys.CLUSTER, ClusterRecord)
        if cluster is None:
            raise UnavailableError("this controller has no cluster yet: try again")
        is_sealed = bool(await check_sealed(self._records))
        incarnation = cluster.value.incarnation + is_sealed
        encoder = Encoder()
        first_revision = await self._records.store.revision()
        term = self._records.term.number
        header = Header(cluster.value.id, incarnation, term, first_revision, self._clock.unix_ms(), sealed=is_sealed)
        waiting = encoder.header(header)
        last_revision = first_revision
        async with aclosing(self._all(first_revision, is_sealed=is_sealed)) as found:
            async for revision, (key, value) in found:
                last_revision = max(last_revision, revision)
                if value is not None:
                    value = _adapted(key, value, incarnation, with_secrets=with_secrets)
                waiting += encoder.record(key, value)
                while len(waiting) >= CHUNK_BYTES:
                    yield waiting[:CHUNK_BYTES]
                    waiting = waiting[CHUNK_BYTES:]
        waiting += encoder.end(last_revision)
        for start in range(0, len(waiting), CHUNK_BYTES):
            yield waiting[start : start + CHUNK_BYTES]

    async def _all(self, first_revision: int, *, is_sealed: bool) -> AsyncGenerator[tuple[int, Record], None]:
        """Every record, then what changed since ``first_revision``; with the revision that the copy then stands at."""
        after, more = "", True
        revision = first_revision
        while more:
            page = await self._records.store.range("", after=after, limit=PAGE_ENTRIES)
            for entry in page.entries:
                if is_content(entry.key):
                    yield first_revision, (entry.key, entry.value)
            after = page.entries[-1].key if page.entries else after
            more, revision = page.more, page.revision
        # In a sealed store only elections move the revision.
        if revision > first_revision and not is_sealed:
            async with aclosing(self._changes(first_revision)) as changes:
                async for change in changes:
                    yield change

    async def _changes(self, first_revision: int) -> AsyncGenerator[tuple[int, Record], None]:
        try:
            target = await self._records.commit([], [put(keys.BOOKMARK, Bookmark(self._clock.unix_ms()))])
            async with aclosing(self._records.store.watch("", first_revision + 1)) as batches:
                async for batch in batches:
                    for event in batch.events:
                        if is_content(event.entry.key):
                            gone = event.kind is EventKind.DELETE
                            yield batch.revision, (event.entry.key, None if gone else event.entry.value)
                    if batch.revision >= target:
                        return
        except (CompactedError, ConflictError) as error:
            raise UnavailableError("the catalog changes faster than it can be copied: try again") from error


def _adapted(key: str, value: bytes, incarnation: int, *, with_secrets: bool) -> bytes:
    """A record as it goes into the file. What has no secret takes the first key that comes, or makes a new one."""
    is_cluster = key == keys.CLUSTER
    if not is_cluster and (with_secrets or not key.startswith(keys.NODES)):
        return value
    content = json.loads(value)
    if is_cluster:
        content["incarnation"] = incarnation
    if not with_secrets:
        content["secret"] = ""
    return json.dumps(content, separators=(",", ":")).encode()
