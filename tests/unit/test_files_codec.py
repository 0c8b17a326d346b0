"""A folder comes back as it was, and a hostile index writes nothing outside of its destination."""

from __future__ import annotations

import copy
import json
import os
import random
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs.state import EncodedState, FileRestorer, decode_files_index, decode_index, encode, encode_files
from sdrs.state.blobs import BytesSource, StoredTensor, index_tensor, make_blob
from sdrs.state.container import FILES_TENSOR, parse_header
from sdrs.state.files import READ_BYTES
from sdrs.state.files_restore import _Ranges
from sdrs.state.plan import BIG_BYTES
from sdrs_core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    RefusedError,
    SaveFailedError,
    UnsupportedObjectError,
)

MTIME_NS = 1_600_000_000_123_456_789


def blobs_of(encoded: EncodedState) -> list[bytes]:
    blobs = [b"".join(bytes(segment) for segment in blob.segments()) for blob in encoded.blobs]
    assert [len(blob) for blob in blobs] == [blob.size_bytes for blob in encoded.blobs]
    return blobs


def restore(blobs: list[bytes], dest: Path, piece_bytes: int = 1 << 20, seed: int | None = None) -> None:
    restorer = FileRestorer(decode_files_index(blobs[0]), dest)
    pieces = [(number, start) for number, blob in enumerate(blobs) for start in range(0, len(blob), piece_bytes)]
    if seed is not None:
        random.Random(seed).shuffle(pieces)
    for number, start in pieces:
        restorer.write(number, start, blobs[number][start : start + piece_bytes])
    restorer.finish()


def picture(top: Path) -> dict[bytes, Any]:
    """Everything about a folder that is to be kept."""
    found: dict[bytes, Any] = {}
    for folder, dirs, files in os.walk(os.fsencode(top)):
        for name in dirs + files:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            facts: tuple[Any, ...] = (stat.S_IFMT(status.st_mode),)
            if stat.S_ISLNK(status.st_mode):
                facts += (os.readlink(path),)
            else:
                facts += (stat.S_IMODE(status.st_mode), status.st_mtime_ns)
            if stat.S_ISREG(status.st_mode):
                facts += (Path(os.fsdecode(path)).read_bytes(),)
            found[os.path.relpath(path, os.fsencode(top))] = facts
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "empty dir").mkdir(mode=0o750)
    (top / "a.txt").write_bytes(b"hello")
    (top / "empty").touch()
    (top / "sub" / "ünï.bin").write_bytes(random.Random(1).randbytes(2 * READ_BYTES + 17))
    (top / "sub" / "deep" / "script").write_bytes(b"#!/bin/sh\n")
    (top / "sub" / "deep" / "script").chmod(0o755)
    (top / "big").write_bytes(random.Random(2).randbytes(BIG_BYTES + 5))
    (top / "secret").write_bytes(b"s")
    (top / "secret").chmod(0o400)
    (top / "link").symlink_to("sub/deep/script")
    (top / "sub" / "up").symlink_to("../a.txt")
    (top / "dangling").symlink_to("not there")
    (top / "sub" / "dirlink").symlink_to("deep")
    with open(os.fsencode(top) + b"/bad\xff\xfename", "wb") as file:
        file.write(b"odd")
    os.utime(top / "a.txt", ns=(MTIME_NS, MTIME_NS))
    os.utime(top / "sub", ns=(MTIME_NS, MTIME_NS))
    return top


@pytest.mark.parametrize(("piece_bytes", "seed"), [(1 << 20, None), (1 << 20, 1), (999_983, 2), (1 << 30, None)])
def test_a_folder_comes_back_as_it_was(source: Path, tmp_path: Path, piece_bytes: int, seed: int | None) -> None:
    blobs = blobs_of(encode_files(source))
    assert len(blobs) == 2
    dest = tmp_path / "new" / "dest"
    restore(blobs, dest, piece_bytes, seed)
    assert picture(dest) == picture(source)


def test_tiny_pieces_find_their_files(tmp_path: Path) -> None:
    top = tmp_path / "s"
    top.mkdir()
    for number in range(30):
        (top / f"{number}").write_bytes(bytes([number]) * (number % 4))
    restore(blobs_of(encode_files(top)), tmp_path / "d", 7, 5)
    assert picture(tmp_path / "d") == picture(top)


