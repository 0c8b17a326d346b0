"""Secrets in files: read only if nobody else can."""

from __future__ import annotations

import os
import shlex
import stat

from sdrs_core.errors import PermissionDeniedError

_MAX_BYTES = 64 * 1024


def read_private(path: str, what: str) -> tuple[bytes, tuple[int, int, int]]:
    """The bytes, and a mark that changes with them."""
    path = os.path.expanduser(path)
    quoted = shlex.quote(path)
    try:
        with open(path, "rb") as file:
            # Of what was opened, not of whatever has the name a moment later.
            status = os.fstat(file.fileno())
            if status.st_uid not in (os.geteuid(), 0):
                raise PermissionDeniedError(
                    f"{what} {path} belongs to another user (uid {status.st_uid}), who could change it: "
                    f"chown {os.geteuid()} {quoted}"
                )
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise PermissionDeniedError(
                    f"{what} {path} can be read or changed by others (mode {stat.S_IMODE(status.st_mode):04o}): "
                    f"chmod 600 {quoted}"
                )
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                raise PermissionDeniedError(f"{what} {path} is not a small plain file: name the right one")
            return file.read(), _mark(status)
    except OSError as error:
        raise PermissionDeniedError(
            f"{what} {path} cannot be read on this machine: {error.strerror}. Put it there, for the user that the "
            "daemon runs as, and for nobody else (mode 600)"
        ) from error


def mark_of(path: str) -> tuple[int, int, int] | None:
    try:
        return _mark(os.stat(os.path.expanduser(path)))
    except OSError:
        return None


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_ino, status.st_size
