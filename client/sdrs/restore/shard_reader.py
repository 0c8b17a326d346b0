"""Reading one rank's blobs, in parallel, each range from whichever of its holders serves it.

The pool's policy says who is asked first; on an error, a bad block or a stall the next one is asked at once. The record
of who holds what is a moment old and may be wrong: it is asked for once more before a blob is given up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from sdrs.process import Process
from sdrs.restore.blocks import BlockTable
from sdrs.rpc.nodes import transfer_seconds
from sdrs.transfer import FragmentRange
from sdrs.views import Report
from sdrs_core.checkpoints import MIRROR, Blob, Holder, Save
from sdrs_core.checksums import BLOCK_BYTES, block_spans
from sdrs_core.cluster import Node, NodeState, ReadPolicy
from sdrs_core.errors import (
    CorruptDataError,
    DeadlineExceededError,
    NotFoundError,
    ProtocolError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_core.ids import BlobId, NodeId, random_id
from sdrs_proto.convert import node_from, read_policy_from, shard_from
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1.control_pb2 import ListShardsRequest, ListShardsResponse, ReportDamageRequest

READER_COUNT = 4
# Each range costs a call and a connection, so they are not small; and not more than a few dozen for one blob.
MIN_RANGE_BYTES = 64 << 20
MAX_RANGES_PER_BLOB = 64
# Holders that were out of reach are tried again after these pauses.
PAUSES_SECONDS = (0.0, 0.2, 1.0)
# In each of these rounds a holder that sends nothing for so long is left for another. The only one left gets the last.
STALLS_SECONDS = (1.0, 5.0, float(STALL_SECONDS))

_DAMAGED = (CorruptDataError, NotFoundError)
_FAILED = (*_DAMAGED, UnavailableError, DeadlineExceededError, ProtocolError)

log = logging.getLogger("sdrs")


class Target(Protocol):
    """Where a blob's bytes go. Called from several threads, for different blocks."""

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        """Memory for these bytes, page-aligned and up to the end of the last page."""

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        """The window is filled with verified bytes; it may come again when another holder takes over."""


@dataclass(frozen=True, slots=True)
class _Range:
    blob: Blob
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Record:
    """Who holds what, as the controller said last."""

    policy: ReadPolicy
    nodes: dict[NodeId, Node]
    up: frozenset[NodeId]
    holders: dict[BlobId, tuple[Holder, ...]]


class StoppedError(Exception):
    """Another range failed: this one need not go on."""


class ByteCount:
    """How far a restore is; ``report`` is told (read, total), from one thread at a time."""

    def __init__(self, report: Report | None, total_bytes: int) -> None:
        self._report = report
        self._total_bytes = total_bytes
        self._read_bytes = 0
        self._lock = threading.Lock()

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self._read_bytes += size_bytes
            if self._report:
                self._report(self._read_bytes, self._total_bytes)


