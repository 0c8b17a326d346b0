"""Folders and small files, handled so that a crash leaves the old or the new, and two daemons never share one."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from sdrs_core.errors import RefusedError

_RESERVE_NAME = "sdrs-reserve"
_RESERVE_BYTES = (65536, 16384, 4096)


def lock_folder(folder: Path, lock_name: str) -> int:
    """Held until the returned descriptor is closed, or its process dies."""
    fd = os.open(folder / lock_name, os.O_RDWR | os.O_CREAT, 0o600)
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


def refuse_foreign(folder: Path, identity_name: str, harmless: set[str]) -> None:
    """A folder that has things in it but not the file that says it is ours, is somebody else's."""
    found = sorted(set(os.listdir(folder)) - harmless)
    if found:
        shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise RefusedError(
            f"folder {folder} is not empty and has no {identity_name} (found: {shown}): "
            "name an empty or new folder; if it belongs to SDRS, put that file back from a backup",
            path=folder,
        )


def keep_reserve(folder: Path) -> None:
    """Hold a little space back, so that the small files of ``folder`` can still be replaced on a full disk.

    Without it a node on a full disk could not persist whose orders it takes (P14), hence not delete (I7).
    """
    with suppress(OSError):  # on a full disk: whatever is left of it, until there is room again
        fd = os.open(folder / _RESERVE_NAME, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for size_bytes in _RESERVE_BYTES:
                with suppress(OSError):
                    os.posix_fallocate(fd, 0, size_bytes)
                    break
        finally:
            os.close(fd)


def write_durably(path: Path, text: str) -> None:
    """Replace a small file whole: temporary file, fsync, rename, fsync of the folder. Readable by its owner only."""
    try:
        _replace(path, text)
    except OSError as error:
        reserve = path.parent / _RESERVE_NAME
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not reserve.exists():
            raise
        reserve.unlink()
        _replace(path, text)
        keep_reserve(path.parent)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
