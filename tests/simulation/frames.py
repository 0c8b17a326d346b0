"""Small blobs as frames, one block each, and back; every byte is compared on the way in (I5)."""

from __future__ import annotations

from collections.abc import Sequence

from sdrs_core.checksums import blob_hash, digest
from sdrs_core.errors import CorruptDataError
from sdrs_proto.framing import Frame
from sdrs_proto.v1 import storage_pb2 as pb


def hash_of(data: bytes) -> str:
    return blob_hash(len(data), digest(data))


def frames_of(data: bytes) -> list[Frame]:
    """What follows the opening frame of a write."""
    summary = pb.BlobSummary(size_bytes=len(data), hash=hash_of(data))
    return [Frame(digest=digest(data), data=data), Frame(end=summary.SerializeToString())]


def read_frames(frames: Sequence[Frame]) -> tuple[bytes, str]:
    """The bytes of a read and their hash."""
    summary = pb.BlobSummary.FromString(frames[0].open)
    data = b"".join(bytes(frame.data) for frame in frames[1:])
    if hash_of(data) != summary.hash or digest(data) != summary.table:
        raise CorruptDataError("what was read does not match its own hash")
    return data, summary.hash
