"""Checksums of blobs: one xxh3 digest for each block, and one hash over their table.

The whole hash is taken over the table instead of over the bytes, so that one pass over the data gives both, blocks can
be hashed in any order by several threads, and a reader of a byte range can check its blocks against the blob's record.
xxh3 detects corruption; it does not identify content (P23).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import xxhash

BLOCK_BYTES = 1 << 20
DIGEST_BYTES = 16

Buffer = bytes | bytearray | memoryview


def digest(data: Buffer) -> bytes:
    """The checksum of one block (it releases the GIL on large blocks)."""
    return xxhash.xxh3_128_digest(data)


def block_count(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK_BYTES)


def block_spans(start: int, end: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each block from ``start``, where one starts, to ``end``."""
    for position in range(start, end, BLOCK_BYTES):
        yield position, min(position + BLOCK_BYTES, end)


def blob_hash(size_bytes: int, table: Buffer) -> str:
    """The hash that names a blob's content in its record: over its size and its table of block digests."""
    if len(table) != block_count(size_bytes) * DIGEST_BYTES:
        raise ValueError(f"a table of {len(table)} bytes does not fit a blob of {size_bytes} bytes")
    hasher = xxhash.xxh3_128(struct.pack("<Q", size_bytes))
    hasher.update(table)
    return hasher.hexdigest()


def table_entry(table: Buffer, index: int) -> bytes:
    return bytes(table[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES])
