"""How much memory a machine or container has, by what /proc and cgroup files say, and what follows for staging.

Staged checkpoints are memory like any other: beyond the limit of a container they would get its processes killed.
"""

from __future__ import annotations

# Of all memory: the rest is the training's. And of what is free on the file system: others use it too.
STAGING_SHARE = 0.25
FREE_SHARE = 0.75
# What must stay available when a segment is handed out.
RESERVE_SHARE = 0.05
# cgroup v1 writes "no limit" as a number near 2^63.
_NO_LIMIT_BYTES = 1 << 60


def meminfo_bytes(meminfo: str, name: str) -> int:
    """One line of /proc/meminfo; 0 if it has none of that name."""
    for line in meminfo.splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return 0


def cgroup_bytes(text: str) -> int | None:
    """What a cgroup's file of a limit or of its use says; None: no limit, or nothing to be read."""
    text = text.strip()
    if not text.isdecimal() or int(text) >= _NO_LIMIT_BYTES:
        return None
    return int(text)


def total_bytes(meminfo: str, cgroup_limit: str) -> int:
    """Of the container, where it has a limit of its own."""
    machine_bytes = meminfo_bytes(meminfo, "MemTotal")
    limit_bytes = cgroup_bytes(cgroup_limit)
    return machine_bytes if limit_bytes is None else min(machine_bytes, limit_bytes)


def available_bytes(meminfo: str, cgroup_limit: str, cgroup_used: str, cgroup_stat: str) -> int:
    machine_bytes = meminfo_bytes(meminfo, "MemAvailable")
    limit_bytes, used_bytes = cgroup_bytes(cgroup_limit), cgroup_bytes(cgroup_used)
    if limit_bytes is None or used_bytes is None:
        return machine_bytes
    return min(machine_bytes, max(0, limit_bytes - used_bytes + _cache_bytes(cgroup_stat)))


def _cache_bytes(cgroup_stat: str) -> int:
    """What the kernel takes back when it is needed; files on a tmpfs are not part of these two."""
    lines = (line.split() for line in cgroup_stat.splitlines())
    return sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in ("active_file", "inactive_file"))


def staging_budget_bytes(memory_bytes: int, free_bytes: int) -> int:
    """What a daemon stages at most, unless told."""
    return int(min(STAGING_SHARE * memory_bytes, FREE_SHARE * free_bytes))