def test_an_empty_folder_comes_back(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    restore(blobs_of(encode_files(tmp_path / "s")), tmp_path / "d")
    assert picture(tmp_path / "d") == {}


def test_safetensors_opens_every_blob(source: Path) -> None:
    tensors: dict[str, Any] = {}
    for blob in blobs_of(encode_files(source)):
        tensors |= safetensors.torch.load(blob)
    assert bytes(tensors["a.txt"].numpy()) == b"hello"
    assert tensors["big"].numel() == BIG_BYTES + 5


def test_files_are_read_in_small_pieces(source: Path) -> None:
    sizes = [len(segment) for blob in encode_files(source).blobs for segment in blob.segments()]
    assert max(sizes) <= READ_BYTES


def test_the_same_folder_gives_the_same_bytes(source: Path) -> None:
    assert blobs_of(encode_files(source)) == blobs_of(encode_files(source))


def test_existing_files_of_the_same_name_are_replaced_and_others_stay(source: Path, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    (dest / "sub").mkdir(parents=True)
    (dest / "a.txt").write_bytes(b"old")
    (dest / "other").write_bytes(b"mine")
    (dest / "link").symlink_to("other")
    restore(blobs_of(encode_files(source)), dest)
    assert (dest / "other").read_bytes() == b"mine"
    assert (dest / "a.txt").read_bytes() == b"hello"
    assert set(picture(dest)) == {*picture(source), b"other"}


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "sub/../../x", "sub/../a.txt"])
def test_links_that_may_lead_out_are_refused_by_name(source: Path, target: str) -> None:
    (source / "evil").symlink_to(target)
    with pytest.raises(UnsupportedObjectError, match="evil"):
        encode_files(source)


def test_pipes_and_sockets_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").mkdir()
    os.mkfifo(tmp_path / "f" / "pipe")
    with pytest.raises(UnsupportedObjectError, match="pipe"):
        encode_files(tmp_path / "f")
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path / "s")  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(UnsupportedObjectError, match="s/socket"):
            encode_files(tmp_path / "s")


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(InvalidArgumentError, match="not a folder"):
            encode_files(path)


def _grow(path: Path) -> None:
    path.write_bytes(b"longer than before")


def _shrink(path: Path) -> None:
    path.write_bytes(b"h")


def _touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("big")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [_grow, _shrink, _touch, _link, _pipe, Path.unlink])
def test_a_file_that_changes_before_it_is_read_fails_the_save(source: Path, change: Any) -> None:
    encoded = encode_files(source)
    change(source / "a.txt")
    with pytest.raises(SaveFailedError, match=r"a\.txt"):
        blobs_of(encoded)


@pytest.mark.parametrize("change", [_grow, _shrink])
def test_a_file_that_changes_while_it_is_read_fails_the_save(tmp_path: Path, change: Any) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3 * READ_BYTES)
    segments = encode_files(tmp_path).blobs[0].segments()
    next(segments), next(segments)
    change(tmp_path / "f")
    with pytest.raises(SaveFailedError, match="changed while it was saved"):
        list(segments)


def test_a_destination_that_is_a_file_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    index = decode_files_index(blobs_of(encode_files(source))[0])
    with pytest.raises(InvalidArgumentError, match="not a folder"):
        FileRestorer(index, tmp_path / "file")


def test_nothing_appears_before_all_bytes_are_there(source: Path, tmp_path: Path) -> None:
    blobs = blobs_of(encode_files(source))
    restorer = FileRestorer(decode_files_index(blobs[0]), tmp_path / "d")
    restorer.write(0, 0, blobs[0])
    restorer.write(1, 0, blobs[1][:-1])
    with pytest.raises(RefusedError, match="big"):
        restorer.finish()
    assert [name.startswith(".sdrs-restore-") for name in os.listdir(tmp_path / "d")] == [True]
    restorer.abort()
    assert os.listdir(tmp_path / "d") == []


def test_bytes_outside_of_the_index_are_refused(source: Path, tmp_path: Path) -> None:
    blobs = blobs_of(encode_files(source))
    restorer = FileRestorer(decode_files_index(blobs[0]), tmp_path / "d")
    for blob, offset in ((2, 0), (-1, 0), (1, -1), (1, len(blobs[1]))):
        with pytest.raises(InvalidArgumentError):
            restorer.write(blob, offset, b"x")
    restorer.abort()


def test_links_that_are_in_the_way_are_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(RefusedError, match="sub"):
        restore(blobs_of(encode_files(source)), tmp_path / "d")
    assert os.listdir(tmp_path / "outside") == []


def test_a_folder_in_the_place_of_a_file_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "d" / "a.txt").mkdir(parents=True)
    with pytest.raises(RefusedError, match=r"a\.txt"):
        restore(blobs_of(encode_files(source)), tmp_path / "d")


def test_states_and_files_are_told_apart(tmp_path: Path) -> None:
    (files,) = blobs_of(encode_files(tmp_path))
    (state,) = blobs_of(encode({}))
    with pytest.raises(InvalidArgumentError, match="restore_files"):
        decode_index(files)
    with pytest.raises(InvalidArgumentError, match="use restore"):
        decode_files_index(state)


