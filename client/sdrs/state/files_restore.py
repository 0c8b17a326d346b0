"""Blobs become a folder again, as their bytes arrive.

1. ``FileRestorer(index, dest)`` makes ``dest`` if it is missing, and a staging folder inside it;
2. ``write(blob, offset, data)`` takes the bytes of all blobs in any order, any piece more than once;
3. ``finish()`` moves every file into place atomically, or ``abort()`` removes the staging folder.

Files of the same names are replaced, everything else in ``dest`` stays. Nothing is written outside of it: the index was
checked for names and links that lead out, and here no link inside ``dest`` is followed either. After a kill the staging
folder (``.sdrs-restore-...``) may be left, and can be removed.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

from sdrs.state.container import Buffer
from sdrs.state.files_index import FileEntry, FilesIndex
from sdrs_core.errors import InvalidArgumentError, RefusedError
from sdrs_core.ids import random_id

_OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileRestorer:
    """Not for several threads at once."""

    def __init__(self, index: FilesIndex, dest: str | os.PathLike[str]) -> None:
        self._index = index
        self._dest = os.fspath(dest)
        if os.path.lexists(self._dest) and not os.path.isdir(self._dest):
            raise InvalidArgumentError(f"{self._dest!r} exists and is not a folder: give another destination")
        os.makedirs(self._dest, exist_ok=True)
        self._staging = os.path.join(self._dest, f".sdrs-restore-{random_id()}")
        os.mkdir(self._staging, 0o700)
        self._written = [_Ranges() for _ in index.sizes_bytes]
        # Per blob the files in the order of their bytes, and where each ends in the blob, to find them by bisection.
        self._files: list[list[tuple[int, FileEntry]]] = [[] for _ in index.sizes_bytes]
        for number, entry in enumerate(index.entries):
            if entry.kind == "file" and entry.size_bytes:
                self._files[entry.blob].append((number, entry))
        for files in self._files:
            files.sort(key=lambda pair: pair[1].offset)
        self._ends = [[self._start(entry) + entry.size_bytes for _, entry in files] for files in self._files]

    def write(self, blob_index: int, offset: int, data: Buffer) -> None:
        """Take verified bytes of a blob, from ``offset`` on; what belongs to no file (header, index) is skipped."""
        view = memoryview(data)
        end = offset + len(view)
        sizes = self._index.sizes_bytes
        if not 0 <= blob_index < len(sizes) or not 0 <= offset <= end <= sizes[blob_index]:
            raise InvalidArgumentError(f"these files have no bytes {offset} to {end} of blob {blob_index}")
        files = self._files[blob_index]
        for position in range(bisect_right(self._ends[blob_index], offset), len(files)):
            number, entry = files[position]
            start = self._start(entry)
            if start >= end:
                break
            first, last = max(start, offset), min(start + entry.size_bytes, end)
            self._write_file(number, first - start, view[first - offset : last - offset])
        self._written[blob_index].add(offset, end)

    def finish(self) -> None:
        """Move everything into place, durably. RefusedError, with nothing moved, if bytes are missing."""
        for number, (files, written) in enumerate(zip(self._files, self._written, strict=True)):
            for _, entry in files:
                if not written.covers(self._start(entry), self._start(entry) + entry.size_bytes):
                    raise RefusedError(f"blob {number} of {entry.name!r} was not read to its end: restore again")
        for number, entry in enumerate(self._index.entries):
            if entry.kind == "file":
                self._complete(number, entry)
        for number, entry in enumerate(self._index.entries):
            self._place(number, entry)
        for entry in reversed(self._index.entries):  # what is inside a folder changes its time, and may need its mode
            if entry.kind == "dir":
                self._finish_dir(entry)
        os.rmdir(self._staging)
        with self._open_dir(()) as dest:
            os.fsync(dest)

    def abort(self) -> None:
        """Remove what was staged; files that finish() moved into place stay."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def _start(self, entry: FileEntry) -> int:
        return self._index.data_starts[entry.blob] + entry.offset

    def _staged(self, number: int) -> str:
        return os.path.join(self._staging, str(number))

    def _write_file(self, number: int, position: int, data: memoryview) -> None:
        # Opened for each piece: a pack may hold more files than a process may open.
        fd = os.open(self._staged(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                count = os.pwrite(fd, data, position)
                position, data = position + count, data[count:]
        finally:
            os.close(fd)

    def _complete(self, number: int, entry: FileEntry) -> None:
        fd = os.open(self._staged(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
            os.fchmod(fd, entry.mode)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _place(self, number: int, entry: FileEntry) -> None:
        name = entry.parts[-1]
        with self._open_dir(entry.parts[:-1]) as parent:
            try:
                if entry.kind == "dir":
                    self._make_dir(name, parent)
                    return
                if entry.kind == "link":
                    os.symlink(entry.target, self._staged(number))
                os.rename(self._staged(number), name, dst_dir_fd=parent)
            except OSError as error:
                raise RefusedError(
                    f"{entry.name!r} cannot be put into {self._dest!r} ({error.strerror}): move away what is there"
                ) from error

    @staticmethod
    def _make_dir(name: str, parent: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            os.close(os.open(name, _OPEN_DIR, dir_fd=parent))  # fails unless it is a folder, and no link to one

    def _finish_dir(self, entry: FileEntry) -> None:
        with self._open_dir(entry.parts) as folder:
            os.fchmod(folder, entry.mode)
            os.utime(folder, ns=(entry.mtime_ns, entry.mtime_ns))
            os.fsync(folder)

    @contextmanager
    def _open_dir(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A folder below ``dest``, step by step, so that a link that is in the way is an error and not followed."""
        fd = os.open(self._dest, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                above = fd
                fd = os.open(part, _OPEN_DIR, dir_fd=above)
                os.close(above)
            yield fd
        finally:
            os.close(fd)


class _Ranges:
    """The bytes that are there, as disjoint ranges; one range while they arrive in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def covers(self, start: int, end: int) -> bool:
        position = bisect_right(self._starts, start) - 1
        return position >= 0 and self._ends[position] >= end
