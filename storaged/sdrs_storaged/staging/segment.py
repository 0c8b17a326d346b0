"""One segment, and what may be read of it once that is durable elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sdrs_core.checksums import BLOCK_BYTES, block_spans, digest
from sdrs_core.errors import InvalidArgumentError
from sdrs_proto.v1.staging_pb2 import StagedBlob


@dataclass(eq=False, slots=True)
class Copy:
    """One rank's part of a save that is in. ``tables``: checksums of blocks, by ordinal, of those that were sent from
    here; the others' are made when somebody asks.
    """

    save_id: str
    rank: int
    blobs: Sequence[StagedBlob]
    tables: dict[int, bytes]
    making: threading.Lock = field(default_factory=threading.Lock)


@dataclass(eq=False, slots=True)
class Segment:
    """``owner`` is None once its process is gone. While ``is_sealed`` its bytes are the daemon's."""

    id: str
    path: Path
    size_bytes: int
    fd: int
    owner: object | None
    is_sealed: bool = False
    # What can be read here unless the owner has overwritten it, which it need not tell.
    copy: Copy | None = None
    left_seconds: float = 0.0

    def read_into(self, target: memoryview, offset: int) -> None:
        """By a copy: what is hashed afterwards is what is sent, whatever the owner does to its own mapping."""
        filled = 0
        while filled < len(target):
            count = os.preadv(self.fd, [target[filled:]], offset + filled)
            if count == 0:
                raise InvalidArgumentError(f"segment {self.id} was cut off by its owner")
            filled += count

    def blocks(self, blob: StagedBlob) -> Iterator[memoryview]:
        """As they are sent; each is valid until the next is asked for."""
        buffer = memoryview(bytearray(min(BLOCK_BYTES, blob.size_bytes)))
        for start, end in block_spans(0, blob.size_bytes):
            block = buffer[: end - start]
            self.read_into(block, blob.offset + start)
            yield block

    def table(self, blob: StagedBlob) -> bytes:
        return b"".join(map(digest, self.blocks(blob)))
