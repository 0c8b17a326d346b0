"""Content for buckets, and its way in and out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import blake3

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.ids import random_id
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.downloading import open_object
from sdrs_storaged.bucket.patience import Patience
from sdrs_storaged.bucket.uploading import upload

CLUSTER = "c" * 32
# The least that stores take for a part.
SMALL_PART_BYTES = 5 << 20
# Of a test, that waits for nothing.
HASTE = Patience(connect_seconds=2.0, read_seconds=10.0, quick_tries=1, tries=3, first_pause_seconds=0.01)


def content(size_bytes: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def blocks_of(data: bytes, block_bytes: int = 1 << 20) -> Iterator[memoryview]:
    """In one buffer, as they come from a disk: each is gone once the next is asked for."""
    buffer = bytearray(block_bytes)
    for start in range(0, len(data), block_bytes):
        block = data[start : start + block_bytes]
        buffer[: len(block)] = block
        yield memoryview(buffer)[: len(block)]


def put_content(
    bucket: Bucket,
    data: bytes,
    *,
    run_id: str = "",
    block_bytes: int = 1 << 20,
    progress: Callable[[int, int], None] = lambda done_bytes, sent_bytes: None,
) -> ObjectPlace:
    identity = blake3.blake3(data).hexdigest()
    place = bucket.new_place(CLUSTER, identity, run_id or random_id(), len(data))
    upload(bucket, place, blocks_of(data, block_bytes), blake3=identity, progress=progress)
    return place


def get_content(bucket: Bucket, place: ObjectPlace, offset: int = 0, piece_bytes: int = 700_000) -> bytes:
    reader, out = open_object(bucket, place, offset), bytearray(place.size_bytes - offset)
    try:
        for start in range(0, len(out), piece_bytes):
            reader.receive(memoryview(out)[start : start + piece_bytes])
    finally:
        reader.close()
    return bytes(out)


def key_file(path: Path, secret: bytes) -> str:
    """The place of an encryption key, as a target names it."""
    path.touch(mode=0o600)
    path.write_text(secret.hex())
    return f"file:{path}"
