"""Waking the loop when somebody changes a job, so that it need not look all the time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sdrs_core.errors import SdrsError
from sdrs_scheduler import keys
from sdrs_scheduler.record_store import RecordStore

_WATCH_SECONDS = 20.0
_PAUSE_SECONDS = 1.0


class Watch:
    def __init__(self, records: RecordStore, wake: Callable[[], None]) -> None:
        self._records = records
        self._wake = wake
        self._stopped = threading.Event()
        # A daemon: the long poll that it is in may take its time, and nobody waits for that.
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        revision = 0
        while not self._stopped.is_set():
            try:
                newest = self._records.wait(keys.JOBS, revision, _WATCH_SECONDS)
            except SdrsError:
                self._stopped.wait(_PAUSE_SECONDS)
                continue
            if newest != revision:
                revision = newest
                self._wake()
