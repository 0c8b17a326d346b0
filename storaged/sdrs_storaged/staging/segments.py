"""Segments: files on a tmpfs of the daemon's own, each of one process, and records of what was sealed in them (P12).

A segment is never given to another process, not even after its owner is gone: that one may be stopped instead of dead,
and would write into somebody else's checkpoint when it wakes up. Its owner gets it back, with its pages warm, once what
it holds is durable elsewhere. Bounded in total (I10). Thread-safe.

What is durable elsewhere may still be read here, until its owner fills the segment again: memory before disks. One that
its owner left is kept for that alone, and is the first to go when room is needed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from google.protobuf.message import DecodeError

from sdrs_core.errors import FullError, InvalidArgumentError, NotFoundError, SdrsError
from sdrs_core.ids import check_random_id, random_id
from sdrs_proto.limits import MAX_BLOBS_PER_SHARD
from sdrs_proto.staging import SEGMENT_ALIGN_BYTES, round_up
from sdrs_proto.v1.staging_pb2 import StagedBlob, StagedShard
from sdrs_storaged.fault_points import reach
from sdrs_storaged.folders import lock_folder
from sdrs_storaged.logs import get_log
from sdrs_storaged.staging.place import open_folder
from sdrs_storaged.staging.segment import Copy, Segment

log = get_log("staging")

_LOCK = "lock"
_SEGMENT, _SEAL, _NEW = ".segment", ".seal", ".new"
# What a process that is gone has left is kept for so long: for its next start, if there is one.
KEEP_SECONDS = 3600.0


class Segments:
    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        spare_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the folder; what is in it waits for ``recover``."""
        open_folder(folder)
        self.folder = folder
        self.budget_bytes = budget_bytes
        self._lock_fd = lock_folder(folder, _LOCK)
        self._spare_bytes = spare_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._taken_bytes = 0
        self._segments: dict[str, Segment] = {}

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def kept_bytes(self) -> int:
        """Of these, what is only kept to be read."""
        with self._lock:
            return sum(segment.size_bytes for segment in self._kept())

    def reserve(self, owner: object, size_bytes: int) -> Segment:
        """Room for all of it, or FullError at once: nobody holds a part and waits (P12)."""
        wanted_bytes = round_up(max(1, size_bytes), SEGMENT_ALIGN_BYTES)
        while True:
            try:
                return self._make(owner, wanted_bytes)
            except FullError:
                # What is kept for readers goes first, and nobody asks them: they find it elsewhere.
                if wanted_bytes > self.budget_bytes or not self._remove_oldest_kept():
                    raise

    def _make(self, owner: object, wanted_bytes: int) -> Segment:
        self._take(wanted_bytes)
        segment_id = random_id()
        path = self.folder / f"{segment_id}{_SEGMENT}"
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            # All of its pages now: a page that cannot be had later would kill the process that writes into it.
            os.posix_fallocate(fd, 0, wanted_bytes)
        except OSError as error:
            self._discard(path, fd)
            self._give(wanted_bytes)
            raise FullError(f"{self.folder} has no room for a segment of {wanted_bytes} bytes: {error}") from error
        segment = Segment(segment_id, path, wanted_bytes, fd, owner)
        with self._lock:
            self._segments[segment_id] = segment
        return segment

    def _take(self, wanted_bytes: int) -> None:
        with self._lock:
            left_bytes = self.budget_bytes - self._taken_bytes
            if wanted_bytes > left_bytes:
                raise FullError(
                    f"a segment of {wanted_bytes} bytes does not fit: {left_bytes} of {self.budget_bytes} bytes of "
                    "staging are free (node.staging_bytes)",
                    budget_bytes=self.budget_bytes,
                )
            if wanted_bytes > (spare_bytes := self._spare_bytes()):
                raise FullError(
                    f"a segment of {wanted_bytes} bytes would bring this machine into need: it has {spare_bytes} bytes "
                    "of memory to spare"
                )
            self._taken_bytes += wanted_bytes

    def _give(self, size_bytes: int) -> None:
        with self._lock:
            self._taken_bytes -= size_bytes

    def seal(self, owner: object, shard: StagedShard) -> Segment:
        """From here on the daemon owns the shard, also after a restart: its record stands beside the segment."""
        check_random_id(shard.id, "staged id")
        with self._lock:
            segment = self._segments.get(shard.segment_id)
            if segment is None or segment.owner is not owner:
                raise NotFoundError(f"segment {shard.segment_id} is none of this process: reserve one")
            if segment.is_sealed:
                raise InvalidArgumentError(f"segment {shard.segment_id} is sealed already")
            _check_layout(shard, segment)
            segment.is_sealed, segment.copy = True, None
        try:
            self.record(shard)
        except OSError as error:
            segment.is_sealed = False
            raise FullError(f"the seal of segment {segment.id} cannot be written: {error}") from error
        return segment

    def record(self, shard: StagedShard) -> None:
        """Whole or not at all; there is nothing to sync, what a reboot leaves is nothing."""
        path = self.folder / f"{shard.id}{_SEAL}"
        new = path.with_name(path.name + _NEW)
        new.write_bytes(shard.SerializeToString())
        reach("stage.recorded")
        os.rename(new, path)
        reach("stage.sealed")

    def forget(self, shard: StagedShard) -> None:
        (self.folder / f"{shard.id}{_SEAL}").unlink(missing_ok=True)

    def release(self, segment: Segment, copy: Copy | None = None) -> None:
        """What it holds is durable elsewhere, or nobody needs it: it is its owner's again. One without an owner is kept
        if it has a ``copy`` that may be read.
        """
        with self._lock:
            segment.is_sealed, segment.copy, segment.left_seconds = False, copy, self._clock()
            is_kept = segment.owner is not None or copy is not None
        if not is_kept:
            self._remove(segment)

    def free(self, owner: object, segment_id: str) -> None:
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is None or segment.owner is not owner or segment.is_sealed:
                raise NotFoundError(f"segment {segment_id} is none that this process may give back")
        self._remove(segment)

    def end(self, owner: object) -> None:
        """The process is gone: what it sealed is the daemon's alone, what is in may be read on; all else goes."""
        with self._lock:
            own = [segment for segment in self._segments.values() if segment.owner is owner]
            for segment in own:
                segment.owner, segment.left_seconds = None, self._clock()
        for segment in own:
            if not segment.is_sealed and segment.copy is None:
                self._remove(segment)

    # To be read

    def lend(self, save_id: str, rank: int, ordinal: int) -> tuple[Segment, StagedBlob, bytes]:
        """A segment that has this blob, opened once more and for reading only, where the blob lies, and its table. The
        caller closes it, and a reader verifies what it reads: the owner may be overwriting it at this moment.
        """
        with self._lock:
            for segment in self._segments.values():
                copy = segment.copy
                if copy is not None and (copy.save_id, copy.rank) == (save_id, rank) and ordinal < len(copy.blobs):
                    # While it is surely open: it may be removed as soon as the lock is not held.
                    lent = replace(segment, fd=os.open(f"/proc/self/fd/{segment.fd}", os.O_RDONLY | os.O_CLOEXEC))
                    break
            else:
                raise NotFoundError(f"blob {ordinal} of rank {rank} of save {save_id} is not staged here any more")
        blob = copy.blobs[ordinal]
        try:
            with copy.making:
                if ordinal not in copy.tables:
                    copy.tables[ordinal] = lent.table(blob)
            return lent, blob, copy.tables[ordinal]
        except BaseException:
            os.close(lent.fd)
            raise

    def tidy(self) -> None:
        """Let go what was kept for readers long enough, and all of that once the machine needs its memory."""
        with self._lock:
            is_in_need = any(True for _ in self._kept()) and self._spare_bytes() <= 0
            given_up_seconds = self._clock() - KEEP_SECONDS
            gone = [segment for segment in self._kept() if is_in_need or segment.left_seconds <= given_up_seconds]
        for segment in gone:
            self._remove(segment)

    def _kept(self) -> Iterator[Segment]:
        return (one for one in self._segments.values() if one.owner is None and not one.is_sealed)

    def _remove_oldest_kept(self) -> bool:
        with self._lock:
            oldest = min(self._kept(), key=lambda segment: segment.left_seconds, default=None)
        if oldest is not None:
            self._remove(oldest)
        return oldest is not None

    def _remove(self, segment: Segment) -> None:
        with self._lock:
            if self._segments.pop(segment.id, None) is None:
                return
            self._taken_bytes -= segment.size_bytes
        self._discard(segment.path, segment.fd)

    def _discard(self, path: Path, fd: int) -> None:
        path.unlink(missing_ok=True)
        if fd >= 0:
            os.close(fd)

    def recover(self) -> list[tuple[StagedShard, Segment | None]]:
        """What an earlier run of this daemon was left with: shards that were sealed. All else is removed."""
        found: list[tuple[StagedShard, Segment | None]] = []
        for path in sorted(self.folder.glob(f"*{_SEAL}")):
            try:
                shard = StagedShard.FromString(path.read_bytes())
                found.append((shard, None if shard.registered_save_id else self._adopt(shard)))
            except (DecodeError, OSError, SdrsError) as error:
                # I6: it was acknowledged, so it is not dropped without a word.
                log.error("staged_save_lost", record=path.name, why=str(error))
                path.unlink(missing_ok=True)
        for path in self.folder.iterdir():
            is_known = path.name == _LOCK or path.suffix == _SEAL or path.stem in self._segments
            if not is_known:
                path.unlink(missing_ok=True)
        return found

    def _adopt(self, shard: StagedShard) -> Segment:
        path = self.folder / f"{check_random_id(shard.segment_id, 'segment id')}{_SEGMENT}"
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        segment = Segment(shard.segment_id, path, os.fstat(fd).st_size, fd, None, is_sealed=True)
        try:
            _check_layout(shard, segment)
        except SdrsError:
            os.close(fd)
            raise
        with self._lock:
            self._segments[segment.id] = segment
            self._taken_bytes += segment.size_bytes
        return segment

    def close(self) -> None:
        """Sealed shards stay for the next start."""
        for segment in list(self._segments.values()):
            if segment.is_sealed:
                os.close(segment.fd)
            else:
                self._remove(segment)
        os.close(self._lock_fd)
        with suppress(OSError):  # not empty: then it is needed
            if not list(self.folder.glob(f"*{_SEAL}")):
                (self.folder / _LOCK).unlink(missing_ok=True)
                self.folder.rmdir()


def _check_layout(shard: StagedShard, segment: Segment) -> None:
    if not 1 <= len(shard.blobs) <= MAX_BLOBS_PER_SHARD:
        raise InvalidArgumentError(f"a shard has 1 to {MAX_BLOBS_PER_SHARD} blobs, not {len(shard.blobs)}")
    if any(blob.offset + blob.size_bytes > segment.size_bytes for blob in shard.blobs):
        raise InvalidArgumentError(f"segment {segment.id} has {segment.size_bytes} bytes, a blob of it lies beyond")
