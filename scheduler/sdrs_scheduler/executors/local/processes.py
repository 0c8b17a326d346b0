"""The processes of a run, as /proc has them. A pid counts only together with its start time: pids are used again."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# In the environment of everything that a run starts, with the run's folder as its value.
RUN_MARK = "SDRS_RUN"

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DEAD = "ZX"


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent_pid: int
    session: int
    # A letter, as in ps: R, S, D, T (stopped), Z ...
    state: str
    # In clock ticks since the machine started.
    started_ticks: int
    resident_bytes: int

    @property
    def is_dead(self) -> bool:
        return self.state in _DEAD


def process(pid: int) -> Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in brackets may hold anything, brackets too.
    fields = stat.rpartition(")")[2].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]), int(fields[21]) * _PAGE_BYTES)


def living() -> list[Process]:
    found = (process(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [entry for entry in found if entry is not None and not entry.is_dead]


def descendants(pid: int, among: Iterable[Process]) -> list[Process]:
    """All below ``pid``. A shepherd adopts what loses its parent: below it is everything that its run started."""
    children: dict[int, list[Process]] = {}
    for entry in among:
        children.setdefault(entry.parent_pid, []).append(entry)
    found: list[Process] = []
    parents = [pid]
    while parents:
        below = children.pop(parents.pop(), [])
        found.extend(below)
        parents.extend(entry.pid for entry in below)
    return found


def left_behind(mark: str, workers: Collection[tuple[int, int]], among: Iterable[Process]) -> Iterator[Process]:
    """What is left of a run whose shepherd is gone: its workers, their sessions, and who carries its mark."""
    among = list(among)
    alive = {entry.pid for entry in among if (entry.pid, entry.started_ticks) in workers}
    for entry in among:
        if entry.pid in alive or entry.session in alive or _carries(entry.pid, f"{RUN_MARK}={mark}".encode()):
            yield entry


def _carries(pid: int, variable: bytes) -> bool:
    try:
        return variable in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for this signal, rather than to die of it or to ignore it."""
    try:
        status = (_PROC / str(pid) / "status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def describe(entry: Process) -> str:
    """What the kernel tells about a process that cannot tell its stacks itself."""
    words = []
    for name in ("cmdline", "wchan"):
        try:
            words.append((_PROC / str(entry.pid) / name).read_text(errors="replace").replace("\0", " ").strip())
        except OSError:
            words.append("")
    where = words[1] if words[1] not in ("", "0") else "user space, or it is not told"
    return f"pid {entry.pid} ({words[0][:200]}) is in state {entry.state}, in {where}"


def proportional_bytes(pid: int) -> int:
    """Memory of a process, where pages that several share count once in all; slow for large ones."""
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)


def send(target: Process, number: int) -> bool:
    """Signal exactly this process, never one that has its pid by now; False: it is gone."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    try:
        current = process(target.pid)
        if current is None or current.started_ticks != target.started_ticks:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def boot_id() -> str:
    """Another one after each start of the machine: pids of before mean nothing then."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
