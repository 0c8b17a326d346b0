"""Packed blobs: what is compressed comes back to the bit, by chunks, and whatever does not fit is damage."""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs.restore.inflating import HeadReading, Inflating
from sdrs.restore.stripes import Range
from sdrs.restore.targets import BufferedTarget, ByteCount
from sdrs_core.checkpoints import Blob, content_of
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, digest
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, SaveFailedError, UnsupportedError
from sdrs_core.ids import BlobId
from sdrs_core.packing import (
    LEAST_BYTES,
    STRIDES,
    Packing,
    choose_stride,
    decode_head,
    encode_head,
    head_bytes,
    parse_packing,
    sampled_chunks,
)
from sdrs_core.zstd import Apart, Kept, PackedBlob, Skipped, in_proportion, pack

MIB = 1 << 20


def rounded(count: int) -> bytes:
    """Weights in float32 that have the precision of bfloat16."""
    weights = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    return (weights.view(np.uint32) & 0xFFFF0000).tobytes()


MIXED = rounded(MIB // 2) + os.urandom(MIB + 5) + bytes(2 * MIB) + b"end"


def blocks(data: bytes) -> Iterator[memoryview]:
    for start in range(0, len(data), BLOCK_BYTES):
        yield memoryview(data)[start : start + BLOCK_BYTES]


def packed(data: bytes, kept: Kept | None = None) -> PackedBlob | Skipped:
    samples = [block for number, block in enumerate(blocks(data)) if number in sampled_chunks(len(data))]
    return pack(len(data), lambda: blocks(data), samples, kept or Kept(), lambda: None)


def stored(blob: PackedBlob) -> bytes:
    data = b"".join(map(bytes, blob.segments()))
    assert len(data) == blob.size_bytes
    return data


def good(data: bytes, kept: Kept | None = None) -> tuple[bytes, Blob]:
    blob = packed(data, kept)
    assert isinstance(blob, PackedBlob)
    return stored(blob), Blob(BlobId("b"), 0, blob.size_bytes, "", packing=str(blob.packing))


def read(data: bytes, blob: Blob, start: int, end: int, piece_bytes: int = BLOCK_BYTES) -> tuple[bytes, int]:
    """The chunks with these bytes, as a reader gets them that is given the stored bytes in pieces; and how many of
    these it asked for.
    """
    head = HeadReading(blob)
    head.accept(blob, 0, memoryview(data)[: head.part.end])
    found = bytearray(blob.raw_bytes)

    def write(_: Blob, offset: int, verified: memoryview) -> None:
        found[offset : offset + len(verified)] = verified

    inflating = Inflating(Range(blob, start, end), head.index(), BufferedTarget(write), count := ByteCount())
    for position in range(inflating.part.start, inflating.part.end, piece_bytes):
        piece = data[position : min(position + piece_bytes, inflating.part.end)]
        inflating.accept(blob, position, memoryview(piece))
    assert count.read_bytes >= end - start
    return bytes(found[start:end]), inflating.part.end - inflating.part.start


@pytest.mark.parametrize("data", [rounded(MIB), MIXED, bytes(LEAST_BYTES), bytes(MIB + 1)], ids=len)
def test_what_is_packed_comes_back_to_the_bit_in_whatever_pieces_it_is_read(data: bytes) -> None:
    whole, blob = good(data)
    assert (blob.raw_bytes, blob.raw_hash) == (len(data), blob_hash(len(data), b"".join(map(digest, blocks(data)))))
    assert blob.size_bytes < 0.9 * len(data)
    for piece_bytes in (BLOCK_BYTES, 4096, 3 * BLOCK_BYTES):
        assert read(whole, blob, 0, len(data), piece_bytes)[0] == data


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_numbers_are_taken_apart_by_their_size(dtype: Any) -> None:
    item_bytes = np.dtype(dtype).itemsize
    # The low bytes are noise and the high ones are not; and a few bytes that are no whole number.
    steps = np.random.default_rng(1).integers(0, 200, 3 * MIB // item_bytes)
    data = np.cumsum(steps).astype(dtype).tobytes() + b"odd"
    whole, blob = good(data)
    packing = parse_packing(blob.packing)
    assert packing is not None
    assert decode_head(whole, packing, len(whole)).stride % item_bytes == 0
    assert read(whole, blob, 0, len(data))[0] == data
    assert good(data, Kept(0))[0] == whole


@pytest.mark.parametrize("stride", STRIDES)
def test_what_was_taken_apart_is_put_together(stride: int) -> None:
    data = bytes(range(256)) * 5000 + b"odd"
    for chunk in (data[:MIB], data[MIB:]):
        there = Apart(stride)
        apart = bytes(there.take(memoryview(chunk)))
        whole = len(chunk) // stride * stride
        assert apart == b"".join(chunk[first:whole:stride] for first in range(stride)) + chunk[whole:]
        there.room(raw := memoryview(bytearray(len(chunk))))[:] = apart
        there.join(raw)
        assert raw == chunk


def test_a_range_is_read_without_the_rest() -> None:
    data = rounded(8 * MIB)
    whole, blob = good(data)
    start = 20 * MIB
    found, read_bytes = read(whole, blob, start, start + MIB)
    assert found == data[start : start + MIB]
    assert read_bytes <= 2 * BLOCK_BYTES


@settings(deadline=None)
@given(st.integers(0, 4), st.integers(1, 5))
def test_any_range_of_chunks_is_what_was_saved(first: int, count: int) -> None:
    start, end = first * MIB, min((first + count) * MIB, len(MIXED))
    assert read(*_MIXED, start, end)[0] == MIXED[start:end]


_MIXED = good(MIXED)


@pytest.mark.parametrize("data", [os.urandom(3 * MIB), bytes(LEAST_BYTES - 1), b"x"], ids=["noise", "small", "tiny"])
def test_what_does_not_shrink_enough_is_left_as_it_is(data: bytes) -> None:
    kept = Kept(MIB)
    assert isinstance(packed(data, kept), Skipped)
    assert kept.take(MIB)


def test_samples_that_deceive_are_found_out_by_the_whole_measure() -> None:
    # Half of what is looked at first is zeros, a sixteenth of it all.
    data = b"".join(bytes(64 << 10) + os.urandom(MIB - (64 << 10)) for _ in range(16))
    kept = Kept(64 * MIB)
    assert isinstance(found := packed(data, kept), Skipped)
    assert str(len(data)) in found.why
    assert kept.take(64 * MIB), "its memory was not given back"


def test_what_was_not_kept_is_compressed_again_to_the_same_bytes() -> None:
    data = rounded(2 * MIB)
    kept = Kept(3 * MIB)
    blob = packed(data, kept)
    assert isinstance(blob, PackedBlob)
    assert not kept.take(MIB), "nothing was kept"
    first = stored(blob)
    blob.release()
    assert kept.take(3 * MIB)
    assert first == stored(blob) == good(data)[0] == good(data, Kept(0))[0]


def test_bytes_that_change_between_the_passes_are_a_failed_save_and_not_a_mixture() -> None:
    # In a chunk that shrinks, and in one that is stored as it is, and so as long as before.
    data = bytearray(rounded(2 * MIB) + os.urandom(MIB))
    blob = pack(len(data), lambda: blocks(data), [memoryview(data)[:MIB]], Kept(0), lambda: None)  # type: ignore[arg-type]
    assert isinstance(blob, PackedBlob)
    for position in (5 * MIB, 8 * MIB + 1):
        data[position] ^= 1
        with pytest.raises(SaveFailedError, match="changed while it was saved"):
            stored(blob)
        data[position] ^= 1
    assert len(stored(blob)) == blob.size_bytes


def test_packing_ends_when_it_is_not_wanted_any_more() -> None:
    kept = Kept(64 * MIB)
    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise SaveFailedError("stopped")

    data = rounded(2 * MIB)
    with pytest.raises(SaveFailedError, match="stopped"):
        pack(len(data), lambda: blocks(data), [memoryview(data)[:MIB]], kept, check)
    assert kept.take(64 * MIB)


def _with_chunk(frame: bytes, raw: bytes) -> tuple[bytes, Blob]:
    """A blob of one chunk that is stored as ``frame``."""
    table = digest(raw)
    packing = Packing("zstd", len(raw), blob_hash(len(raw), table))
    whole = encode_head(len(raw), 1, [len(frame)], table) + frame
    return whole, Blob(BlobId("b"), 0, len(whole), "", packing=str(packing))


RAW = rounded(MIB // 4)
# Its frames want less memory than a chunk, however long they are.
NARROW = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, window_log=18))
FRAME = zstandard.ZstdCompressor(level=1).compress(RAW)


@pytest.mark.parametrize(
    ("frame", "what"),
    [
        (FRAME[:-7], "does not inflate|cannot be inflated"),
        (b"no frame at all", "cannot be inflated"),
        (zstandard.ZstdCompressor().compress(bytes(MIB - 1)), "does not inflate to 1048576 bytes"),
        (NARROW.compress(RAW + b"more"), "does not inflate to 1048576 bytes"),
        (zstandard.ZstdCompressor().compress(bytes(1 << 30)), "does not inflate|cannot be inflated"),
        (zstandard.ZstdCompressor().compress(bytes(MIB)), "does not match its checksum"),
    ],
    ids=["cut off", "nonsense", "too short", "too long", "a bomb", "of something else"],
)
def test_a_frame_that_is_not_its_chunk_is_damage(frame: bytes, what: str) -> None:
    assert read(*_with_chunk(FRAME, RAW), 0, len(RAW))[0] == RAW
    with pytest.raises(CorruptDataError, match=f"blob b is damaged.*({what}).*restore another step"):
        read(*_with_chunk(frame, RAW), 0, len(RAW))


@pytest.mark.parametrize("at", [0, 8, 16, 20, 24], ids=["magic", "size", "stride", "length", "digest"])
def test_a_head_that_does_not_fit_the_record_is_damage(at: int) -> None:
    whole, blob = _with_chunk(FRAME, RAW)
    bad = bytearray(whole)
    bad[at] ^= 1
    with pytest.raises(CorruptDataError):
        read(bytes(bad), blob, 0, len(RAW))


def test_lengths_that_cannot_be_are_refused_before_anything_is_inflated() -> None:
    table = digest(RAW) * 2
    packing = Packing("zstd", 2 * MIB, blob_hash(2 * MIB, table))
    for lengths in ([0, 2 * MIB], [MIB + 1, 5]):
        head = encode_head(2 * MIB, 1, lengths, table)
        with pytest.raises(CorruptDataError, match="cannot be stored as"):
            decode_head(head, packing, len(head) + sum(lengths))
    head = encode_head(2 * MIB, 1, [5, 6], table)
    assert len(head) == head_bytes(2 * MIB)
    with pytest.raises(CorruptDataError, match="its chunks end at"):
        decode_head(head, packing, len(head) + 12)


def test_a_method_of_a_later_version_is_told_apart_from_damage() -> None:
    with pytest.raises(UnsupportedError, match="compressed with lz9"):
        HeadReading(Blob(BlobId("b"), 0, 1, "", packing="lz9:5:00"))


@pytest.mark.parametrize(
    "text", ["zstd", "zstd:", "zstd:5", "zstd:x:00", "zstd:0:00", ":5:00", "zstd:-5:00", "zstd:1" + 15 * "0" + ":00"]
)
def test_a_packing_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="how a blob is packed"):
        parse_packing(text)