def blob_with(index: Any, data: bytes = b"0123456789") -> bytes:
    tensors = [
        StoredTensor("data", "U8", (len(data),), 1, BytesSource(data)),
        index_tensor(FILES_TENSOR, json.dumps(index).encode()),
    ]
    return b"".join(bytes(segment) for segment in make_blob(tensors).segments())


def file(name: Any, **changes: Any) -> dict[str, Any]:
    return {"name": name, "type": "file", "mode": 0o644, "mtime_ns": 0, "blob": 0, "offset": 0, "size": 3} | changes


def folder(name: Any) -> dict[str, Any]:
    return {"name": name, "type": "dir", "mode": 0o755, "mtime_ns": 0}


def link(name: Any, target: Any) -> dict[str, Any]:
    return {"name": name, "type": "link", "target": target}


HOSTILE = {
    "up": [file("../x")],
    "up inside": [folder("a"), file("a/../../x")],
    "absolute": [file("/tmp/x")],
    "dot": [file(".")],
    "empty": [file("")],
    "nul": [file("a\0b")],
    "slash at the end": [file("a/")],
    "base64 up": [file({"base64": "Li4veA=="})],
    "bad base64": [file({"base64": "!"})],
    "name of another type": [file(3)],
    "long": [file("a" * 5000)],
    "no parent": [file("a/b")],
    "parent after child": [file("a/b"), folder("a")],
    "through a link": [folder("a"), link("l", "a"), file("l/x")],
    "through a file": [file("f"), file("f/x")],
    "twice": [link("x", "y"), file("x")],
    "absolute link": [link("l", "/etc")],
    "link up": [link("l", "..")],
    "link up later": [folder("a"), folder("a/b"), link("a/b/l", "k/../../../x")],
    "link over a link": [folder("a"), link("a/k", ".."), link("a/m", "k/../x")],
    "empty link": [link("l", "")],
    "setuid": [file("f", mode=0o4755)],
    "negative mode": [file("f", mode=-1)],
    "boolean size": [file("f", size=True)],
    "blob out of range": [file("f", blob=1)],
    "size out of range": [file("f", size=10**18)],
    "negative offset": [file("f", offset=-1)],
    "overlap": [file("f"), file("g", offset=2)],
    "time": [file("f", mtime_ns=10**30)],
    "type": [file("f", type="fifo")],
    "no object": ["f"],
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_index_is_refused(entries: list[Any]) -> None:
    decode_files_index(blob_with({"version": 1, "blobs": [], "entries": [folder("fine"), file("fine/f")]}))
    with pytest.raises(CorruptDataError):
        decode_files_index(blob_with({"version": 1, "blobs": [], "entries": entries}))


@pytest.mark.parametrize("blobs", [None, [1], [[1]], [[5, 3]], [[-1, 3]], [["a", 3]], [[1, True]]], ids=repr)
def test_malformed_layouts_are_refused(blobs: Any) -> None:
    with pytest.raises(CorruptDataError):
        decode_files_index(blob_with({"version": 1, "blobs": blobs, "entries": []}))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_a_mutated_index_is_corrupt_or_files(seed: int) -> None:
    rng = random.Random(seed)
    index: dict[str, Any] = {
        "version": 1,
        "blobs": [[64, 100]],
        "entries": [folder("a"), file("a/b"), link("a/l", "b"), file({"base64": "/w=="}, offset=4), file("c", blob=1)],
    }
    decode_files_index(blob_with(index))
    index = copy.deepcopy(index)
    junk = [
        None,
        True,
        -1,
        0,
        10**30,
        1.5,
        "",
        "..",
        "/",
        "\ud800",
        [],
        {},
        {"base64": 1},
        {"base64": "Lw=="},
        [[]],
        "a/b",
    ]
    for _ in range(rng.randint(1, 3)):
        holder: Any = rng.choice([index, index.get("entries"), *(index.get("entries") or [])])
        if isinstance(holder, dict | list) and holder:
            step = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            holder[step] = copy.deepcopy(rng.choice(junk))
        if not isinstance(index.get("entries"), list):
            break
    with suppress(CorruptDataError):
        decode_files_index(blob_with(index))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10))), st.integers(0, 30), st.integers(1, 10))
def test_ranges_know_what_is_there(writes: list[tuple[int, int]], start: int, size: int) -> None:
    ranges, there = _Ranges(), set()
    for first, count in writes:
        ranges.add(first, first + count)
        there |= set(range(first, first + count))
    assert ranges.covers(start, start + size) == (set(range(start, start + size)) <= there)


def test_the_index_is_the_last_tensor_of_the_first_blob(source: Path) -> None:
    blob = blobs_of(encode_files(source))[0]
    assert parse_header(blob, "blob")[FILES_TENSOR].end == len(blob)
