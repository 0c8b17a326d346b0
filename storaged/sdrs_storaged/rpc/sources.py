"""Where a fragment can be read: another node over its data channel, this one from its own disk, or a bucket.

What comes is compared block by block with the fragment's own table, and that with what is on record (I5, P9).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from sdrs_core import checksums
from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_core.checksums import BLOCK_BYTES, DIGEST_BYTES, blob_hash
from sdrs_core.cluster import Node
from sdrs_core.codes import Code, parse_code
from sdrs_core.errors import CorruptDataError, InternalError
from sdrs_core.ids import BlobId, NodeId
from sdrs_proto import channel
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.bucket.open_buckets import OpenBuckets
from sdrs_storaged.rpc.blobs import summary_of
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.store.buffers import BufferPool
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.store.fragment import plain_rows
from sdrs_storaged.store.reader import FragmentReader

_MAX_IDLE_BUFFERS = 16


@dataclass(frozen=True, slots=True)
class BlobFacts:
    """What is on record of a blob: ``size_bytes`` and ``hash`` are those of its plain bytes, whatever its code."""

    id: BlobId
    size_bytes: int
    hash: str
    code: str

    @property
    def erasure_code(self) -> Code | None:
        """None for whole copies."""
        return parse_code(self.code)


@dataclass(frozen=True, slots=True)
class Source:
    """One fragment on one node; ``hash`` is the fragment's own, empty if it is not known."""

    node: Node
    fragment_index: int = 0
    hash: str = ""

    def __str__(self) -> str:
        return f"node {self.node.id}"


@dataclass(frozen=True, slots=True)
class BucketSource:
    """A blob's plain bytes in a backup: a whole copy. ``table``: what the order says that its blocks are (P9)."""

    target: Target
    place: ObjectPlace
    table: bytes
    fragment_index: int = 0
    hash: str = ""

    def __str__(self) -> str:
        return f"backup {self.target.name}"


AnySource = Source | BucketSource


class Opened(Protocol):
    """The bytes of a fragment, from some offset to its end."""

    def receive(self, into: memoryview) -> None:
        """The next bytes, as many as fit."""

    def close(self) -> None: ...


# The source, the blob, and the offset from which it is read. It blocks, and raises why there is nothing to read.
OpenSource = Callable[[AnySource, BlobId, int], tuple[pb.BlobSummary, Opened]]


class Sources:
    """Opens them. ``for_repair``: what is read at other nodes takes none of their readers' slots (P21)."""

    def __init__(self, store: FragmentStore, peers: Peers, node_id: NodeId, *, for_repair: bool) -> None:
        self._store = store
        self._peers = peers
        self._node_id = node_id
        self._for_repair = for_repair
        self.buckets = OpenBuckets()
        self.buffers = BufferPool(_MAX_IDLE_BUFFERS)

    def open(self, source: AnySource, blob_id: BlobId, offset: int) -> tuple[pb.BlobSummary, Opened]:
        if isinstance(source, BucketSource):
            size_bytes, table = source.place.size_bytes, source.table
            opened = self.buckets.open(source.target, source.place, offset)
            return pb.BlobSummary(size_bytes=size_bytes, hash=blob_hash(size_bytes, table), table=table), opened
        if source.node.id == self._node_id:
            reader = self._store.open(blob_id, source.fragment_index)
            return summary_of(reader), _OwnFragment(reader, offset)
        request = pb.OpenReadRequest(
            blob_id=blob_id, fragment_index=source.fragment_index, offset=offset, for_repair=self._for_repair
        )
        connection = self._peers.open_source(source.node, request)
        try:
            return channel.receive_answer(connection, pb.BlobSummary), _PeerFragment(connection)
        except BaseException:
            connection.close()
            raise


class _PeerFragment:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def receive(self, into: memoryview) -> None:
        channel.receive_exactly(self._connection, into, STALL_SECONDS)

    def close(self) -> None:
        self._connection.close()