def test_the_content_of_a_shard_is_the_same_whether_it_is_packed_or_not() -> None:
    _, blob = good(MIXED)
    plain = Blob(BlobId("a"), 0, len(MIXED), blob.raw_hash)
    assert content_of([plain]) == content_of([blob])
    assert content_of([plain]) != content_of([Blob(BlobId("a"), 0, blob.size_bytes, blob.hash)])


def test_progress_is_told_of_what_was_saved() -> None:
    told: list[int] = []
    tell = in_proportion(told.append, 7, 1000)
    for _ in range(7):
        tell(1)
    assert sum(told) == 1000
    assert max(told) - min(told) <= 1


def test_without_the_package_both_ways_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from sdrs.save.compression import resolve_compression

    whole, blob = good(MIXED)
    found = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    advice = re.escape("pip install 'sdrs[zstd]'")
    with pytest.raises(UnsupportedError, match=f"compress=zstd needs the package zstandard.*{advice}"):
        resolve_compression("zstd")
    with pytest.raises(UnsupportedError, match=f"reading a compressed checkpoint needs.*{advice}"):
        read(whole, blob, 0, blob.raw_bytes)


def test_the_environment_decides_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from sdrs.save.compression import resolve_compression

    monkeypatch.delenv("SDRS_COMPRESS", raising=False)
    assert resolve_compression(None) == ""
    assert resolve_compression("zstd") == "zstd"
    monkeypatch.setenv("SDRS_COMPRESS", "zstd")
    assert resolve_compression(None) == "zstd"
    assert resolve_compression("none") == ""
    monkeypatch.setenv("SDRS_COMPRESS", "gzip")
    with pytest.raises(InvalidArgumentError, match="SDRS_COMPRESS is 'gzip': choose one of zstd, none"):
        resolve_compression(None)


def test_numbers_are_taken_apart_only_where_that_spares_something() -> None:
    assert choose_stride(1000, [500, 480, 400, 450]) == 2
    assert choose_stride(1000, [500, 480, 471, 475]) == 0
    assert choose_stride(1000, [500, 500, 500, 470]) == 3


def test_samples_are_spread_over_all_of_it() -> None:
    assert sampled_chunks(1) == [0]
    assert sampled_chunks(3 * MIB) == [0, 1, 2]
    numbers = sampled_chunks(1000 * MIB)
    assert len(numbers) == 8
    assert {later - earlier for earlier, later in pairwise(numbers)} == {125}
