"""What fsspec calls; ``reader`` has the half that looks and reads. Here: how files are written, moved and removed."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sdrs import forks
from sdrs.fsspec.batches import Batch, OneGeneration
from sdrs.fsspec.failures import os_errors
from sdrs.fsspec.files import ReadFile, WriteFile
from sdrs.fsspec.places import Place, file_place, find_place
from sdrs.fsspec.reader import Info, ReadingFileSystem, missing
from sdrs.fsspec.trees import Copy, Edit, Remove
from sdrs.fsspec.writing import StepWriter
from sdrs.save.compression import Compress

# Threads of one process take turns at a job, instead of overtaking each other. A forked child has turns of its own.
_turns: dict[tuple[int, str, str], threading.Lock] = {}


class _Together(threading.local):
    """What one call of this thread does to many files; ``is_move``: nothing is removed before the copies are in."""

    batch: Batch | None = None
    is_move: bool = False


class SdrsFileSystem(ReadingFileSystem):
    transaction_type = OneGeneration

    def __init__(
        self,
        hosts: str = "",
        pool: str | None = None,
        level: str | None = None,
        compress: Compress | None = None,
        **options: Any,
    ) -> None:
        super().__init__(hosts, pool, level, compress, **options)
        self._together = _Together()

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        file = super().open(path, mode, *args, **options)
        if isinstance(file, io.TextIOWrapper) and isinstance(file.buffer, WriteFile):
            encoding, errors = file.encoding, file.errors
            return _TextFile(file.detach(), encoding, errors, options.get("newline"))
        return file

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> ReadFile | WriteFile:
        block_size = block_size or self.blocksize
        with os_errors(path):
            if mode == "rb":
                content, details = self.content(path)
                options |= {"block_size": block_size, "cache_options": cache_options}
                options.pop("size", None)  # a file that comes out of a pickle brings the size that it had
                return ReadFile(self, path, content, details, **options)
            place, step = file_place(path)
            before = self._before(place)
            if before and before["type"] == "directory":
                raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
            if before and mode == "xb":
                raise FileExistsError(errno.EEXIST, "it exists", path)
            if not autocommit:
                self.transaction.batch.check(place.job, step)
        before_bytes = before["size"] if before and mode == "ab" else 0
        return WriteFile(self, place, mode, before_bytes, block_size=block_size, autocommit=autocommit)

    def _before(self, place: Place) -> Info | None:
        try:
            return self.info(place.path)
        except FileNotFoundError:
            return None

    def edit(self, place: Place, edit: Edit, now: bool = True) -> None:
        """Carry out one edit: with what it belongs to, at the end of the transaction, or now."""
        assert place.step is not None
        batch = self._together.batch
        if batch is None and (self._intrans or not now):
            batch = self.transaction.batch
        if batch is None:
            batch = Batch()
            batch.add(place.job, place.step, edit)
            self.commit(batch)
        else:
            batch.add(place.job, place.step, edit)

    def commit(self, batch: Batch) -> None:
        """Each step of the batch becomes one generation."""
        cluster, generations = self.connected
        try:
            for job, step, edits in batch.steps():
                turn = _turns.setdefault((forks.generation(), cluster.id, job), threading.Lock())
                with turn:
                    writer = StepWriter(
                        cluster,
                        generations,
                        job,
                        step,
                        pool=self._pool,
                        level=self._level,
                        compression=self._compression,
                    )
                    writer.write(edits)
        finally:
            batch.close()

    @contextmanager
    def _one_batch(self) -> Iterator[None]:
        """What one call does to many files is one generation of their step."""
        if self._together.batch is not None or self._intrans:
            yield
            return
        batch = self._together.batch = Batch()
        try:
            yield
        except BaseException:
            batch.close()
            raise
        finally:
            self._together.batch = None
        self.commit(batch)

    def put(self, *args: Any, **options: Any) -> None:
        with self._one_batch():
            super().put(*args, **options)

    def pipe(self, *args: Any, **options: Any) -> None:
        with self._one_batch():
            super().pipe(*args, **options)

    def copy(self, *args: Any, **options: Any) -> None:
        with self._one_batch():
            super().copy(*args, **options)

    def mv(self, *args: Any, **options: Any) -> None:
        self._together.is_move = True
        try:
            with self._one_batch():
                super().mv(*args, **options)
        finally:
            self._together.is_move = False

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        source = find_place(path1)
        if self.isdir(path1):
            return  # folders are there because of what is in them
        target, step = file_place(path2)
        if (source.job, source.step) == (target.job, step):
            self.edit(target, Copy(source.parts, target.parts))
        else:
            with self.open(path1, "rb") as there, self.open(path2, "wb") as here:
                while data := there.read(self.blocksize):
                    here.write(data)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Nothing is made: a folder is there once there is something in it."""
        self.makedirs(path, exist_ok=False)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        before = self._before(find_place(path))
        if before and not (exist_ok and before["type"] == "directory"):
            raise FileExistsError(errno.EEXIST, "it exists", path)

    def rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not self.isdir(path):
            raise missing(find_place(path))
        if self.ls(path):
            raise OSError(errno.ENOTEMPTY, "it is not empty", path)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is None:
            paths = self.expand_path(path)
        else:
            paths = [one for one in self.expand_path(path, recursive, maxdepth) if not self.isdir(one)]
        with self._one_batch():
            for one in paths:
                self._remove(one, recursive)

    def rm_file(self, path: str) -> None:
        self._remove(self._strip_protocol(path), recursive=False)

    _rm = rm_file

    def _remove(self, path: str, recursive: bool) -> None:
        place = find_place(path)
        if place.parts:
            self.edit(place, Remove(place.parts, recursive))
            return
        if not recursive:
            raise IsADirectoryError(errno.EISDIR, "it is a folder: remove it with recursive=True", path)
        if not place.job:
            raise PermissionError(errno.EPERM, "the root cannot be removed: name a job or a step", path)
        with os_errors(path):
            for step in self._steps(place):
                if self._intrans or self._together.is_move:
                    self.edit(Place(place.job, step), Remove((), recursive))
                else:
                    # The catalog deletes, whoever owns the job; ``undelete`` brings it back for a while.
                    self.cluster.checkpoints(place.job).delete(step)

    def _steps(self, place: Place) -> list[int]:
        if place.step is not None:
            return [self.generations.find(place.job, place.step).step]
        steps = [save.step for save in self.cluster.checkpoints(place.job).list()]
        if not steps:
            raise missing(place)
        return steps


class _TextFile(io.TextIOWrapper):
    """A block that fails commits nothing, as with ``WriteFile`` itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.buffer.discard()  # type: ignore[attr-defined]
        else:
            self.close()
