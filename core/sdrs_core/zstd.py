"""Compressing blobs, and inflating their chunks, with the package ``zstandard``.

How large a blob becomes has to be known before the first byte of it is sent: placement, quotas and the layout of an
erasure code depend on it. So it is compressed once to be measured, and what this gives is kept, as far as the memory
for that goes (I10); the rest is compressed once more while it is sent. zstd gives the same bytes for the same input,
and every chunk is compared with its digest of the first pass, so nobody gets a mixture of both.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sdrs_core.checksums import blob_hash, digest, table_entry
from sdrs_core.errors import CorruptDataError, SaveFailedError, UnsupportedError
from sdrs_core.packing import (
    CHUNK_BYTES,
    LEAST_BYTES,
    SAMPLE_BYTES,
    STRIDES,
    ZSTD,
    PackIndex,
    Packing,
    choose_stride,
    encode_head,
    pays,
)

INSTALL = "pip install 'sdrs[zstd]'"
# The fastest of the levels that still find what is worth finding in arrays.
LEVEL = 1
# Enough for what is sent at once of most states: blobs of 64 MiB, in three streams.
KEPT_BYTES = 128 << 20


def check_installed(what: str) -> None:
    """``what`` cannot be done without it."""
    try:
        import zstandard  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(f"{what} needs the package zstandard, which is not installed: {INSTALL}") from error


class Kept:
    """Memory for what was compressed and not sent yet, of all blobs of a process."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._lock = threading.Lock()
        self._left_bytes = limit_bytes

    def take(self, size_bytes: int) -> bool:
        with self._lock:
            if size_bytes > self._left_bytes:
                return False
            self._left_bytes -= size_bytes
            return True

    def give(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes += size_bytes


@dataclass(frozen=True, slots=True)
class Skipped:
    """A blob that is stored as it is, because compressing it does not pay."""

    why: str


Blocks = Callable[[], Iterator[memoryview]]


class PackedBlob:
    """What a blob is stored as: ``segments`` gives its bytes, as often as asked, until ``release`` from memory where
    they were kept. One caller at a time.
    """

    def __init__(
        self,
        raw_bytes: int,
        stride: int,
        blocks: Blocks,
        lengths: Sequence[int],
        digests: bytes,
        frames: list[bytes],
        kept: Kept,
    ) -> None:
        """``frames``: of each chunk; empty where it was not kept, or is stored as it is."""
        self.packing = Packing(ZSTD, raw_bytes, blob_hash(raw_bytes, digests))
        self.raw_table = digests
        self._head = encode_head(raw_bytes, stride, lengths, digests)
        self._stride = stride
        self.size_bytes = len(self._head) + sum(lengths)
        self._blocks = blocks
        self._lengths = lengths
        self._frames = frames
        self._kept = kept

    def segments(self) -> Iterator[memoryview]:
        """In order; each is valid until the next is asked for."""
        yield memoryview(self._head)
        frames = self._frames
        if all(frames):
            yield from (memoryview(frame) for frame in frames)
            return
        compress = _Compressor(self._stride)
        chunk = memoryview(bytearray(CHUNK_BYTES))
        for number, block in enumerate(self._blocks()):
            if frames[number]:
                yield memoryview(frames[number])
                continue
            copied = chunk[: len(block)]
            copied[:] = block
            is_raw = self._lengths[number] == len(copied)
            stored = copied if is_raw else memoryview(compress(copied))
            if digest(copied) != table_entry(self.raw_table, number) or len(stored) != self._lengths[number]:
                raise SaveFailedError("a blob changed while it was saved: save a copy of it")
            yield stored

    def release(self) -> None:
        """It is durable: its memory is for others. That of one which is given up is so with its last reader."""
        frames, self._frames = self._frames, [b""] * len(self._frames)
        self._kept.give(sum(map(len, frames)))

    __del__ = release


def pack(
    raw_bytes: int, blocks: Blocks, samples: Iterable[memoryview], kept: Kept, check: Callable[[], None]
) -> PackedBlob | Skipped:
    """``blocks`` gives the blocks of a blob, as often as asked; ``samples`` those that ``sampled_chunks`` names.

    ``check`` is called between chunks, and raises if it need not go on.
    """
    if raw_bytes < LEAST_BYTES:
        return Skipped(f"it has less than {LEAST_BYTES} bytes")
    compressors = [_Compressor(stride) for stride in STRIDES]
    sampled_bytes, shrunk = 0, [0] * len(STRIDES)
    for block in samples:
        piece = block[:SAMPLE_BYTES]
        sampled_bytes += len(piece)
        shrunk = [known + len(tried(piece)) for known, tried in zip(shrunk, compressors, strict=True)]
    choice = choose_stride(sampled_bytes, shrunk)
    compress, shrunk_bytes = compressors[choice], shrunk[choice]
    if not pays(sampled_bytes, shrunk_bytes):
        return Skipped(f"{sampled_bytes} bytes out of it become {shrunk_bytes}")
    lengths: list[int] = []
    frames: list[bytes] = []
    digests = bytearray()
    # A copy: what is hashed must be what is compressed, and others may write to the memory that it comes from.
    chunk = memoryview(bytearray(min(CHUNK_BYTES, raw_bytes)))
    try:
        for block in blocks():
            check()
            copied = chunk[: len(block)]
            copied[:] = block
            digests += digest(copied)
            frame = compress(copied)
            lengths.append(min(len(frame), len(copied)))
            frames.append(frame if len(frame) < len(copied) and kept.take(len(frame)) else b"")
        packed = PackedBlob(raw_bytes, compress.stride, blocks, lengths, bytes(digests), frames, kept)
    except BaseException:
        kept.give(sum(map(len, frames)))
        raise
    if not pays(raw_bytes, packed.size_bytes):
        packed.release()
        return Skipped(f"its {raw_bytes} bytes become {packed.size_bytes}")
    return packed


def in_proportion(passed: Callable[[int], None], packed_bytes: int, raw_bytes: int) -> Callable[[int], None]:
    """Tells of what was saved, as so much of what is stored was sent."""
    sent = told = 0

    def tell(size_bytes: int) -> None:
        nonlocal sent, told
        sent += size_bytes
        before, told = told, sent * raw_bytes // packed_bytes
        passed(told - before)

    return tell


class _Compressor:
    """Of one thread."""

    def __init__(self, stride: int) -> None:
        from zstandard import ZstdCompressor

        self.stride = stride
        self._compressor = ZstdCompressor(level=LEVEL)
        self._apart = Apart(stride)

    def __call__(self, chunk: memoryview) -> bytes:
        return self._compressor.compress(self._apart.take(chunk))


class Apart:
    """Chunks whose items of ``stride`` bytes are taken apart: all their first bytes, then all their second ones."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._memory = memoryview(bytearray(CHUNK_BYTES if stride > 1 else 0))

    def take(self, chunk: memoryview) -> memoryview:
        """Valid until the next call."""
        if self._stride == 1:
            return chunk
        apart = self._memory[: len(chunk)]
        self._swap(chunk, apart, to_items=False)
        return apart

    def room(self, raw: memoryview) -> memoryview:
        """Where to inflate to, for ``join``."""
        return raw if self._stride == 1 else self._memory[: len(raw)]

    def join(self, raw: memoryview) -> None:
        if self._stride > 1:
            self._swap(self._memory[: len(raw)], raw, to_items=True)

    def _swap(self, source: memoryview, target: memoryview, *, to_items: bool) -> None:
        import numpy as np

        count = len(source) // self._stride
        whole = count * self._stride
        shape = (self._stride, count) if to_items else (count, self._stride)
        given, wanted = (np.frombuffer(view, np.uint8, whole) for view in (source, target))
        np.copyto(wanted.reshape(shape[::-1]), given.reshape(shape).T)
        target[whole:] = source[whole:]


class Inflater:
    """Of one thread."""

    def __init__(self, stride: int) -> None:
        check_installed("reading a compressed checkpoint")
        from zstandard import ZstdDecompressor

        # A frame never needs more memory than a chunk, whatever it says of itself.
        self._decompressor = ZstdDecompressor(max_window_size=CHUNK_BYTES)
        self._apart = Apart(stride)

    def inflate(self, index: PackIndex, number: int, stored: memoryview, into: memoryview) -> None:
        """A chunk, into the first bytes of ``into``, compared with its digest (I5)."""
        from zstandard import ZstdError

        start, end = index.raw_span(number)
        raw = into[: end - start]
        if index.is_raw(number):
            raw[:] = stored
        else:
            try:
                with self._decompressor.stream_reader(stored) as reader:
                    room, filled = self._apart.room(raw), 0
                    while filled < len(room) and (count := reader.readinto(room[filled:])):
                        filled += count
                    is_whole = filled == len(room) and not reader.read(1)
            except ZstdError as error:
                raise CorruptDataError(f"chunk {number} cannot be inflated: {error}") from error
            if not is_whole:
                raise CorruptDataError(f"chunk {number} does not inflate to {len(raw)} bytes")
            self._apart.join(raw)
        if digest(raw) != index.digest(number):
            raise CorruptDataError(f"chunk {number} does not match its checksum once it is inflated")
