"""A copy is fetched from another node, by order of the controller: who lacks something pulls it, as flow control.

Every block is compared with the source's table, and the table with the hash on record, before anything counts (I5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdrs_core import checksums
from sdrs_core.cluster import Node
from sdrs_core.errors import (
    CorruptDataError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    SdrsError,
    UnavailableError,
)
from sdrs_core.ids import NodeId
from sdrs_proto import channel, convert
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.transfers import Slots
from sdrs_storaged.rpc.blobs import write_intent_from
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentOrigin, StoredFragment

log = get_log("pull")

_SLOT_SECONDS = 60.0
# What may be another at another source; a full or failed disk of our own is not.
_NEXT_SOURCE = (
    UnavailableError,
    DeadlineExceededError,
    CorruptDataError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    InternalError,
)


class Pulling:
    def __init__(
        self,
        store: FragmentStore,
        peers: Peers,
        metrics: NodeMetrics,
        node_id: NodeId,
        *,
        slots: Slots,
        workers: Workers,
    ) -> None:
        self._store = store
        self._peers = peers
        self._metrics = metrics
        self._node_id = node_id
        self._slots = slots
        self._workers = workers

    async def pull(self, request: pb.PullFragmentRequest) -> StoredFragment:
        """Once the order was found to be the controller's."""
        intent = write_intent_from(request.intent)
        origin = replace(intent.origin, fragment_index=request.fragment_index)
        sources = [convert.node_from(node) for node in request.sources if node.id != self._node_id]
        await self._slots.take(_SLOT_SECONDS)
        try:
            return await self._workers.run_through(self._pull, origin, intent.size_bytes, request.hash, sources)
        finally:
            self._slots.give()

    def _pull(self, origin: FragmentOrigin, size_bytes: int, blob_hash: str, sources: Sequence[Node]) -> StoredFragment:
        held = self._store.lookup(*origin.key)
        if held is not None:
            if (held.blob_hash, held.size_bytes) == (blob_hash, size_bytes):
                return held
            self._store.quarantine(
                *origin.key, f"it has hash {held.blob_hash}, on record is {blob_hash}: replaced by a copy"
            )
        if not sources:
            raise InvalidArgumentError(f"no other node is named to fetch blob {origin.blob_id} from")
        failures: list[SdrsError] = []
        for source in sources:
            try:
                return self._pull_from(source, origin, size_bytes, blob_hash)
            except _NEXT_SOURCE as error:
                failures.append(error)
                log.warning("source_failed", blob=origin.blob_id, source=source.id, why=error.message)
        told = "; ".join(f"{source.id}: {error.message}" for source, error in zip(sources, failures, strict=True))
        # If one of them may come back with a good copy, it is worth another try.
        is_lost = all(isinstance(error, CorruptDataError | NotFoundError) for error in failures)
        kind = CorruptDataError if is_lost else UnavailableError
        raise kind(f"blob {origin.blob_id} could not be fetched from any source ({told})", blob_id=origin.blob_id)

    def _pull_from(self, source: Node, origin: FragmentOrigin, size_bytes: int, blob_hash: str) -> StoredFragment:
        request = pb.OpenReadRequest(blob_id=origin.blob_id, fragment_index=origin.fragment_index)
        with self._peers.open_source(source, request) as connection:
            summary = channel.receive_answer(connection, pb.BlobSummary)
            table = _checked_table(summary, size_bytes, blob_hash, source)
            with self._store.create(origin, size_bytes) as writer:
                for index, (start, end) in enumerate(checksums.block_spans(0, size_bytes)):
                    channel.receive_exactly(connection, writer.next_block()[: end - start], STALL_SECONDS)
                    writer.commit_block(end - start, checksums.table_entry(table, index))
                    reach("pull.block")
                stored = writer.finish(size_bytes, blob_hash)
        self._metrics.pulled_bytes.inc(size_bytes)
        return stored


def _checked_table(summary: pb.BlobSummary, size_bytes: int, blob_hash: str, source: Node) -> bytes:
    is_whole = len(summary.table) == checksums.block_count(size_bytes) * checksums.DIGEST_BYTES
    if not is_whole or checksums.blob_hash(size_bytes, summary.table) != blob_hash:
        raise CorruptDataError(
            f"node {source.id} has {summary.size_bytes} bytes with hash {summary.hash}, on record are {size_bytes} "
            f"with {blob_hash}"
        )
    return summary.table
