"""Whose data folder this is: a small file that says so, and a lock that only one process holds.

A folder is never taken over: one that is not empty and not ours, or another cluster's or node's, is refused, because
its files would be swept away as temporary or counted as copies that they are not (P2).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from sdrs_core.errors import RefusedError
from sdrs_core.ids import ClusterId, DiskId, NodeId, random_id
from sdrs_storaged.folders import lock_folder, refuse_foreign, write_durably

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
        refuse_foreign(folder, IDENTITY_NAME, _EMPTY_ENOUGH)
    lock_fd = lock_folder(folder, LOCK_NAME)
    try:
        if identity_path.exists():
            identity = _read_identity(identity_path)
        else:
            identity = DiskIdentity(cluster_id, node_id, DiskId(random_id()))
            write_durably(identity_path, json.dumps(asdict(identity), indent=2))
        _check_owner(folder, identity, cluster_id, node_id)
    except BaseException:
        os.close(lock_fd)
        raise
    return identity, lock_fd


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


def _check_owner(folder: Path, identity: DiskIdentity, cluster_id: ClusterId, node_id: NodeId) -> None:
    for what, theirs, ours in (("cluster", identity.cluster_id, cluster_id), ("node", identity.node_id, node_id)):
        if theirs != ours:
            raise RefusedError(
                f"folder {folder} belongs to {what} {theirs}, this is {what} {ours}: "
                f"name another folder, or start the daemon of {what} {theirs} on it",
                path=folder,
            )
