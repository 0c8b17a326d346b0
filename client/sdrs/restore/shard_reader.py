"""Reading one rank's blobs, in parallel, each range from whichever of its holders serves it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Protocol

from sdrs.process import Process
from sdrs.restore.blocks import BlockTable
from sdrs.rpc.nodes import transfer_seconds
from sdrs.transfer import FragmentRange
from sdrs.transfer.sockets import is_local
from sdrs.views import Report
from sdrs_core.checkpoints import MIRROR, Blob, Holder, Save, Shard
from sdrs_core.checksums import BLOCK_BYTES, block_spans
from sdrs_core.cluster import Node, NodeState
from sdrs_core.errors import (
    CorruptDataError,
    DeadlineExceededError,
    NotFoundError,
    ProtocolError,
    SdrsError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_core.ids import NodeId, random_id
from sdrs_proto.v1.control_pb2 import ReportDamageRequest

READER_COUNT = 4
# Each range costs a call and a connection, so they are not small; and not more than a few dozen for one blob.
MIN_RANGE_BYTES = 64 << 20
MAX_RANGES_PER_BLOB = 64
# Before the holders that were out of reach are tried once more.
PAUSES_SECONDS = (0.2, 1.0)

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
    def __init__(self, process: Process, save: Save, shard: Shard, nodes: dict[NodeId, Node], count: ByteCount) -> None:
        self.save = save
        self.shard = shard
        self._control = process.control
        self._routes = process.routes
        self._nodes = nodes
        self._count = count
        self._stop = threading.Event()

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
        for pause_seconds in (0.0, *PAUSES_SECONDS):
            if self._stop.wait(pause_seconds):
                raise StoppedError
            for holder in self._holders(part.blob, failures):
                try:
                    self._read_from(holder, part, target)
                    return
                except _DAMAGED as error:
                    failures[holder.node_id] = self._damage(part.blob, holder, error)
                except _FAILED as error:
                    failures[holder.node_id] = error
            out_of_reach = [node_id for node_id, error in failures.items() if not isinstance(error, _DAMAGED)]
            if not any(self._is_up(node_id) for node_id in out_of_reach):
                break
        raise self._unreadable(part.blob, failures)

    def _holders(self, blob: Blob, failures: dict[NodeId, SdrsError]) -> list[Holder]:
        """Who may still serve, the nearest first: on this host, then up; one that is down is asked all the same."""
        if blob.code != MIRROR:
            raise UnsupportedError(
                f"blob {blob.id} is stored as {blob.code}, which this sdrs does not read: upgrade it"
            )
        left = [h for h in blob.holders if not h.dropping and not isinstance(failures.get(h.node_id), _DAMAGED)]
        return sorted(left, key=lambda holder: self._distance(holder.node_id))

    def _distance(self, node_id: NodeId) -> int:
        if not self._is_up(node_id):
            return 2
        return 0 if is_local(self._nodes[node_id]) else 1

    def _is_up(self, node_id: NodeId) -> bool:
        return node_id in self._nodes and self._nodes[node_id].state is NodeState.UP

    def _read_from(self, holder: Holder, part: _Range, target: Target) -> None:
        node = self._nodes.get(holder.node_id)
        if node is None:
            raise UnavailableError(f"node {holder.node_id} is not known to the cluster any more")
        fragment = FragmentRange(part.blob.id, holder.fragment_index, part.start, part.end - part.start)
        counted = 0
        try:
            with closing(self._routes.open(node, fragment)) as stream:
                table = BlockTable(part.blob, stream.summary)
                for start, end in block_spans(part.start, part.end):
                    if self._stop.is_set():
                        raise StoppedError
                    window = target.window(part.blob, start, end)
                    stream.read_into(window, end - start)
                    verified = window[: end - start]
                    table.check(start, verified)
                    target.accept(part.blob, start, verified)
                    counted += end - start
                    self._count.add(end - start)
        except BaseException:
            self._count.add(-counted)
            raise

    def _damage(self, blob: Blob, holder: Holder, error: SdrsError) -> CorruptDataError:
        """Name what is damaged, and tell the controller, so that it is known and repaired (I5)."""
        request = ReportDamageRequest(
            request_id=random_id(),
            job=self.save.job,
            step=self.save.step,
            save_id=self.save.save_id,
            rank=self.shard.rank,
            blob_id=blob.id,
        )
        with suppress(SdrsError):  # the read goes on with another holder, or fails and says so
            # The controller has the holder look for itself before it answers: it reads the whole fragment again.
            wait_ms = int(1000 * transfer_seconds(blob.size_bytes))
            self._control.call("report_damage", request, wait_ms=wait_ms, patience_seconds=0.0)
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


def _cut(blob: Blob) -> Iterator[_Range]:
    even_share = -(-blob.size_bytes // (MAX_RANGES_PER_BLOB * BLOCK_BYTES)) * BLOCK_BYTES
    step = max(MIN_RANGE_BYTES, even_share)
    for start in range(0, blob.size_bytes, step):
        yield _Range(blob, start, min(start + step, blob.size_bytes))
