"""What a shard of files says of its folder: names, kinds, modes, times, and where each file's bytes are.

Every name and link of an index is checked here, once: they come from a blob, and a restore makes paths of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sdrs.state.container import FILES_TENSOR, VERSION, Buffer, Json, is_count, read_index
from sdrs.state.values import from_base64, to_base64
from sdrs_core.errors import CorruptDataError

Kind = Literal["dir", "file", "link"]
PERMISSION_BITS = 0o777
MAX_PATH_BYTES = 4096
_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One name of the folder, ``parts`` from its top.

    ``blob``, ``offset`` (from the start of the blob's data) and ``size_bytes`` are a file's, ``target`` is a link's.
    """

    parts: tuple[str, ...]
    kind: Kind
    mode: int = 0
    mtime_ns: int = 0
    blob: int = 0
    offset: int = 0
    size_bytes: int = 0
    target: str = ""

    @property
    def name(self) -> str:
        return "/".join(self.parts)

    def to_json(self) -> dict[str, Json]:
        record: dict[str, Json] = {"name": _encode_name(self.name), "type": self.kind}
        if self.kind == "link":
            return {**record, "target": _encode_name(self.target)}
        record |= {"mode": self.mode, "mtime_ns": self.mtime_ns}
        if self.kind == "file":
            record |= {"blob": self.blob, "offset": self.offset, "size": self.size_bytes}
        return record


@dataclass(frozen=True, slots=True)
class FilesIndex:
    """``data_starts`` and ``sizes_bytes`` are per blob; the size of blob 0 is what was given to decode."""

    entries: tuple[FileEntry, ...]
    data_starts: tuple[int, ...]
    sizes_bytes: tuple[int, ...]

    @property
    def blob_count(self) -> int:
        return len(self.sizes_bytes)


def index_json(entries: Sequence[FileEntry], layout: Sequence[tuple[int, int]]) -> Json:
    """``layout`` has data start and size of each blob but the first, whose own depend on this index."""
    return {"version": VERSION, "blobs": [list(pair) for pair in layout], "entries": [e.to_json() for e in entries]}


def decode_files_index(blob0: Buffer) -> FilesIndex:
    """Read and check the index of a shard of files from the whole of its first blob."""
    index, data_start = read_index(blob0, FILES_TENSOR)
    return files_index(index, data_start, len(memoryview(blob0)))


def files_index(index: dict[str, Json], data_start: int, blob0_bytes: int) -> FilesIndex:
    """Check what is read under the name FILES_TENSOR."""
    layout, records = index.get("blobs"), index.get("entries")
    if not isinstance(layout, list) or not isinstance(records, list):
        raise CorruptDataError("the index of these files is malformed: restore another step")
    starts, sizes = [data_start], [blob0_bytes]
    for pair in layout:
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(is_count, pair)) or pair[0] > pair[1]:
            raise CorruptDataError("the index of these files has a malformed blob: restore another step")
        starts.append(pair[0])
        sizes.append(pair[1])
    rooms = [size - start for start, size in zip(starts, sizes, strict=True)]
    entries = tuple(_entry(record, rooms) for record in records)
    _check_tree(entries)
    _check_disjoint(entries)
    return FilesIndex(entries, tuple(starts), tuple(sizes))


def escapes(parts: tuple[str, ...], target: str) -> bool:
    """Whether a link at ``parts`` could lead out of the folder.

    Steps up are allowed at the start alone: further on they might leave from a place that another link leads to, which
    cannot be seen in the text.
    """
    steps = target.split("/")
    ups = 0
    while ups < len(steps) and steps[ups] == "..":
        ups += 1
    return target.startswith("/") or not target or ".." in steps[ups:] or ups > len(parts) - 1


def _entry(record: Json, rooms: Sequence[int]) -> FileEntry:
    if not isinstance(record, dict):
        raise CorruptDataError("an entry of the index of these files is malformed: restore another step")
    parts = _parts(_decode_name(record.get("name")))
    kind = record.get("type")
    if kind == "link":
        target = _decode_name(record.get("target"))
        if escapes(parts, target):
            raise CorruptDataError(f"the link {'/'.join(parts)!r} leads out of its folder ({target!r}): refused")
        return FileEntry(parts, "link", target=target)
    mode, mtime_ns = record.get("mode"), record.get("mtime_ns")
    if kind not in ("dir", "file") or not is_count(mode) or mode & ~PERMISSION_BITS:
        raise CorruptDataError(f"{'/'.join(parts)!r} in the index has no valid type or mode: restore another step")
    if type(mtime_ns) is not int or abs(mtime_ns) > _MAX_INT64:
        raise CorruptDataError(f"{'/'.join(parts)!r} in the index has no valid time: restore another step")
    if kind == "dir":
        return FileEntry(parts, "dir", mode, mtime_ns)
    blob, offset, size = record.get("blob"), record.get("offset"), record.get("size")
    if not is_count(blob) or not is_count(offset) or not is_count(size):
        raise CorruptDataError(f"{'/'.join(parts)!r} in the index has no place: restore another step")
    if blob >= len(rooms) or offset + size > rooms[blob]:
        raise CorruptDataError(f"{'/'.join(parts)!r} in the index lies outside of its blob: restore another step")
    return FileEntry(parts, "file", mode, mtime_ns, blob, offset, size)


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(name.split("/"))
    # An absolute name has an empty first part.
    if any(part in ("", ".", "..") for part in parts):
        raise CorruptDataError(f"the name {name[:80]!r} in the index leads out of its folder: refused")
    return parts


def _check_tree(entries: Sequence[FileEntry]) -> None:
    """Each name once, and after the folder that it is in: so nothing is ever made through a link or a file."""
    dirs: set[tuple[str, ...]] = {()}
    seen: set[tuple[str, ...]] = set()
    for entry in entries:
        if entry.parts in seen or entry.parts[:-1] not in dirs:
            raise CorruptDataError(f"{entry.name[:80]!r} in the index is there twice or in no folder: refused")
        seen.add(entry.parts)
        if entry.kind == "dir":
            dirs.add(entry.parts)


def _check_disjoint(entries: Sequence[FileEntry]) -> None:
    """No byte belongs to two files: they can be found by bisection, and no index is larger than its data."""
    ends: dict[int, int] = {}
    for entry in sorted((entry for entry in entries if entry.size_bytes), key=lambda entry: (entry.blob, entry.offset)):
        if entry.offset < ends.get(entry.blob, 0):
            raise CorruptDataError(f"{entry.name[:80]!r} in the index overlaps another file: restore another step")
        ends[entry.blob] = entry.offset + entry.size_bytes


def _encode_name(name: str) -> Json:
    raw = os.fsencode(name)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": to_base64(raw)}


def _decode_name(value: Json) -> str:
    try:
        raw = value.encode() if isinstance(value, str) else from_base64(value["base64"])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDataError("a name in the index of these files is malformed: restore another step") from error
    if not raw or len(raw) > MAX_PATH_BYTES or b"\0" in raw:
        raise CorruptDataError("a name in the index of these files is empty, too long or has a zero: refused")
    return os.fsdecode(raw)
