"""Telling the controller what was found damaged or missing, beside the read that goes on with another holder.

The controller has the holder read the whole fragment again before it answers, which may take minutes. So a few threads
of the process wait for that; a reader that found no good copy at all waits with them, to fail after it was told.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from sdrs.rpc.control import Control
from sdrs_core.errors import SdrsError
from sdrs_proto.v1.control_pb2 import ReportDamageRequest

# I10. What is found beyond that is found again by the next reader, and by the node itself.
MAX_THREADS = 4
MAX_WAITING = 256

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Report:
    request: ReportDamageRequest
    wait_ms: int
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def key(self) -> _Key:
        return (self.request.save_id, self.request.blob_id, self.request.node_id)


class DamageReports:
    """Belongs to one process."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._waiting: deque[Report] = deque()
        # Waiting or under way: ranges of one blob find the same damage, which is told once.
        self._open: dict[_Key, Report] = {}
        self._thread_count = 0

    def send(self, request: ReportDamageRequest, wait_ms: int) -> threading.Event:
        """Have ``request`` sent; ``wait_ms`` is how long its answer may take. The event tells that it has ended."""
        report = Report(request, wait_ms)
        with self._lock:
            if report.key in self._open:
                return self._open[report.key].ended
            if len(self._waiting) >= MAX_WAITING:
                report.ended.set()
                return report.ended
            self._open[report.key] = report
            self._waiting.append(report)
            if self._thread_count < MAX_THREADS:
                self._start()
        return report.ended

    def _start(self) -> None:
        self._thread_count += 1
        try:
            threading.Thread(target=self._work, name="sdrs-report", daemon=True).start()
        except RuntimeError:  # an interpreter that is shutting down starts no more threads
            self._thread_count -= 1
            while self._waiting:
                self._end(self._waiting.popleft())

    def _work(self) -> None:
        while report := self._next():
            with suppress(SdrsError):  # the read goes on with another holder, or fails and says so
                self._control.call("report_damage", report.request, wait_ms=report.wait_ms, patience_seconds=0.0)
            with self._lock:
                self._end(report)

    def _next(self) -> Report | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread_count -= 1
            return None

    def _end(self, report: Report) -> None:
        del self._open[report.key]
        report.ended.set()
