"""How full a disk is, and who may still write to it.

Space is reserved before it is written: a check against the thresholds, then ``posix_fallocate``. Between the two, and
only there, statvfs does not show it, and a counter does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdrs_core.cluster import DiskState
from sdrs_core.errors import FullError, InvalidArgumentError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Proportions of the capacity: warn above the first, refuse new data above the second."""

    near_full: float = 0.85
    full: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.near_full <= self.full <= 1:
            raise InvalidArgumentError(
                f"near_full {self.near_full} and full {self.full} are not thresholds: use 0 < near_full <= full <= 1"
            )


class Space:
    """The accounts of one disk.

    ``capacity_bytes`` sets a limit of its own in place of the filesystem's size; then what counts as used is what
    SDRS stores: ``stored_bytes()`` and the files that are being written.
    """

    def __init__(
        self, folder: Path, thresholds: Thresholds, capacity_bytes: int | None, stored_bytes: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._thresholds = thresholds
        self._capacity_bytes = capacity_bytes
        self._stored_bytes = stored_bytes
        self._lock = threading.Lock()
        self._allocating = threading.Lock()
        self._pending_bytes = 0  # reserved, not yet allocated
        self._writing_bytes = 0  # allocated to files that are not finished

    def measure(self) -> tuple[int, int]:
        """(capacity, used) in bytes, reservations included."""
        with self._lock:
            return self._measure()

    def _measure(self) -> tuple[int, int]:
        if self._capacity_bytes is not None:
            return self._capacity_bytes, self._stored_bytes() + self._writing_bytes + self._pending_bytes
        stat = os.statvfs(self._folder)
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        # As df counts: blocks kept back for root are neither used nor usable.
        return used + stat.f_bavail * stat.f_frsize, used + self._pending_bytes

    def room_bytes(self) -> int:
        capacity, used = self.measure()
        return max(0, int(capacity * self._thresholds.full) - used)

    def state(self) -> DiskState:
        capacity, used = self.measure()
        if used >= capacity * self._thresholds.full:
            return DiskState.FULL
        return DiskState.NEAR_FULL if used >= capacity * self._thresholds.near_full else DiskState.OK

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Make ``length`` bytes of the file at ``offset`` ours, or raise FullError (or what the filesystem says)."""
        # One at a time: what is allocated just now is counted twice, and must keep nobody else from what is free.
        with self._allocating:
            with self._lock:
                capacity, used = self._measure()
                if used + length > capacity * self._thresholds.full:
                    raise self._full(capacity, used, length)
                self._pending_bytes += length
            try:
                os.posix_fallocate(fd, offset, length)
            except OSError:
                with self._lock:
                    self._pending_bytes -= length
                raise
            with self._lock:
                self._pending_bytes -= length
                self._writing_bytes += length

    def settle(self, length: int) -> None:
        """A file of ``length`` allocated bytes was finished or removed: from now on others count it."""
        with self._lock:
            self._writing_bytes -= length

    def full_error(self) -> FullError:
        """For an ENOSPC that came in spite of the thresholds."""
        return self._full(*self.measure(), length=0)

    def _full(self, capacity: int, used: int, length: int) -> FullError:
        percent = 100 * used / capacity if capacity else 100.0
        wanted = f" and {length / _MIB:.1f} MiB more were asked for" if length else ""
        return FullError(
            f"disk {self._folder} is full: {percent:.1f} % of {capacity / _MIB:.1f} MiB are used{wanted}, "
            f"writing stops at {100 * self._thresholds.full:.0f} %: delete checkpoints, free space or add a disk",
            path=self._folder,
            capacity_bytes=capacity,
            used_bytes=used,
        )
