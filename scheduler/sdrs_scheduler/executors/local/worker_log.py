"""The log of one node's processes: a file that is set aside when it is full, and the oldest is dropped."""

from __future__ import annotations

import itertools
import os
from pathlib import Path


class WorkerLog:
    """A disk that takes no more costs lines of the log, and never stops the run."""

    def __init__(self, path: Path, max_bytes: int, max_files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self.lost_bytes = 0
        self._file: int | None = None
        self._size = 0
        self._open()

    def write(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._max_bytes:
            self._set_aside()
        if self._file is None:
            self._open()
        try:
            if self._file is None:
                raise OSError("the log cannot be opened")
            written = os.write(self._file, data)
        except OSError:
            written = 0
        self._size += written
        self.lost_bytes += len(data) - written

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        try:
            # Appending: the executor may add a line of its own, and a rotated file is never written over.
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._size = os.fstat(self._file).st_size
        except OSError:
            self._file = None

    def _set_aside(self) -> None:
        self.close()
        try:
            for number in range(self._max_files - 1, 0, -1):
                older = aside(self._path, number)
                newer = aside(self._path, number - 1)
                if newer.exists():
                    os.replace(newer, older)
            if self._max_files == 1:
                self._path.unlink(missing_ok=True)
        except OSError:
            # It grows beyond its limit then, which is better than to lose what is in it.
            pass
        self._open()


def aside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def read_tail(path: Path, max_bytes: int) -> bytes:
    """The last bytes of a log, also from the files that were set aside."""
    parts: list[bytes] = []
    for number in itertools.count():
        if max_bytes <= 0:
            break
        try:
            with aside(path, number).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - max_bytes))
                parts.append(file.read(max_bytes))
        except FileNotFoundError:
            if number:
                break
            # It was set aside a moment ago.
            continue
        max_bytes -= len(parts[-1])
    return b"".join(reversed(parts))
