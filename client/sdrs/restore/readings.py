"""What is made of a shard's verified bytes: a state in memory, or files in a folder.

A reading is finished only when every rank has verified its bytes (P16), or aborted, which leaves nothing behind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdrs.memory import uncollected
from sdrs.restore.shard_reader import ShardReader
from sdrs.restore.targets import BufferedTarget, MemoryTarget
from sdrs.state import FileRestorer, decode_files_index, decode_index, rebuild
from sdrs_core.checkpoints import Blob


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Reading:
    finish: Callable[[], Any]
    abort: Callable[[], None] = _nothing


Read = Callable[[Sequence[ShardReader]], Reading]


def read_state(readers: Sequence[ShardReader]) -> Reading:
    """Each blob is read to where it stays: arrays become views of that memory."""
    (reader,) = readers
    blobs = reader.shard.blobs
    target = MemoryTarget(blobs)
    reader.read(blobs, target)
    buffers = [target.buffer(blob) for blob in blobs]
    with uncollected():
        state = rebuild(decode_index(buffers[0]), buffers)
    return Reading(finish=lambda: state)


def read_files(readers: Sequence[ShardReader], dest: str | os.PathLike[str]) -> Reading:
    """The first blob has the index; the others go through a few buffers into files, whatever their size."""
    (reader,) = readers
    first, *others = reader.shard.blobs
    memory = MemoryTarget([first])
    reader.read([first], memory)
    restorer = FileRestorer(decode_files_index(memory.buffer(first)), dest)
    one_at_a_time = threading.Lock()

    def write(blob: Blob, start: int, verified: memoryview) -> None:
        with one_at_a_time:
            restorer.write(blob.ordinal, start, verified)

    try:
        restorer.write(0, 0, memory.buffer(first))
        reader.read(others, BufferedTarget(write))
    except BaseException:
        restorer.abort()
        raise
    return Reading(restorer.finish, restorer.abort)


def export_state(readers: Sequence[ShardReader], dest: str | os.PathLike[str]) -> Reading:
    """Every rank's blobs as they are: safetensors files, which other tools open without us."""
    finals: dict[Path, Path] = {}

    def abort() -> None:
        for part in finals:
            part.unlink(missing_ok=True)

    def finish() -> None:
        for part, final in finals.items():
            part.replace(final)

    try:
        for reader in readers:
            folder = Path(dest, f"rank-{reader.shard.rank:05}")
            folder.mkdir(parents=True, exist_ok=True)
            parts = {blob.id: folder / f".blob-{blob.ordinal:04}.part" for blob in reader.shard.blobs}
            finals |= {parts[blob.id]: folder / f"blob-{blob.ordinal:04}.safetensors" for blob in reader.shard.blobs}
            for part in parts.values():
                part.write_bytes(b"")

            def write(blob: Blob, start: int, verified: memoryview, parts: dict[Any, Path] = parts) -> None:
                with open(parts[blob.id], "r+b") as file:
                    file.seek(start)
                    file.write(verified)

            reader.read(reader.shard.blobs, BufferedTarget(write))
    except BaseException:
        abort()
        raise
    return Reading(finish, abort)
