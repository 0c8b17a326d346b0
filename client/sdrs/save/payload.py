"""What a save sends: blobs whose bytes can be produced again for every try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from sdrs_core.checkpoints import content_hash
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, digest
from sdrs_core.errors import SaveFailedError
from sdrs_core.packing import sampled_chunks
from sdrs_core.zstd import Kept, PackedBlob, Skipped, pack


class PayloadBlob(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def segments(self) -> Iterator[memoryview]:
        """The bytes in order, as often as asked. A segment is valid until the next is asked for."""


class Payload(Protocol):
    """The blobs of one shard: the user's own memory or files, or their staged copy."""

    @property
    def blobs(self) -> Sequence[PayloadBlob]: ...

    @property
    def total_bytes(self) -> int: ...


def blocks(blob: PayloadBlob) -> Iterator[memoryview]:
    """The blob cut into blocks as they are checksummed. A block is valid until the next is asked for.

    Blocks that lie within one segment are handed out as they are; only those that span several are copied together.
    """
    scratch = memoryview(bytearray(min(BLOCK_BYTES, blob.size_bytes)))
    filled = total = 0
    for segment in blob.segments():
        total += len(segment)
        if total > blob.size_bytes:
            break
        position = 0
        while position < len(segment):
            if not filled and len(segment) - position >= BLOCK_BYTES:
                piece = segment[position : position + BLOCK_BYTES]
                yield piece
            else:
                piece = segment[position : position + BLOCK_BYTES - filled]
                scratch[filled : filled + len(piece)] = piece
                filled += len(piece)
                if filled == BLOCK_BYTES:
                    yield scratch
                    filled = 0
            position += len(piece)
    if total != blob.size_bytes:
        raise SaveFailedError(f"a blob of {blob.size_bytes} bytes has another size now: it changed while it was saved")
    if filled:
        yield scratch[:filled]


def pack_blob(blob: PayloadBlob, kept: Kept) -> PackedBlob | Skipped:
    """What it is stored as, if it is to be compressed."""
    numbers = set(sampled_chunks(blob.size_bytes))
    samples = (block for number, block in enumerate(blocks(blob)) if number in numbers)
    return pack(blob.size_bytes, lambda: blocks(blob), samples, kept, lambda: None)


def hash_payload(payload: Payload) -> str:
    """The content hash that a save of ``payload`` would register."""
    return content_hash((blob.size_bytes, _hash_blob(blob)) for blob in payload.blobs)


def _hash_blob(blob: PayloadBlob) -> str:
    return blob_hash(blob.size_bytes, b"".join(digest(block) for block in blocks(blob)))
