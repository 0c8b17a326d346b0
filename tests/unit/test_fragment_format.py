"""The fragment file format by itself: what is written is what is read, and no single byte can change unseen."""

from __future__ import annotations

import os
import struct
from dataclasses import asdict
from pathlib import Path

import pytest

from sdrs_core import checksums
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, UnsupportedError
from sdrs_core.ids import ClusterId, DiskId, JobName, NodeId
from sdrs_storaged.store.fragment import (
    PAGE_BYTES,
    PAYLOAD_OFFSET,
    FragmentMeta,
    decode_header,
    encode_coded_footer,
    encode_footer,
    encode_header,
    file_bytes,
    read_contents,
)
from tests.support.stores import hash_of, origin, payload, table_of


def meta(**changes: object) -> FragmentMeta:
    fields = asdict(origin("ab" * 16)) | {
        "cluster_id": ClusterId("c" * 32),
        "node_id": NodeId("node-1"),
        "disk_id": DiskId("d" * 32),
        "created_unix_seconds": 1_700_000_000.25,
    }
    return FragmentMeta(**(fields | changes))


def whole(data: bytes, header: bytes | None = None) -> bytes:
    header = header or encode_header(meta())
    return header + data + encode_footer(header, len(data), table_of(data))


def read(tmp_path: Path, content: bytes) -> object:
    path = tmp_path / "fragment"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_contents(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, checksums.BLOCK_BYTES, checksums.BLOCK_BYTES + 1])
def test_a_file_tells_what_it_is(tmp_path: Path, size: int) -> None:
    data = payload(size)
    content = whole(data)
    contents = read(tmp_path, content)
    assert contents.meta == meta()  # type: ignore[attr-defined]
    assert (contents.size_bytes, contents.fragment_hash, contents.table) == (size, hash_of(data), table_of(data))  # type: ignore[attr-defined]
    assert len(content) == file_bytes(size)
    assert content[PAYLOAD_OFFSET : PAYLOAD_OFFSET + size] == data


def test_the_header_is_one_page_so_that_the_payload_is_aligned() -> None:
    assert len(encode_header(meta(job=JobName("j" * 128)))) == PAGE_BYTES == PAYLOAD_OFFSET


def test_a_meta_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="fit"):
        encode_header(meta(code="x" * 5000))


def test_every_flipped_byte_outside_the_payload_is_detected(tmp_path: Path) -> None:
    data = payload(100)
    content = whole(data)
    outside = [n for n in range(len(content)) if not PAYLOAD_OFFSET <= n < PAYLOAD_OFFSET + len(data)]
    for position in outside[:200] + outside[200:PAGE_BYTES:97] + outside[-90:]:
        damaged = bytearray(content)
        damaged[position] ^= 0x01
        with pytest.raises(CorruptDataError):
            read(tmp_path, bytes(damaged))


@pytest.mark.parametrize("kept", [0, 10, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 50, -1])
def test_a_truncated_file_is_detected(tmp_path: Path, kept: int) -> None:
    with pytest.raises(CorruptDataError):
        read(tmp_path, whole(payload(100))[:kept])


def test_bytes_added_at_the_end_or_within_are_detected(tmp_path: Path) -> None:
    content = whole(payload(100))
    for damaged in (content + b"\0", content[:PAYLOAD_OFFSET] + b"\0" + content[PAYLOAD_OFFSET:]):
        with pytest.raises(CorruptDataError):
            read(tmp_path, damaged)


def test_a_header_with_the_rest_of_another_file_is_detected(tmp_path: Path) -> None:
    other = whole(payload(100, seed=1), encode_header(meta(blob_id="cd" * 16)))
    with pytest.raises(CorruptDataError, match="footer does not match"):
        read(tmp_path, encode_header(meta()) + other[PAGE_BYTES:])


def test_a_newer_format_is_not_taken_for_damage() -> None:
    page = bytearray(encode_header(meta())[: -checksums.DIGEST_BYTES])
    struct.pack_into("<I", page, 8, 3)
    with pytest.raises(UnsupportedError, match="version 3"):
        decode_header(bytes(page) + checksums.digest(page))


# Fragments of a code: two tables

BLOB = payload(5 * checksums.BLOCK_BYTES + 100)


def coded_meta(index: int, **changes: object) -> FragmentMeta:
    return meta(**({"code": "2+1", "fragment_index": index, "source_size_bytes": len(BLOB)} | changes))


def plain_fragment(index: int) -> bytes:
    blocks = [BLOB[start : start + checksums.BLOCK_BYTES] for start in range(0, len(BLOB), checksums.BLOCK_BYTES)]
    return b"".join(blocks[index::2])


def coded(index: int, data: bytes, source: bytes = BLOB, **changes: object) -> bytes:
    header = encode_header(coded_meta(index, **changes))
    footer = encode_coded_footer(header, len(data), table_of(data), len(source), table_of(source))
    return header + data + footer


def test_a_fragment_of_a_code_tells_its_own_hash_and_that_of_its_blob(tmp_path: Path) -> None:
    data = plain_fragment(1)
    contents = read(tmp_path, coded(1, data))
    assert contents.meta == coded_meta(1)  # type: ignore[attr-defined]
    assert (contents.size_bytes, contents.fragment_hash) == (len(data), hash_of(data))  # type: ignore[attr-defined]
    assert (contents.source_size_bytes, contents.source_hash) == (len(BLOB), hash_of(BLOB))  # type: ignore[attr-defined]
    assert contents.source_table == table_of(BLOB)  # type: ignore[attr-defined]
    assert len(coded(1, data)) == file_bytes(len(data), len(BLOB))


def test_every_flipped_byte_of_both_tables_is_detected(tmp_path: Path) -> None:
    content = coded(0, plain_fragment(0))
    start = PAYLOAD_OFFSET + len(plain_fragment(0))
    for position in [*range(100), *range(start, len(content))]:
        damaged = bytearray(content)
        damaged[position] ^= 0x80
        with pytest.raises(CorruptDataError):
            read(tmp_path, bytes(damaged))


def test_plain_blocks_whose_checksums_are_not_their_sources_are_refused(tmp_path: Path) -> None:
    """P9: what was flipped before it was cut has good checksums of its own."""
    data = bytearray(plain_fragment(0))
    data[5] ^= 1
    with pytest.raises(CorruptDataError, match="not those of the source"):
        read(tmp_path, coded(0, bytes(data)))


def test_a_fragment_of_the_wrong_size_or_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match="does not have"):
        read(tmp_path, coded(0, plain_fragment(0)[:-1]))
    with pytest.raises(CorruptDataError, match="no fragment 3"):
        read(tmp_path, coded(3, plain_fragment(0)))
    with pytest.raises(CorruptDataError, match="different sizes"):
        read(tmp_path, coded(0, plain_fragment(0), source=BLOB[:-1]))
