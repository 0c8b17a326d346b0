"""Blobs in and out of this node's store, the same for the data channel and for gRPC streams."""

from __future__ import annotations

from sdrs_core.checkpoints import ContentKind
from sdrs_core.checksums import DIGEST_BYTES, blob_hash, block_count
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, StaleEpochError
from sdrs_core.ids import BlobId, GroupId, JobName, SaveId, check_name, check_random_id, check_step
from sdrs_core.packing import parse_packing
from sdrs_proto import convert
from sdrs_proto.limits import MAX_BLOB_BYTES
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.metrics import NodeMetrics
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.transfers import ReadIntent, WriteIntent
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import FragmentOrigin, StoredFragment
from sdrs_storaged.store.reader import FragmentReader
from sdrs_storaged.store.writer import FragmentWriter


class BlobStore:
    def __init__(self, store: FragmentStore, groups: Groups, metrics: NodeMetrics) -> None:
        self._store = store
        self._groups = groups
        self._metrics = metrics

    def stored(self, intent: WriteIntent) -> StoredFragment | None:
        """What is durable here of this very blob, so that it need not be sent again (P11)."""
        self._check(intent)
        origin = intent.origin
        stored = self._store.lookup(*origin.key)
        return stored if stored and (stored.save_id, stored.code) == (origin.save_id, origin.code) else None

    def create(self, intent: WriteIntent) -> FragmentWriter:
        self._check(intent)
        return self._store.create(intent.origin, intent.size_bytes)

    def check_wanted(self, intent: WriteIntent) -> None:
        """Between blocks: who is out of the group need not receive the rest."""
        if not self._groups.is_member(intent.group_id):
            self._check(intent)

    def finish(self, writer: FragmentWriter, intent: WriteIntent, summary: pb.BlobSummary) -> StoredFragment:
        """P8: the group may have moved on while the bytes came in. Who is still a member keeps its copy, so that it
        need not be sent again (P11); who is not has none. Neither is acknowledged.
        """
        stale: StaleEpochError | None = None

        def permit() -> None:
            nonlocal stale
            try:
                self._check(intent)
            except StaleEpochError as error:
                if not self._groups.is_member(intent.group_id):
                    raise
                stale = error

        if intent.origin.is_coded:
            _check_source(intent, summary)
        stored = writer.finish(summary.size_bytes, summary.hash, permit, summary.source_table)
        self._metrics.received_bytes.inc(summary.size_bytes)
        if stale is not None:
            raise stale
        return stored

    def _check(self, intent: WriteIntent) -> None:
        self._groups.check(intent.group_id, intent.epoch, as_primary=not intent.relayed)

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


def _check_source(intent: WriteIntent, summary: pb.BlobSummary) -> None:
    """P9: the table that the fragment keeps is that of the blob which its sender means."""
    size_bytes, table = intent.origin.source_size_bytes, summary.source_table
    is_whole = len(table) == block_count(size_bytes) * DIGEST_BYTES
    if not is_whole or (summary.source_size_bytes, summary.source_hash) != (size_bytes, blob_hash(size_bytes, table)):
        raise CorruptDataError(
            f"fragment {intent.origin.fragment_index} of blob {intent.origin.blob_id} came with checksums of another "
            "blob: send it again",
            blob_id=intent.origin.blob_id,
        )


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
        fragment_index=message.fragment_index,
        code=message.code or MIRROR,
        source_size_bytes=message.source_size_bytes,
        save_pool=message.save_pool,
        packing=message.packing,
    )
    parse_code(origin.code)
    parse_packing(origin.packing)
    return WriteIntent(
        origin, message.size_bytes, GroupId(message.group_id), message.epoch, message.relayed, message.resent
    )


def write_intent_to(
    origin: FragmentOrigin, size_bytes: int, *, group_id: str = "", epoch: int = 0, relayed: bool = False
) -> pb.WriteIntent:
    return pb.WriteIntent(
        save_id=origin.save_id,
        blob_id=origin.blob_id,
        ordinal=origin.ordinal,
        size_bytes=size_bytes,
        job=origin.job,
        step=origin.step,
        attempt=origin.attempt,
        rank=origin.rank,
        group_id=group_id,
        epoch=epoch,
        world_size=origin.world_size,
        kind=convert.kind_to(ContentKind(origin.kind)) if origin.kind else None,
        blob_count=origin.blob_count,
        pool=origin.pool,
        relayed=relayed,
        fragment_index=origin.fragment_index,
        code=origin.code,
        source_size_bytes=origin.source_size_bytes,
        save_pool=origin.save_pool,
        packing=origin.packing,
    )


def read_intent_from(message: pb.OpenReadRequest | pb.ReadBlobRequest) -> ReadIntent:
    blob_id = BlobId(check_random_id(message.blob_id, "blob id"))
    return ReadIntent(blob_id, message.fragment_index, message.offset, message.length)


def stored_to(stored: StoredFragment) -> pb.StoredBlob:
    return pb.StoredBlob(
        blob_id=stored.blob_id, size_bytes=stored.size_bytes, hash=stored.fragment_hash, disk_id=stored.disk_id
    )


def held_to(stored: StoredFragment) -> pb.HeldFragment:
    return pb.HeldFragment(
        blob_id=stored.blob_id,
        fragment_index=stored.fragment_index,
        save_id=stored.save_id,
        size_bytes=stored.size_bytes,
        hash=stored.fragment_hash,
        disk_id=stored.disk_id,
        source_size_bytes=stored.source_size_bytes,
        source_hash=stored.source_hash,
        code=stored.code,
    )


def summary_of(reader: FragmentReader) -> pb.BlobSummary:
    summary = pb.BlobSummary(size_bytes=reader.size_bytes, hash=reader.fragment_hash, table=bytes(reader.table))
    if reader.meta.is_coded:
        summary.source_size_bytes = reader.source_size_bytes
        summary.source_hash = reader.source_hash
        summary.source_table = bytes(reader.source_table)
    return summary
