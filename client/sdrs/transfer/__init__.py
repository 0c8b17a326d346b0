"""Moving the bytes of one blob to or from one node: one interface, four ways.

=====================  ==================  =============================================================
``grpc_stream``        write and read      works wherever calls work; small blobs, or when all else fails
``data_channel``       write and read      a plain socket opened by a ticket; a blob of a MiB and more
``local_file``         read                the node on this host passes the open file itself
``staged_copy``        read                it passes the memory that the blob was staged in, as long as it has that
=====================  ==================  =============================================================

``routes`` chooses between the first three; ``sdrs.restore.staged`` looks for the last. Writers compare what the node
stored with what they sent (I1); what is read is only as good as the checks in ``sdrs.restore.blocks`` (I5). A file is
read in the caller's own time: the disk that it waits for is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sdrs.rpc.cutoff import Cutoff
from sdrs.save.payload import PayloadBlob
from sdrs_core.ids import BlobId
from sdrs_proto.limits import STALL_SECONDS
from sdrs_proto.v1.storage_pb2 import WriteIntent

Sent = Callable[[int], None]


class PendingWrite(Protocol):
    """A blob whose bytes are sent; the node is making them durable."""

    def result(self) -> str:
        """Wait until the node has it durable; its hash. To be called once."""


class BlobSink(Protocol):
    def send(self, intent: WriteIntent, blob: PayloadBlob, sent: Sent, cutoff: Cutoff | None = None) -> PendingWrite:
        """Send all of ``blob``; ``sent`` is told the size of each piece as it goes.

        ``cutoff`` breaks it off, here and while the result is awaited; what it was cut with is raised then.
        """


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """Whole blocks of one fragment (the last may be short), from ``offset`` on."""

    blob_id: BlobId
    fragment_index: int
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What the node says of a fragment, and of the blob that it is of. The reader compares both with the blob's record.

    Of a whole copy the two are the same.
    """

    size_bytes: int
    hash: str
    table: bytes
    source_size_bytes: int
    source_hash: str
    # Of the blob's plain blocks, whatever the fragment is (P9).
    source_table: bytes

    @classmethod
    def of_copy(cls, size_bytes: int, whole_hash: str, table: bytes) -> Summary:
        return cls(size_bytes, whole_hash, table, size_bytes, whole_hash, table)


class OpenRange(Protocol):
    @property
    def summary(self) -> Summary: ...

    @property
    def last_heard(self) -> float:
        """When its last byte came, by ``time.monotonic``."""

    def read_into(self, target: memoryview, size_bytes: int, within_seconds: float | None = None) -> bool:
        """Fill the first ``size_bytes`` of ``target`` with the next bytes of the range; True once that is done.

        ``target`` is page-aligned and reaches to the end of its last page: what lies beyond ``size_bytes`` may be
        overwritten too. False: it took longer than ``within_seconds``; the same call again goes on with it. Without
        ``within_seconds`` a node that stalls is an UnavailableError.
        """

    def close(self) -> None: ...


class BlobSource(Protocol):
    def open(self, fragment: FragmentRange, stall_seconds: float = STALL_SECONDS) -> OpenRange:
        """Begin to read. A node that sends nothing for ``stall_seconds``, now or later, is taken for gone."""