class _OwnFragment:
    def __init__(self, reader: FragmentReader, offset: int) -> None:
        self._reader = reader
        self._pieces: Generator[memoryview, None, None] = reader.pieces(offset, reader.size_bytes)
        self._piece = memoryview(b"")

    def receive(self, into: memoryview) -> None:
        while into:
            if not self._piece:
                piece = next(self._pieces, None)
                if piece is None:
                    raise InternalError(f"{self._reader.path} has no more than {self._reader.size_bytes} bytes")
                self._piece = piece
            count = min(len(into), len(self._piece))
            into[:count] = self._piece[:count]
            into, self._piece = into[count:], self._piece[count:]

    def close(self) -> None:
        self._pieces.close()
        self._reader.close()


class CheckedFragment:
    """One source's fragment of a blob, from one of its blocks on."""

    def __init__(self, opened: Opened, table: bytes, source: AnySource, blob_id: BlobId, next_block: int) -> None:
        self._opened = opened
        self._table = table
        self.source = source
        self._blob_id = blob_id
        self.next_block = next_block

    def read(self, into: memoryview) -> None:
        """The next block, whose size ``into`` has."""
        self._opened.receive(into)
        if checksums.digest(into) != checksums.table_entry(self._table, self.next_block):
            raise CorruptDataError(
                f"block {self.next_block} of fragment {self.source.fragment_index} of blob {self._blob_id} at "
                f"{self.source} does not match its checksum",
                blob_id=self._blob_id,
            )
        self.next_block += 1

    def skip(self, scratch: memoryview) -> None:
        """Pass over the next block, which is a whole one."""
        self._opened.receive(scratch)
        self.next_block += 1

    def close(self) -> None:
        self._opened.close()


def open_checked(
    open_source: OpenSource, source: AnySource, blob: BlobFacts, next_block: int
) -> tuple[CheckedFragment, bytes]:
    """Also the table of the blob's plain blocks, which is as it is on record (P9)."""
    summary, opened = open_source(source, blob.id, next_block * BLOCK_BYTES)
    try:
        plain_table, table = _checked_tables(summary, source, blob)
    except BaseException:
        opened.close()
        raise
    return CheckedFragment(opened, table, source, blob.id, next_block), plain_table


def _checked_tables(summary: pb.BlobSummary, source: AnySource, blob: BlobFacts) -> tuple[bytes, bytes]:
    """The table of the blob's plain blocks, and the fragment's own."""
    code, index, table = blob.erasure_code, source.fragment_index, summary.table
    plain_table, plain_bytes, plain_hash = table, summary.size_bytes, summary.hash
    if code is not None:
        plain_table, plain_bytes, plain_hash = summary.source_table, summary.source_size_bytes, summary.source_hash
    if not _is_table_of(plain_table, blob.size_bytes, blob.hash):
        raise CorruptDataError(
            f"{source} has {plain_bytes} bytes with hash {plain_hash or 'none'}, on record of blob {blob.id} are "
            f"{blob.size_bytes} with {blob.hash}",
            blob_id=blob.id,
        )
    if code is None:
        return table, table
    size_bytes, fragment_hash = code.fragment_bytes(blob.size_bytes, index), source.hash or summary.hash
    is_plain = index >= code.data or table == plain_rows(plain_table, index, code.data)
    if not is_plain or not _is_table_of(table, size_bytes, fragment_hash):
        raise CorruptDataError(
            f"{source} has fragment {index} of blob {blob.id} with {summary.size_bytes} bytes and hash "
            f"{summary.hash}, on record are {size_bytes} with {fragment_hash}",
            blob_id=blob.id,
        )
    return plain_table, table


def _is_table_of(table: bytes, size_bytes: int, wanted_hash: str) -> bool:
    is_whole = len(table) == checksums.block_count(size_bytes) * DIGEST_BYTES
    return is_whole and checksums.blob_hash(size_bytes, table) == wanted_hash
