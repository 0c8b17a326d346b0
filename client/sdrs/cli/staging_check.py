"""What ``sdrs doctor`` says about staging: whether saves of this machine can be copied into its daemon's memory."""

from __future__ import annotations

import shutil
from pathlib import Path

from sdrs.cli.amounts import format_bytes
from sdrs.cli.machine_checks import Check, Verdict
from sdrs_core.memory_size import staging_budget_bytes, total_bytes

SHARED_MEMORY = Path("/dev/shm")
STAGING_WANTED_BYTES = 1 << 30
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def check_staging() -> Check:
    try:
        free_bytes = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        advice = "mount a tmpfs there, or name one (node.staging_dir): without it saves are streamed, and return later"
        return Check("staging", Verdict.WARN, f"{SHARED_MEMORY} is absent", advice)
    limit = next((_read(path) for path in _LIMITS if path.exists()), "")
    mounts = _read(Path("/proc/mounts"))
    return judge_staging(free_bytes, total_bytes(_read(Path("/proc/meminfo")), limit), mounts)


def judge_staging(free_bytes: int, memory_bytes: int, mounts: str) -> Check:
    """``mounts`` is /proc/mounts: device, mount point, type, options."""
    kinds = [line.split()[2] for line in mounts.splitlines() if line.split()[1:2] == [str(SHARED_MEMORY)]]
    budget_bytes = staging_budget_bytes(memory_bytes, free_bytes)
    detail = (
        f"up to {format_bytes(budget_bytes)} of {format_bytes(memory_bytes)} of memory, {format_bytes(free_bytes)} "
        f"free at {SHARED_MEMORY}"
    )
    if kinds and kinds[-1] != "tmpfs":
        return Check("staging", Verdict.WARN, f"{SHARED_MEMORY} is {kinds[-1]}, not a tmpfs", "mount a tmpfs there")
    if budget_bytes < STAGING_WANTED_BYTES:
        advice = "larger shards are streamed: in a container raise --shm-size and its memory, or set node.staging_bytes"
        return Check("staging", Verdict.WARN, detail, advice)
    return Check("staging", Verdict.OK, detail)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
