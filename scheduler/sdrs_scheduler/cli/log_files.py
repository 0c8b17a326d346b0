"""Logs of a run, read where they lie: NODE.log, and NODE.log.1, NODE.log.2 ... which are older."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_BLOCK_BYTES = 64 << 10
# Longer ones are told in pieces.
_MOST_LINE_BYTES = 1 << 20
_MOST_ASIDE = 1000
_EVERYTHING = 1 << 62


def parts(path: Path) -> list[Path]:
    """The files that there are of one log, the oldest first."""
    aside = []
    for number in range(1, _MOST_ASIDE):
        older = path.with_name(f"{path.name}.{number}")
        if not older.exists():
            break
        aside.append(older)
    return [*reversed(aside), *([path] if path.exists() else [])]


def lines(path: Path, end: int | None = None) -> Iterator[str]:
    """All that is left of a log, of its newest file up to ``end``."""
    for part in parts(path):
        with open(part, "rb") as file:
            left = end if end is not None and part == path else _EVERYTHING
            while left > 0 and (line := file.readline(min(left, _MOST_LINE_BYTES))):
                left -= len(line)
                yield _text(line)


def last_lines(path: Path, count: int, end: int | None = None) -> list[str]:
    """Read from the end, so that a long log costs no more than what is shown of it."""
    found: list[bytes] = []
    for part in reversed(parts(path)):
        found = [*_last_lines_of(part, count - len(found), end if part == path else None), *found]
        if len(found) >= count:
            break
    return [_text(line) for line in found]


def _last_lines_of(part: Path, count: int, end: int | None) -> list[bytes]:
    if count <= 0:
        return []
    with open(part, "rb") as file:
        start = file.seek(0, os.SEEK_END) if end is None else end
        tail = b""
        # One more line break than lines: the first of them may be cut.
        while start and tail.count(b"\n") <= count:
            step = min(_BLOCK_BYTES, start)
            start -= step
            file.seek(start)
            tail = file.read(step) + tail
    return tail.splitlines(keepends=True)[-count:]


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\n")


class Follower:
    """What is new in a log each time it is asked, also after it was set aside and begun anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""
        # How far the newest file had come, in whole lines, when it was first seen: from there on lines are new.
        self.seen_bytes = 0
        self._open()
        if self._file is not None:
            size = self._file.seek(0, os.SEEK_END)
            start = self._file.seek(max(0, size - _BLOCK_BYTES))
            self.seen_bytes = self._file.seek(start + self._file.read(size - start).rfind(b"\n") + 1)

    def _open(self) -> None:
        try:
            self._file = open(self._path, "rb")  # noqa: SIM115 - closed by close(), or when it is set aside
        except FileNotFoundError:
            self._file = None

    def new_lines(self) -> list[str]:
        found = self._read()
        if self._file is None or self._was_set_aside():
            self.close()
            self._open()
            found += self._read()
        whole, separator, self._rest = (self._rest + found).rpartition(b"\n")
        if len(self._rest) > _MOST_LINE_BYTES:
            whole, separator, self._rest = self._rest, b"\n", b""
        return [_text(line) for line in whole.split(b"\n")] if separator else []

    def remainder(self) -> list[str]:
        """The last line, which has no end."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []

    def _read(self) -> bytes:
        return self._file.read() if self._file is not None else b""

    def _was_set_aside(self) -> bool:
        assert self._file is not None
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
