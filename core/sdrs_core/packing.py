"""Blobs that are stored compressed: how that is written down, and where in them which bytes are. No I/O.

To whoever stores it a packed blob is a blob like any other: immutable bytes with checksums of their blocks. Its record
has the size and hash of what is stored; ``packing`` beside them says of what. Its bytes are::

    head      magic, size of the raw bytes, the stride by which chunks are taken apart (u32)
              for each chunk of 1 MiB of the raw bytes: how long it is as stored (u32)
              for each chunk: the xxh3 digest of its raw bytes
    chunks    each a frame of its own, or the raw bytes where these are not longer than that

With a stride of 4 a frame is of the first bytes of each four, then of the second ones, and so on: in an array of floats
these are much alike, and the numbers as they stand are not.
Chunks are the blocks of the raw blob, so that a range of it is read without inflating the rest. The digests are the
table that the raw blob's own hash covers, which is on record: what is inflated is verified like what is read (I5).
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from sdrs_core.checksums import BLOCK_BYTES, DIGEST_BYTES, Buffer, blob_hash, block_count, table_entry
from sdrs_core.errors import CorruptDataError, InvalidArgumentError

ZSTD = "zstd"
CHUNK_BYTES = BLOCK_BYTES

# Smaller ones are a page of a disk or two, whatever they hold.
LEAST_BYTES = 64 << 10
# What shrinks by less costs more time, now and with each restore, than room.
MOST_SHARE = 0.9
# Looked at before a blob is compressed: a part of so many of its chunks.
SAMPLE_COUNT = 8
SAMPLE_BYTES = 128 << 10
# The sizes of the numbers that arrays are of; 1: they stay as they are.
STRIDES = (1, 2, 4, 8)
# What numbers that are taken apart must spare beyond that, of their bytes: putting them together takes time as well.
LEAST_GAIN = 0.03

# Sizes of less than a petabyte.
_PACKING = re.compile(r"([a-z0-9]{1,16}):([1-9][0-9]{0,14}):([0-9a-f]{1,64})")
_MAGIC = b"SDRSpack"
_PREFIX = struct.Struct("<8sQI")
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Packing:
    """What a packed blob is of. In records it is text: ``zstd:1048576:HASH``."""

    method: str
    raw_bytes: int
    raw_hash: str

    def __str__(self) -> str:
        return f"{self.method}:{self.raw_bytes}:{self.raw_hash}"


@lru_cache(maxsize=4096)
def parse_packing(text: str) -> Packing | None:
    """None: it is stored as it was saved."""
    if not text:
        return None
    found = _PACKING.fullmatch(text)
    if found is None:
        raise InvalidArgumentError(f"{text[:80]!r} does not say how a blob is packed")
    return Packing(found[1], int(found[2]), found[3])


def pays(raw_bytes: int, packed_bytes: int) -> bool:
    return packed_bytes <= MOST_SHARE * raw_bytes


def choose_stride(raw_bytes: int, packed_bytes: Sequence[int]) -> int:
    """Which of the strides, given what the same bytes become with each."""
    best = min(range(len(STRIDES)), key=packed_bytes.__getitem__)
    return best if packed_bytes[0] - packed_bytes[best] >= LEAST_GAIN * raw_bytes else 0


def sampled_chunks(raw_bytes: int) -> Sequence[int]:
    """The numbers of the chunks to look at first, spread over all of it."""
    count = block_count(raw_bytes)
    return sorted({number * count // SAMPLE_COUNT for number in range(SAMPLE_COUNT)})


def head_bytes(raw_bytes: int) -> int:
    return _PREFIX.size + block_count(raw_bytes) * (_LENGTH.size + DIGEST_BYTES)


def encode_head(raw_bytes: int, stride: int, lengths: Sequence[int], digests: bytes) -> bytes:
    return _PREFIX.pack(_MAGIC, raw_bytes, stride) + b"".join(map(_LENGTH.pack, lengths)) + digests


@dataclass(frozen=True, slots=True)
class PackIndex:
    """Where in a packed blob its chunks are. ``starts`` has one more than there are chunks: the end of the last."""

    raw_bytes: int
    stride: int
    starts: array[int]
    digests: bytes

    def chunks(self, raw_start: int, raw_end: int) -> range:
        """Those that have these bytes."""
        return range(raw_start // CHUNK_BYTES, block_count(raw_end))

    def raw_span(self, number: int) -> tuple[int, int]:
        return number * CHUNK_BYTES, min((number + 1) * CHUNK_BYTES, self.raw_bytes)

    def stored_span(self, chunks: range) -> tuple[int, int]:
        return self.starts[chunks.start], self.starts[chunks.stop]

    def is_raw(self, number: int) -> bool:
        start, end = self.raw_span(number)
        return self.starts[number + 1] - self.starts[number] == end - start

    def digest(self, number: int) -> bytes:
        return table_entry(self.digests, number)


def decode_head(head: Buffer, packing: Packing, size_bytes: int) -> PackIndex:
    """``head``: the first bytes of a packed blob of ``size_bytes``, at least ``head_bytes``. CorruptDataError if they
    do not fit its record, or say anything that cannot be: nobody then reserves memory by what they say.
    """
    count, length = block_count(packing.raw_bytes), head_bytes(packing.raw_bytes)
    magic, raw_bytes, stride = _PREFIX.unpack_from(head) if len(head) >= length else (b"", 0, 0)
    if (magic, raw_bytes) != (_MAGIC, packing.raw_bytes) or stride not in STRIDES:
        raise CorruptDataError(f"it does not begin as a packed blob of {packing.raw_bytes} bytes does")
    digests = bytes(head[length - count * DIGEST_BYTES : length])
    if blob_hash(packing.raw_bytes, digests) != packing.raw_hash:
        raise CorruptDataError("its checksums are not those of the bytes that are on record")
    lengths = [found for (found,) in _LENGTH.iter_unpack(head[_PREFIX.size : length - len(digests)])]
    index = PackIndex(packing.raw_bytes, stride, array("Q", accumulate(lengths, initial=length)), digests)
    for number, stored_bytes in enumerate(lengths):
        start, end = index.raw_span(number)
        if not 0 < stored_bytes <= end - start:
            raise CorruptDataError(f"its chunk {number} of {end - start} bytes cannot be stored as {stored_bytes}")
    if index.starts[-1] != size_bytes:
        raise CorruptDataError(f"its chunks end at {index.starts[-1]}, and it has {size_bytes} bytes")
    return index
