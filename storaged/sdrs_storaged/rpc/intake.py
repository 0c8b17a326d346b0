"""A blob on its way into this node, whichever way it takes: stored here, and passed on while it comes.

There are two kinds. What is stored whole, or is itself a fragment that a primary relays, is written as it comes, and
copied as it comes (``MirroredIntake``); what a pool codes is cut into fragments (``coded_intake``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Self

from sdrs_core.checksums import Buffer
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.blobs import BlobStore, stored_to
from sdrs_storaged.rpc.replication import Relays


class Intake(ABC):
    """The order of calls: ``next_block`` (fill it) and ``commit_block``, or ``append``, for each block, with
    ``check_wanted`` in between; ``finish`` once. Leaving the ``with`` block without ``finish`` keeps nothing.

    They block. One caller at a time, except that ``close`` may come from another thread, and then waits for the call
    under way.
    """

    @abstractmethod
    def next_block(self) -> memoryview:
        """Page-aligned room for one block, to be received into; valid until the next call."""

    @abstractmethod
    def commit_block(self, size_bytes: int, digest: bytes | None) -> bytes:
        """Take the first bytes of the block that ``next_block`` gave, if they match the sender's digest; that digest.

        Without one, the caller is the source itself: the digest of what is taken is the first there is of these bytes.
        """

    @abstractmethod
    def append(self, block: Buffer, digest: bytes) -> None:
        """The same for bytes that are already in memory, and that nobody changes any more."""

    @abstractmethod
    def check_wanted(self) -> None:
        """Between blocks: raises if the rest need not come."""

    @abstractmethod
    def finish(self, summary: pb.BlobSummary) -> pb.StoredBlob:
        """Durable when this returns (I1): here, and at every member that did not fail."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class MirroredIntake(Intake):
    """Stored here as it comes. A member that lacks its copy at the end costs nobody anything: the seal finds it."""

    def __init__(
        self, blobs: BlobStore, intent: WriteIntent, relaying: AbstractContextManager[Relays] | None = None
    ) -> None:
        """``relaying``: to whom it goes on; to nobody, if it was itself relayed."""
        self._blobs = blobs
        self._intent = intent
        with ExitStack() as opened:
            self._writer = opened.enter_context(blobs.create(intent))
            # Closed first: the copies are sent from the writer's buffers.
            self._relays = opened.enter_context(relaying or nullcontext(Relays()))
            self._ending = opened.pop_all()

    def next_block(self) -> memoryview:
        return self._writer.next_block()

    def commit_block(self, size_bytes: int, digest: bytes | None) -> bytes:
        block = self._writer.next_block()[:size_bytes]
        checksum = self._writer.commit_block(size_bytes, digest)
        self._relays.put(checksum, block)
        return checksum

    def append(self, block: Buffer, digest: bytes) -> None:
        self._writer.append(block, digest)
        self._relays.put(digest, block)

    def check_wanted(self) -> None:
        self._blobs.check_wanted(self._intent)

    def finish(self, summary: pb.BlobSummary) -> pb.StoredBlob:
        self._writer.check_whole(summary.size_bytes, summary.hash)
        self._relays.end(lambda share: summary)
        try:
            return stored_to(self._blobs.finish(self._writer, self._intent, summary))
        finally:
            self._relays.settle()

    def close(self) -> None:
        self._ending.close()
