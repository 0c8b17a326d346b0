"""Blobs as blocks and frames, with their checksums."""

from __future__ import annotations

from sdrs_core import checksums
from sdrs_proto.framing import Frame
from sdrs_proto.v1 import storage_pb2 as pb

# A block with its checksum, as they go over the data channel.
Blocks = list[tuple[bytes, bytes]]


def blocks_of(data: bytes) -> list[bytes]:
    return [data[start:end] for start, end in checksums.block_spans(0, len(data))]


def table_of(data: bytes) -> bytes:
    return b"".join(map(checksums.digest, blocks_of(data)))


def hash_of(data: bytes) -> str:
    return checksums.blob_hash(len(data), table_of(data))


def summary_of(data: bytes) -> pb.BlobSummary:
    return pb.BlobSummary(size_bytes=len(data), hash=hash_of(data))


def checked_blocks(data: bytes) -> Blocks:
    return [(checksums.digest(block), block) for block in blocks_of(data)]


def frames_of(data: bytes) -> list[Frame]:
    """What follows the opening frame of a write."""
    frames = [Frame(digest=digest, data=block) for digest, block in checked_blocks(data)]
    return [*frames, Frame(end=summary_of(data).SerializeToString())]
