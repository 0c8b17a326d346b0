"""Copies of the catalog on a node (P19): the newest two, each one file with its id in the first line.

Blocking; the edge calls it in threads.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import xxhash

from sdrs_core.errors import (
    CorruptDataError,
    FullError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    StaleTermError,
    UnavailableError,
)
from sdrs_core.ids import ClusterId, random_id
from sdrs_core.snapshots import MAX_SNAPSHOT_BYTES, SnapshotId
from sdrs_storaged.folders import sync_folder
from sdrs_storaged.node.identity import Identity

KEPT_COUNT = 2
PIECE_BYTES = 1 << 20

_SUFFIX = ".snapshot"
_TEMP_SUFFIX = ".part"
_MAX_ID_BYTES = 4096
_MAX_NUMBER = 2**63 - 1


class SnapshotShelf:
    def __init__(self, folder: Path, identity: Identity) -> None:
        self._folder = folder
        self._identity = identity
        folder.mkdir(mode=0o700, exist_ok=True)
        for left in folder.glob(f"*{_TEMP_SUFFIX}"):
            left.unlink(missing_ok=True)  # of a copy that was broken off by a crash

    def create(self, snapshot: SnapshotId) -> SnapshotWriter:
        """Begin a copy; RefusedError or StaleTermError if it is not of the cluster and controller that we follow."""
        if snapshot.cluster_id != self._identity.cluster_id:
            raise RefusedError(
                f"node {self._identity.node_id} belongs to cluster {self._identity.cluster_id} and keeps no copies of "
                f"the catalog of {snapshot.cluster_id}"
            )
        seen = self._identity.authority
        if (snapshot.incarnation, snapshot.term) < (seen.incarnation, seen.term):
            raise StaleTermError(
                f"node {self._identity.node_id} has seen term {seen.term} of incarnation {seen.incarnation}; a copy of "
                f"the catalog of term {snapshot.term} of incarnation {snapshot.incarnation} is refused"
            )
        numbers = (snapshot.incarnation, snapshot.term, snapshot.revision)
        if not all(0 <= number <= _MAX_NUMBER for number in numbers):
            raise InvalidArgumentError("the numbers of the snapshot are out of range")
        if not 0 < snapshot.size_bytes <= MAX_SNAPSHOT_BYTES:
            raise InvalidArgumentError(
                f"a snapshot of {snapshot.size_bytes} bytes is not possible: nodes keep 1 to {MAX_SNAPSHOT_BYTES}"
            )
        with _explained(self._folder):
            return SnapshotWriter(self._folder, snapshot)

    def snapshots(self) -> list[SnapshotId]:
        """Newest first; what cannot be read is left out, and stays for people to look at."""
        found = []
        for path in self._paths():
            with suppress(OSError, CorruptDataError), open(path, "rb") as file:
                found.append(_read_id(file.readline(_MAX_ID_BYTES), path))
        return sorted(found, key=lambda snapshot: snapshot.age, reverse=True)

    def read(self, snapshot: SnapshotId) -> Generator[bytes, None, None]:
        path = self._folder / _name(snapshot)
        try:
            with open(path, "rb") as file:
                if _read_id(file.readline(_MAX_ID_BYTES), path) != snapshot:
                    raise NotFoundError(f"{path} is another copy of the catalog than the one asked for")
                while piece := file.read(PIECE_BYTES):
                    yield piece
        except FileNotFoundError:
            raise NotFoundError(
                f"node {self._identity.node_id} keeps no copy of the catalog at revision {snapshot.revision} of "
                f"incarnation {snapshot.incarnation} (any more)"
            ) from None

    def prune(self) -> None:
        """Keep the newest; older ones go once a newer one is durable."""
        for path in self._paths()[:-KEPT_COUNT]:
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """Oldest first, by their names."""
        return sorted(self._folder.glob(f"*{_SUFFIX}"))


class SnapshotWriter:
    """``append`` the bytes, then ``finish``; leaving the context without that throws them away."""

    def __init__(self, folder: Path, snapshot: SnapshotId) -> None:
        self._folder = folder
        self._snapshot = snapshot
        self._hash = xxhash.xxh3_128()
        self._size_bytes = 0
        self._path = folder / f"{random_id()}{_TEMP_SUFFIX}"
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self._write(json.dumps(asdict(snapshot)).encode() + b"\n")
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> SnapshotWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def append(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > self._snapshot.size_bytes:
            raise InvalidArgumentError(f"the snapshot has more bytes than the {self._snapshot.size_bytes} it announced")
        self._hash.update(data)
        with _explained(self._path):
            self._write(data)

    def finish(self) -> None:
        """Durable under its name when this returns (I1's order: fsync, rename, fsync of the folder)."""
        if (self._size_bytes, self._hash.hexdigest()) != (self._snapshot.size_bytes, self._snapshot.hash):
            raise CorruptDataError("the snapshot does not match its size and hash: it was damaged on the way")
        with _explained(self._path):
            os.fsync(self._fd)
            os.rename(self._path, self._folder / _name(self._snapshot))
            sync_folder(self._folder)

    def discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def _name(snapshot: SnapshotId) -> str:
    return f"{snapshot.incarnation:020d}-{snapshot.revision:020d}{_SUFFIX}"


def _read_id(line: bytes, path: Path) -> SnapshotId:
    try:
        content = json.loads(line)
        return SnapshotId(**{**content, "cluster_id": ClusterId(content["cluster_id"])})
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptDataError(f"{path} does not begin with the id of a snapshot: {error}") from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Errors of the system as ours."""
    try:
        yield
    except OSError as error:
        kind = FullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
        raise kind(f"{path} cannot be written ({error.strerror}): free space, check the disk") from error
