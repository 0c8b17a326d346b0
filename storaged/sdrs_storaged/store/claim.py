"""Whose data folder this is: a small file that says so, and a lock that only one process holds.

A folder is never taken over: one that is not empty and not ours, or another cluster's or node's, is refused, because
its files would be swept away as temporary or counted as copies that they are not (P2).
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from sdrs_core.errors import RefusedError
from sdrs_core.ids import ClusterId, DiskId, NodeId, random_id

FORMAT = 1
IDENTITY_NAME = "sdrs-disk.json"
LOCK_NAME = "sdrs-disk.lock"
_NEW_IDENTITY_NAME = IDENTITY_NAME + ".new"
# What a crash before the identity was in place may leave, and what mkfs makes.
_EMPTY_ENOUGH = {LOCK_NAME, _NEW_IDENTITY_NAME, "lost+found"}


@dataclass(frozen=True, slots=True)
class DiskIdentity:
    cluster_id: ClusterId
    node_id: NodeId
    disk_id: DiskId
    format: int = FORMAT


def claim(folder: Path, cluster_id: ClusterId, node_id: NodeId) -> tuple[DiskIdentity, int]:
    """Lock the folder, format it if it is new, check that it is ours.

    The lock is held until the returned descriptor is closed.
    """
    try:
        return _claim(folder, cluster_id, node_id)
    except OSError as error:
        raise RefusedError(
            f"folder {folder} cannot be used: {error}: check the path and its rights", path=folder
        ) from error


def _claim(folder: Path, cluster_id: ClusterId, node_id: NodeId) -> tuple[DiskIdentity, int]:
    folder.mkdir(parents=True, exist_ok=True)
    identity_path = folder / IDENTITY_NAME
    # Before the lock file is made: nothing is written into a folder that is not ours.
    if not identity_path.exists():
        _refuse_foreign(folder)
    lock_fd = _lock(folder)
    try:
        if identity_path.exists():
            identity = _read_identity(identity_path)
        else:
            identity = DiskIdentity(cluster_id, node_id, DiskId(random_id()))
            _write_identity(folder, identity)
        _check_owner(folder, identity, cluster_id, node_id)
    except BaseException:
        os.close(lock_fd)
        raise
    return identity, lock_fd


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_foreign(folder: Path) -> None:
    found = sorted(set(os.listdir(folder)) - _EMPTY_ENOUGH)
    if found:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise RefusedError(
            f"folder {folder} is not empty and has no {IDENTITY_NAME} (found: {shown}): "
            "name an empty or new folder; if this is a disk of SDRS, put its file back from a backup",
            path=folder,
        )


def _lock(folder: Path) -> int:
    fd = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise RefusedError(
            f"folder {folder} is in use by process {holder}: stop that storaged first, or give this one another folder",
            path=folder,
            pid=holder,
        ) from None
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # the pid is for the message of a second daemon; a full disk must still open, for deleting (I7)
    return fd


def _read_identity(path: Path) -> DiskIdentity:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        identity = DiskIdentity(**fields)
    except (ValueError, TypeError) as error:
        raise RefusedError(
            f"{path} cannot be read ({error}): put it back from a backup, or set the folder aside and name a new one",
            path=path,
        ) from error
    if identity.format != FORMAT:
        raise RefusedError(f"{path} has format {identity.format}, this program knows {FORMAT}: upgrade it", path=path)
    return identity


def _write_identity(folder: Path, identity: DiskIdentity) -> None:
    new = folder / _NEW_IDENTITY_NAME
    with open(new, "w", encoding="utf-8") as file:
        json.dump(asdict(identity), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, folder / IDENTITY_NAME)
    sync_folder(folder)


def _check_owner(folder: Path, identity: DiskIdentity, cluster_id: ClusterId, node_id: NodeId) -> None:
    for what, theirs, ours in (("cluster", identity.cluster_id, cluster_id), ("node", identity.node_id, node_id)):
        if theirs != ours:
            raise RefusedError(
                f"folder {folder} belongs to {what} {theirs}, this is {what} {ours}: "
                f"name another folder, or start the daemon of {what} {theirs} on it",
                path=folder,
            )
