"""Where segments lie, and how many bytes of them there may be."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from sdrs_core import memory_size
from sdrs_core.errors import RefusedError

SHARED_MEMORY = Path("/dev/shm")
_MEMINFO = Path("/proc/meminfo")
# v2, then v1: limit, use and statistics of the cgroup that a container sees as its root.
_V2, _V1 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")
_CGROUPS = (
    (_V2 / "memory.max", _V2 / "memory.current", _V2 / "memory.stat"),
    (_V1 / "memory.limit_in_bytes", _V1 / "memory.usage_in_bytes", _V1 / "memory.stat"),
)


def default_folder(data_dir: Path) -> Path:
    """The daemon's own; the same after a restart, another one for another daemon."""
    name = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:16]
    return SHARED_MEMORY / f"sdrs-{os.geteuid()}-{name}"


def open_folder(folder: Path) -> None:
    """Made if it is missing; RefusedError if others could read in it, or own it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise RefusedError(f"staging_dir {folder} cannot be used: {error}: check the path and its rights") from error
    # Anybody may make files in /dev/shm: a folder or link that waits there under our name is not ours.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise RefusedError(
            f"staging_dir {folder} is not a folder of this daemon's user alone: remove it, or name another "
            "(node.staging_dir)"
        )


def budget_bytes(folder: Path) -> int:
    """What the machine or container can spare."""
    free = os.statvfs(folder)
    limit, _, _ = _cgroup()
    memory_bytes = memory_size.total_bytes(_read(_MEMINFO), limit)
    return memory_size.staging_budget_bytes(memory_bytes, free.f_bavail * free.f_frsize)


def spare_bytes() -> int:
    """How much memory can be taken now without bringing the others into need."""
    meminfo, (limit, used, statistics) = _read(_MEMINFO), _cgroup()
    kept_bytes = int(memory_size.RESERVE_SHARE * memory_size.total_bytes(meminfo, limit))
    return max(0, memory_size.available_bytes(meminfo, limit, used, statistics) - kept_bytes)


def _cgroup() -> tuple[str, str, str]:
    for limit, used, statistics in _CGROUPS:
        if limit.exists():
            return _read(limit), _read(used), _read(statistics)
    return "", "", ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
