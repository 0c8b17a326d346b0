"""What is made of a shard's verified bytes: a state in memory, or files in a folder.

A reading is finished only when every rank has verified its bytes (P16), or aborted, which leaves nothing behind.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Protocol

from sdrs.memory import allocate, round_up
from sdrs.restore.shard_reader import ShardReader
from sdrs.state import FileRestorer, decode_files_index, decode_index, rebuild
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES


class Reading(Protocol):
    def finish(self) -> Any: ...

    def abort(self) -> None: ...


class StateReading:
    def __init__(self, state: Any) -> None:
        self._state = state

    def finish(self) -> Any:
        return self._state

    def abort(self) -> None:
        pass


def read_state(reader: ShardReader) -> Reading:
    """Each blob is read to where it stays: arrays become views of that memory."""
    blobs = reader.shard.blobs
    target = MemoryTarget(blobs)
    reader.read(blobs, target)
    buffers = [target.buffer(blob) for blob in blobs]
    return StateReading(rebuild(decode_index(buffers[0]), buffers))


class FilesReading:
    def __init__(self, restorer: FileRestorer) -> None:
        self._restorer = restorer

    def finish(self) -> None:
        try:
            self._restorer.finish()
        except BaseException:
            self._restorer.abort()
            raise

    def abort(self) -> None:
        self._restorer.abort()


def read_files(reader: ShardReader, dest: str | os.PathLike[str]) -> Reading:
    """The first blob has the index; the others go from a few buffers into files, whatever their size."""
    first, *others = reader.shard.blobs
    memory = MemoryTarget([first])
    reader.read([first], memory)
    index = decode_files_index(memory.buffer(first))
    restorer = FileRestorer(index, dest)
    try:
        restorer.write(0, 0, memory.buffer(first))
        reader.read(others, FileTarget(restorer))
    except BaseException:
        restorer.abort()
        raise
    return FilesReading(restorer)


class MemoryTarget:
    def __init__(self, blobs: list[Blob] | tuple[Blob, ...]) -> None:
        self._memory = {blob.id: allocate(blob.size_bytes) for blob in blobs}

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        return self._memory[blob.id][start : round_up(end)]

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        pass

    def buffer(self, blob: Blob) -> memoryview:
        return self._memory[blob.id][: blob.size_bytes]


class FileTarget:
    """A buffer for each reading thread; writing is one at a time, as the restorer wants it."""

    def __init__(self, restorer: FileRestorer) -> None:
        self._restorer = restorer
        self._lock = threading.Lock()
        self._local = threading.local()

    def window(self, blob: Blob, start: int, end: int) -> memoryview:
        if not hasattr(self._local, "buffer"):
            self._local.buffer = allocate(BLOCK_BYTES)
        buffer: memoryview = self._local.buffer
        return buffer[: round_up(end - start)]

    def accept(self, blob: Blob, start: int, verified: memoryview) -> None:
        with self._lock:
            self._restorer.write(blob.ordinal, start, verified)