class ShardReader:
    """``record`` is the controller's answer of which this is the one shard."""

    def __init__(self, process: Process, save: Save, record: ListShardsResponse, count: ByteCount) -> None:
        self.save = save
        self.shard = shard_from(record.shards[0])
        self._control = process.control
        self._routes = process.routes
        self._book = process.holders
        self._reports = process.reports
        self._count = count
        self._stop = threading.Event()
        # Replaced as a whole: several threads read by it.
        self._record = _record_from(record)

    def read(self, blobs: Sequence[Blob], target: Target) -> None:
        """Bring all of ``blobs`` into ``target``, verified; raises when one can be had from no holder."""
        ranges = [part for blob in blobs for part in _cut(blob)]
        with ThreadPoolExecutor(min(READER_COUNT, len(ranges) or 1), "sdrs-read") as pool:
            futures = [pool.submit(self._read_range, part, target) for part in ranges]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_range(self, part: _Range, target: Target) -> None:
        failures: dict[NodeId, SdrsError] = {}
        told: list[threading.Event] = []
        for pause_seconds, stall_seconds in zip(PAUSES_SECONDS, STALLS_SECONDS, strict=True):
            if self._stop.wait(pause_seconds):
                raise StoppedError
            if self._read_from_any(part, target, stall_seconds, failures, told):
                return
            if pause_seconds == 0.0:
                self._refresh()
            left = self._left(part.blob, failures)
            if not any(holder.node_id in self._record.up or holder.node_id not in failures for holder in left):
                break
        error = self._unreadable(part.blob, failures)
        if isinstance(error, CorruptDataError):
            # Who catches this finds the checkpoint marked.
            for report in told:
                report.wait(transfer_seconds(part.blob.size_bytes))
        raise error

    def _read_from_any(
        self,
        part: _Range,
        target: Target,
        stall_seconds: float,
        failures: dict[NodeId, SdrsError],
        told: list[threading.Event],
    ) -> bool:
        record = self._record
        left = self._left(part.blob, failures)
        for holder in self._book.order(left, record.policy, up=record.up, size_bytes=part.end - part.start):
            is_another_left = len(self._left(part.blob, failures)) > 1
            started = time.monotonic()
            try:
                self._read_from(holder, part, target, stall_seconds if is_another_left else STALLS_SECONDS[-1])
                return True
            except _DAMAGED as error:
                failures[holder.node_id] = self._damage(part.blob, holder, error)
                told.append(self._report(part.blob, holder))
            except _FAILED as error:
                failures[holder.node_id] = error
                self._book.note_failure(holder.node_id, time.monotonic() - started)
        return False

    def _left(self, blob: Blob, failures: dict[NodeId, SdrsError]) -> list[Holder]:
        """Who may still serve; one that is out of reach may be back, and one that is said to be down may not be."""
        if blob.code != MIRROR:
            raise UnsupportedError(
                f"blob {blob.id} is stored as {blob.code}, which this sdrs does not read: upgrade it"
            )
        return [h for h in self._record.holders.get(blob.id, ()) if not isinstance(failures.get(h.node_id), _DAMAGED)]

    def _refresh(self) -> None:
        """Repair may have moved blobs, and nodes come and gone, since the record was read."""
        request = ListShardsRequest(save_id=self.save.save_id, rank=self.shard.rank, pool=self.save.pool)
        try:
            record = self._control.call("list_shards", request, patience_seconds=0.0)
        except SdrsError as error:
            log.info("%s: its record cannot be read again: %s", self.save.title, error)
        else:
            if record.shards:
                self._record = _record_from(record)

    def _read_from(self, holder: Holder, part: _Range, target: Target, stall_seconds: float) -> None:
        node = self._record.nodes.get(holder.node_id)
        if node is None:
            raise UnavailableError(f"node {holder.node_id} is not known to the cluster any more")
        fragment = FragmentRange(part.blob.id, holder.fragment_index, part.start, part.end - part.start)
        counted = 0
        read_seconds = 0.0
        started = time.monotonic()
        try:
            with closing(self._routes.open(node, fragment, stall_seconds)) as stream:
                opened = time.monotonic()
                table = BlockTable(part.blob, stream.summary)
                for start, end in block_spans(part.start, part.end):
                    if self._stop.is_set():
                        raise StoppedError
                    window = target.window(part.blob, start, end)
                    before = time.monotonic()
                    stream.read_into(window, end - start)
                    read_seconds += time.monotonic() - before
                    verified = window[: end - start]
                    table.check(start, verified)
                    target.accept(part.blob, start, verified)
                    counted += end - start
                    self._count.add(end - start)
        except BaseException:
            self._count.add(-counted)
            raise
        self._book.note_read(holder.node_id, opened - started, counted, read_seconds)

    def _damage(self, blob: Blob, holder: Holder, error: SdrsError) -> CorruptDataError:
        what = "is missing" if isinstance(error, NotFoundError) else f"is damaged: {error}"
        damage = CorruptDataError(
            f"{self.save.title}, rank {self.shard.rank}: blob {blob.id} on node {holder.node_id} {what}",
            job=self.save.job,
            step=self.save.step,
            rank=self.shard.rank,
            blob_id=blob.id,
            node_id=holder.node_id,
        )
        log.warning("%s", damage)
        return damage

    def _report(self, blob: Blob, holder: Holder) -> threading.Event:
        """Tell the controller, so that it is known and repaired (I5); the event tells that it has looked."""
        request = ReportDamageRequest(
            request_id=random_id(),
            job=self.save.job,
            step=self.save.step,
            save_id=self.save.save_id,
            rank=self.shard.rank,
            blob_id=blob.id,
            node_id=holder.node_id,
        )
        # The controller has the holder look for itself before it answers: it reads the whole fragment again.
        return self._reports.send(request, wait_ms=int(1000 * transfer_seconds(blob.size_bytes)))

    def _unreadable(self, blob: Blob, failures: dict[NodeId, SdrsError]) -> SdrsError:
        if not failures:
            return UnavailableError(f"{self.save.title}, rank {self.shard.rank}: no node holds blob {blob.id} any more")
        damaged = [error for error in failures.values() if isinstance(error, CorruptDataError)]
        if len(damaged) == len(failures):
            return damaged[0]
        # A copy on a node that is out of reach may be good: that counts as unavailable, not as lost.
        reasons = "; ".join(str(error) for error in failures.values())
        return UnavailableError(
            f"{self.save.title}, rank {self.shard.rank}: blob {blob.id} is out of reach: {reasons}",
            job=self.save.job,
            step=self.save.step,
            rank=self.shard.rank,
            blob_id=blob.id,
        )


def _record_from(message: ListShardsResponse) -> _Record:
    nodes = {node.id: node for node in map(node_from, message.nodes)}
    return _Record(
        policy=read_policy_from(message.read_policy),
        nodes=nodes,
        up=frozenset(node.id for node in nodes.values() if node.state is NodeState.UP),
        holders={
            blob.id: tuple(holder for holder in blob.holders if not holder.dropping)
            for blob in shard_from(message.shards[0]).blobs
        },
    )


def _cut(blob: Blob) -> Iterator[_Range]:
    even_share = -(-blob.size_bytes // (MAX_RANGES_PER_BLOB * BLOCK_BYTES)) * BLOCK_BYTES
    step = max(MIN_RANGE_BYTES, even_share)
    for start in range(0, blob.size_bytes, step):
        yield _Range(blob, start, min(start + step, blob.size_bytes))
