"""Sends copies of the catalog to a few nodes, so that losing the MetaStore for good loses little (P19).

Without secrets: a node is trusted with its own key, not with those of the cluster and of the others. One is made when
something changed since the last; the first soon after a controller became active, the next ones at an interval.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import xxhash

from sdrs_core.cluster import Node
from sdrs_core.errors import RefusedError, SdrsError
from sdrs_core.snapshots import MAX_SNAPSHOT_BYTES, SnapshotId, choose_keepers
from sdrs_storaged.control.archive import CHUNK_BYTES, Decoder
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.export import Exporter
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.control.witnesses import Witnesses
from sdrs_storaged.logs import get_log

log = get_log("snapshots")

_LOOK_SECONDS = 5.0
# JSON of many similar records shrinks to a tenth even so, and the controller has other things to do.
_COMPRESSION = 1


@dataclass(frozen=True, slots=True)
class _Made:
    id: SnapshotId
    file: IO[bytes]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Several readers at once: each keeps its own position."""
        position = 0
        while piece := await asyncio.to_thread(os.pread, self.file.fileno(), CHUNK_BYTES, position):
            yield piece
            position += len(piece)


class Snapshots:
    def __init__(
        self,
        records: Records,
        members: Members,
        witnesses: Witnesses,
        clock: Clock,
        folder: Path,
        *,
        interval_seconds: float = 300.0,
        first_after_seconds: float = 10.0,
    ) -> None:
        self._records = records
        self._members = members
        self._witnesses = witnesses
        self._clock = clock
        self._folder = folder
        self._interval_seconds = interval_seconds
        self._first_after_seconds = first_after_seconds
        self._exporter = Exporter(records, clock)
        self._sent_revision = 0
        self._sent_to: frozenset[str] = frozenset()
        self._next_seconds = clock.monotonic_seconds() + first_after_seconds

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._first_after_seconds, self._interval_seconds))
            if self._clock.monotonic_seconds() < self._next_seconds:
                continue
            try:
                await self.pass_once()
            except SdrsError as error:
                log.warning("snapshot_not_taken", why=error.message)
            except Exception as error:
                # A defect here must not take the control plane down with it.
                log.error("snapshot_failed", exc_info=error)

    async def pass_once(self) -> list[Node]:
        """The nodes that keep a new copy now; none if nothing changed, or nobody takes it."""
        if self._records.frozen_because:
            return []  # P18: this history is the past, or goes on elsewhere
        # Whatever comes of it: who fails is not asked again at once.
        self._next_seconds = self._clock.monotonic_seconds() + self._first_after_seconds
        keepers = choose_keepers(self._members.nodes())
        missing = {node.id for node in keepers} - self._sent_to
        if not keepers or (await self._records.store.revision() == self._sent_revision and not missing):
            return []
        made = await self._make()
        try:
            kept = [node for node in keepers if await self._send(node, made)]
        finally:
            made.file.close()
        if kept:
            # What the copy itself wrote (its bookmark) is in it.
            self._sent_revision, self._sent_to = made.id.revision, frozenset(node.id for node in kept)
            self._next_seconds = self._clock.monotonic_seconds() + self._interval_seconds
            names = ", ".join(node.id for node in kept)
            log.info("snapshot_sent", nodes=names, revision=made.id.revision, size_bytes=made.id.size_bytes)
        return kept

    async def _make(self) -> _Made:
        file = await asyncio.to_thread(_temporary_file, self._folder)
        try:
            decoder = Decoder()
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=_COMPRESSION, mtime=0) as packed:
                async with aclosing(self._exporter.export(with_secrets=False)) as pieces:
                    async for piece in pieces:
                        _drain(decoder.feed(piece))
                        await asyncio.to_thread(packed.write, piece)
            # Read back on the way out: a copy that could not be read is worse than none.
            summary = decoder.finish()
            size_bytes, digest = await asyncio.to_thread(_measure, file)
        except BaseException:
            file.close()
            raise
        if size_bytes > MAX_SNAPSHOT_BYTES:
            file.close()
            raise RefusedError(f"the catalog has {size_bytes} bytes: nodes keep copies of up to {MAX_SNAPSHOT_BYTES}")
        header = summary.header
        snapshot = SnapshotId(
            header.cluster_id,
            header.incarnation,
            header.term,
            summary.revision,
            header.created_unix_ms,
            size_bytes,
            digest,
        )
        return _Made(snapshot, file)

    async def _send(self, node: Node, made: _Made) -> bool:
        try:
            await self._witnesses.store_snapshot(node, made.id, made.pieces())
        except SdrsError as error:
            log.warning("snapshot_not_stored", node=node.id, why=error.message)
            return False
        return True


def _drain(records: Iterable[object]) -> None:
    for _ in records:
        pass


def _temporary_file(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder, prefix="snapshot-")


def _measure(file: IO[bytes]) -> tuple[int, str]:
    file.flush()
    file.seek(0)
    hasher = xxhash.xxh3_128()
    size_bytes = 0
    while piece := file.read(CHUNK_BYTES):
        hasher.update(piece)
        size_bytes += len(piece)
    return size_bytes, hasher.hexdigest()
