"""Blobs in and out of this node's store, the same for the data channel and for gRPC streams."""

from __future__ import annotations

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import BlobId, GroupId, JobName, SaveId, check_name, check_random_id, check_step
from sdrs_proto import convert
from sdrs_proto.limits import MAX_BLOB_BYTES
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.transfers import ReadIntent, WriteIntent
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentOrigin, StoredFragment
from sdrs_storaged.store.reader import FragmentReader
from sdrs_storaged.store.writer import FragmentWriter


class BlobStore:
    def __init__(self, store: FragmentStore, identity: Identity, metrics: NodeMetrics) -> None:
        self._store = store
        self._identity = identity
        self._metrics = metrics

    def stored(self, intent: WriteIntent) -> StoredFragment | None:
        """What is durable here of this very blob, so that it need not be sent again (P11)."""
        self._identity.check_epoch(intent.group_id, intent.epoch)
        stored = self._store.lookup(intent.origin.blob_id, intent.origin.fragment_index)
        return stored if stored and stored.save_id == intent.origin.save_id else None

    def create(self, intent: WriteIntent) -> FragmentWriter:
        self._identity.check_epoch(intent.group_id, intent.epoch)
        return self._store.create(intent.origin, intent.size_bytes)

    def finish(self, writer: FragmentWriter, intent: WriteIntent, size_bytes: int, blob_hash: str) -> StoredFragment:
        # P8: the group may have moved on while the bytes came in.
        self._identity.check_epoch(intent.group_id, intent.epoch)
        stored = writer.finish(size_bytes, blob_hash)
        self._metrics.received_bytes.inc(size_bytes)
        return stored

    def open(self, intent: ReadIntent) -> FragmentReader:
        reader = self._store.open(intent.blob_id, intent.fragment_index)
        if intent.offset > reader.size_bytes or intent.offset + intent.length > reader.size_bytes:
            reader.close()
            raise InvalidArgumentError(
                f"bytes {intent.offset} to {intent.offset + intent.length} are not in blob {intent.blob_id}: it "
                f"has {reader.size_bytes}"
            )
        return reader

    def count_sent(self, size_bytes: int) -> None:
        self._metrics.sent_bytes.inc(size_bytes)


def write_intent_from(message: pb.WriteIntent) -> WriteIntent:
    if not 0 <= message.size_bytes <= MAX_BLOB_BYTES:
        raise InvalidArgumentError(f"a blob of {message.size_bytes} bytes is too large: at most {MAX_BLOB_BYTES}")
    origin = FragmentOrigin(
        blob_id=BlobId(check_random_id(message.blob_id, "blob id")),
        save_id=SaveId(check_random_id(message.save_id, "save id")),
        job=JobName(check_name(message.job, "job")),
        step=check_step(message.step),
        attempt=message.attempt,
        rank=message.rank,
        ordinal=message.ordinal,
        world_size=message.world_size,
        blob_count=message.blob_count,
        kind=convert.kind_from(message.kind) if message.kind else "",
        pool=message.pool,
    )
    return WriteIntent(origin, message.size_bytes, GroupId(message.group_id), message.epoch)


def read_intent_from(message: pb.OpenReadRequest | pb.ReadBlobRequest) -> ReadIntent:
    blob_id = BlobId(check_random_id(message.blob_id, "blob id"))
    return ReadIntent(blob_id, message.fragment_index, message.offset, message.length)


def stored_to(stored: StoredFragment) -> pb.StoredBlob:
    return pb.StoredBlob(
        blob_id=stored.blob_id, size_bytes=stored.size_bytes, hash=stored.blob_hash, disk_id=stored.disk_id
    )


def summary_of(reader: FragmentReader) -> pb.BlobSummary:
    return pb.BlobSummary(size_bytes=reader.size_bytes, hash=reader.blob_hash, table=bytes(reader.table))
