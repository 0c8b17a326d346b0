"""A folder becomes blobs, as a state does: a safetensors file of bytes for each large file, the small ones packed.

Kept are names, permission bits, times of change, links that stay within the folder, and empty folders. Hard links
become files of their own, holes are filled. Owners and extended attributes are not kept.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from sdrs.state.blobs import EncodedBlob, EncodedState, Source, StoredTensor, index_tensor, make_blob
from sdrs.state.container import FILES_TENSOR, to_json
from sdrs.state.files_index import PERMISSION_BITS, FileEntry, escapes, index_json
from sdrs.state.paths import TensorNames
from sdrs.state.plan import FIRST_PACK_BYTES, plan
from sdrs_core.errors import InvalidArgumentError, SaveFailedError, UnsupportedObjectError

READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file as it was when the folder was looked at; if it is another one when it is read, the save fails."""

    path: str
    size_bytes: int
    mtime_ns: int

    def segments(self) -> Iterator[memoryview]:
        try:
            # Neither a link nor a pipe that took the file's place may be followed or waited for.
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                self._check_unchanged(fd)
                yield from self._read(fd)
                self._check_unchanged(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise SaveFailedError(f"file {self.path!r} cannot be read ({error.strerror}): nothing was saved") from error

    def _read(self, fd: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(READ_BYTES, self.size_bytes)))
        left_bytes = self.size_bytes
        while left_bytes:
            count = os.readv(fd, [buffer[:left_bytes]])
            if not count:
                self._fail()
            left_bytes -= count
            yield buffer[:count]

    def _check_unchanged(self, fd: int) -> None:
        now = os.fstat(fd)
        if not stat.S_ISREG(now.st_mode) or (now.st_size, now.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            self._fail()

    def _fail(self) -> NoReturn:
        raise SaveFailedError(f"file {self.path!r} changed while it was saved: save it when nothing writes to it")


def encode_files(path: str | os.PathLike[str]) -> EncodedState:
    """Describe the folder at ``path`` as blobs; files are read, a MiB at a time, when the segments are."""
    top = os.fspath(path)
    if not os.path.isdir(top):
        raise InvalidArgumentError(f"{top!r} is not a folder: give the folder whose files are to be saved")
    return encode_entries(
        list(_scan(Path(top))),
        lambda entry: FileSource(os.path.join(top, *entry.parts), entry.size_bytes, entry.mtime_ns),
    )


@dataclass(frozen=True, slots=True)
class KeptBlob:
    """A blob of an earlier shard of files that is taken as it is: ``offsets`` says which files are found in it, and
    where in its data.
    """

    content: Source
    data_start: int
    offsets: Mapping[tuple[str, ...], int]


def encode_entries(
    entries: Sequence[FileEntry],
    source_of: Callable[[FileEntry], Source],
    kept: Sequence[KeptBlob] = (),
    first_pack_bytes: int = FIRST_PACK_BYTES,
) -> EncodedState:
    """The same for files from anywhere: each folder before what is in it, ``source_of`` gives a file's bytes.

    What is in a ``kept`` blob stays there: these follow the first blob, in order. ``first_pack_bytes``: of files that
    share a blob with the index.
    """
    found = {parts: (1 + number, offset) for number, blob in enumerate(kept) for parts, offset in blob.offsets.items()}
    placed = list(entries)
    files = []
    for position, entry in enumerate(placed):
        if entry.kind == "file" and entry.parts in found:
            blob, offset = found[entry.parts]
            placed[position] = replace(entry, blob=blob, offset=offset)
        elif entry.kind == "file":
            files.append(position)
    names = TensorNames()
    tensors = [_tensor(placed[position], names, source_of) for position in files]
    packs = plan([tensor.source.size_bytes for tensor in tensors], first_pack_bytes)
    for number, pack in enumerate(packs):
        offset = 0
        for member in pack:
            blob = number + len(kept) if number else 0
            placed[files[member]] = replace(placed[files[member]], blob=blob, offset=offset)
            offset += tensors[member].source.size_bytes
    others = [make_blob([tensors[member] for member in pack]) for pack in packs[1:]]
    layout = [(blob.data_start, blob.content.size_bytes) for blob in kept]
    layout += [(len(blob.header), blob.size_bytes) for blob in others]
    index = to_json(index_json(placed, layout))
    first = make_blob([*(tensors[member] for member in packs[0]), index_tensor(FILES_TENSOR, index)])
    return EncodedState((first, *(EncodedBlob(b"", (b.content,), b.content.size_bytes) for b in kept), *others))


def _tensor(entry: FileEntry, names: TensorNames, source_of: Callable[[FileEntry], Source]) -> StoredTensor:
    return StoredTensor(names.unique(entry.name), "U8", (entry.size_bytes,), 1, source_of(entry))


def _scan(top: Path) -> Iterator[FileEntry]:
    """Every name below ``top``, each folder before what is in it, in an order that depends on names alone."""
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parent = pending.pop()
        folder = top.joinpath(*parent)
        try:
            with os.scandir(folder) as listing:
                found = sorted(listing, key=lambda item: os.fsencode(item.name))
            for item in found:
                entry = _entry((*parent, item.name), item)
                if entry.kind == "dir":
                    pending.append(entry.parts)
                yield entry
        except OSError as error:
            raise SaveFailedError(f"folder {str(folder)!r} cannot be read ({error}): nothing was saved") from error


def _entry(parts: tuple[str, ...], item: os.DirEntry[str]) -> FileEntry:
    status = item.stat(follow_symlinks=False)
    mode = status.st_mode & PERMISSION_BITS
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(parts, "dir", mode, status.st_mtime_ns)
    if stat.S_ISREG(status.st_mode):
        return FileEntry(parts, "file", mode, status.st_mtime_ns, size_bytes=status.st_size)
    if not stat.S_ISLNK(status.st_mode):
        raise UnsupportedObjectError(
            f"{item.path!r} is a socket, pipe or device and cannot be stored; remove it or save another folder"
        )
    target = os.readlink(item.path)
    if escapes(parts, target):
        raise UnsupportedObjectError(
            f"the link {item.path!r} leads to {target!r}, which may be outside of the folder, and cannot be stored; "
            "put a copy in its place, or link to it by a relative path inside the folder"
        )
    return FileEntry(parts, "link", target=target)
