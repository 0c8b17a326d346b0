"""How clusters are run here, and what their processes cost: processor time and resident memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

# Clusters of tests collect all the time; this is how one is deployed.
AS_DEPLOYED = {"collect_interval_seconds": 30, "scan_interval_seconds": 600, "suspect_after_seconds": 2}
# Their nodes stage little, too: this holds two of the states that are measured.
STAGED = {"staging_bytes": 3 << 30}


def cpu_seconds(pids: Sequence[int]) -> float:
    times = (psutil.Process(pid).cpu_times() for pid in pids)
    return sum(time.user + time.system for time in times)


class PeakMemory:
    """The highest resident memory of a process while it is watched, without shared file pages."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before_bytes = self._resident()
        self.peak_bytes = self.before_bytes

    def _resident(self) -> int:
        fields = Path(f"/proc/{self._pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")

    def sample(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._resident())

    @property
    def grown_bytes(self) -> int:
        return self.peak_bytes - self.before_bytes


@contextmanager
def watching(*pids: int) -> Iterator[list[PeakMemory]]:
    peaks = [PeakMemory(pid) for pid in pids]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            for peak in peaks:
                peak.sample()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()
