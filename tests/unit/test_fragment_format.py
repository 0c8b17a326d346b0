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
    assert (contents.size_bytes, contents.blob_hash, contents.table) == (size, hash_of(data), table_of(data))  # type: ignore[attr-defined]
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
    struct.pack_into("<I", page, 8, 2)
    with pytest.raises(UnsupportedError, match="version 2"):
        decode_header(bytes(page) + checksums.digest(page))
