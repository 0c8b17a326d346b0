"""Where the bytes of a file come from: each can be produced again for every try of a save."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from sdrs.state.blobs import Source

# What is written stays in memory up to here, and goes to a temporary file beyond.
SPOOL_BYTES = 8 << 20
READ_BYTES = 1 << 20


class Spool:
    """What was written to one file: filled once, then read, perhaps by several threads."""

    def __init__(self) -> None:
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        if self._file is None and self.size_bytes + len(data) > SPOOL_BYTES:
            self._file = tempfile.TemporaryFile(prefix="sdrs-")  # noqa: SIM115 - closed by close()
            self._file.write(self._memory)
            self._memory = bytearray()
        if self._file is None:
            self._memory += data
        else:
            self._file.write(data)
        self.size_bytes += len(data)

    def segments(self) -> Iterator[memoryview]:
        if self._file is None:
            yield memoryview(self._memory)
            return
        self._file.flush()
        buffer = memoryview(bytearray(READ_BYTES))
        position = 0
        # By position: a copy of the file in the same generation is read by another thread at the same time.
        while count := os.preadv(self._file.fileno(), [buffer], position):
            yield buffer[:count]
            position += count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@dataclass(frozen=True, slots=True)
class Joined:
    """One after the other: a file, and what was appended to it."""

    first: Source
    second: Source

    @property
    def size_bytes(self) -> int:
        return self.first.size_bytes + self.second.size_bytes

    def segments(self) -> Iterator[memoryview]:
        yield from self.first.segments()
        yield from self.second.segments()
