"""Memory and CPU limits of a run on one node.

By cgroup v2 where a part of its tree is ours: systemd gives it with ``Delegate=cpu memory`` and
``DelegateSubgroup=scheduler``. Elsewhere memory is looked at once a second and CPUs are not limited: better than
RLIMIT_AS, which CUDA's reservations of address space run into at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from sdrs_scheduler.executors.local.processes import Process, proportional_bytes

# The scheduler and the shepherds are in the subgroup of this name; beside it is room for runs.
OWN_SUBGROUP = "scheduler"
_ROOT = Path("/sys/fs/cgroup")
_CPU_PERIOD_US = 100_000
# The kernel takes a worker before it takes a shepherd, the scheduler, or a storage daemon.
WORKER_OOM_SCORE = 500


class NodeLimits(Protocol):
    # What does not hold as it was asked for; for people.
    note: str

    def join(self) -> None:
        """Called by the worker itself before it becomes the command."""

    def is_exceeded(self, processes: Sequence[Process]) -> bool:
        """Looked at once a second: whether its processes must be killed for their memory."""

    def was_out_of_memory(self) -> bool: ...

    def close(self) -> None: ...


class CgroupLimits:
    """The kernel keeps them."""

    def __init__(self, path: Path, memory_bytes: int, cpus: int) -> None:
        self.note = ""
        self._path = path
        path.mkdir(exist_ok=True)
        if memory_bytes:
            (path / "memory.max").write_text(str(memory_bytes))
            # One process of a trainer alone is of no use: all of them go.
            (path / "memory.oom.group").write_text("1")
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (path / "memory.swap.max").write_text("0")
        if cpus:
            (path / "cpu.max").write_text(f"{cpus * _CPU_PERIOD_US} {_CPU_PERIOD_US}")

    def join(self) -> None:
        (self._path / "cgroup.procs").write_text("0")

    def is_exceeded(self, processes: Sequence[Process]) -> bool:
        return False

    def was_out_of_memory(self) -> bool:
        try:
            events = (self._path / "memory.events").read_text()
        except OSError:
            return False
        return any(line.split()[0] == "oom_kill" and int(line.split()[1]) > 0 for line in events.splitlines())

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a process that will not die keeps it; it is empty of meaning then
            self._path.rmdir()


class WatchedLimits:
    """We look ourselves."""

    def __init__(self, memory_bytes: int, cpus: int, because: str) -> None:
        said = []
        if memory_bytes:
            said.append("memory is looked at once a second")
        if cpus:
            said.append("CPUs are not limited")
        self.note = f"{' and '.join(said)}: {because}" if said else ""
        self._memory_bytes = memory_bytes
        self._was_exceeded = False

    def join(self) -> None:
        pass

    def is_exceeded(self, processes: Sequence[Process]) -> bool:
        if not self._memory_bytes or sum(entry.resident_bytes for entry in processes) <= self._memory_bytes:
            return False
        # Resident bytes count what forked loaders share once for each: the dear way only if the cheap one is too much.
        if sum(proportional_bytes(entry.pid) for entry in processes) > self._memory_bytes:
            self._was_exceeded = True
        return self._was_exceeded

    def was_out_of_memory(self) -> bool:
        return self._was_exceeded

    def close(self) -> None:
        pass


def limits_for(cgroup: Path | None, name: str, memory_bytes: int, cpus: int) -> NodeLimits:
    """``cgroup`` is where runs may have groups of their own; None: nowhere."""
    if not memory_bytes and not cpus:
        return WatchedLimits(0, 0, "")
    if cgroup is None:
        return WatchedLimits(memory_bytes, cpus, "no part of the cgroup v2 tree is delegated to the scheduler")
    try:
        return CgroupLimits(cgroup / name, memory_bytes, cpus)
    except OSError as error:
        return WatchedLimits(memory_bytes, cpus, f"{cgroup} takes no group ({error})")


def delegated_cgroup(own: str | None = None, root: Path = _ROOT) -> Path | None:
    """Where this process may make groups with limits; ``own`` is the text of /proc/self/cgroup."""
    try:
        text = Path("/proc/self/cgroup").read_text() if own is None else own
        path = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "")
        mine = root / path.lstrip("/")
        if mine.name != OWN_SUBGROUP:
            return None
        if not {"memory", "cpu"} <= set((mine.parent / "cgroup.controllers").read_text().split()):
            return None
        (mine.parent / "cgroup.subtree_control").write_text("+memory +cpu")
    except OSError:
        return None
    return mine.parent


def kernel_oom_kills() -> int:
    """How many processes this machine's kernel has killed for memory so far."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
