"""What running jobs are told (notes ``orders/JOB/ATTEMPT``): to save, because they are to go, and how often to save.

Notes are lost with their controller, so they are posted again and again.
"""

from __future__ import annotations

import json

from sdrs_scheduler import keys
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.errands import Errands, Outcome
from sdrs_scheduler.jobs.job import Attempt, Job
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.record_store import RecordStore

log = get_log("ordering")

_AGAIN_SECONDS = 2.0


class Orders:
    def __init__(self, records: RecordStore, errands: Errands, clock: Clock) -> None:
        self._records = records
        self._errands = errands
        self._clock = clock
        self._posted: dict[str, tuple[float, bytes]] = {}

    def forget(self) -> None:
        self._posted = {}

    def warn(self, job: Job, attempt: Attempt, deadline_unix_ms: int) -> None:
        self._post(attempt, save=True, deadline_unix_ms=deadline_unix_ms, interval_seconds=0.0)

    def advise(self, attempt: Attempt, interval_seconds: float) -> None:
        self._post(attempt, save=False, deadline_unix_ms=0, interval_seconds=interval_seconds)

    def drop(self, attempt: Attempt) -> None:
        self._posted.pop(keys.orders(attempt.job_id, attempt.number), None)

    def _post(self, attempt: Attempt, *, save: bool, deadline_unix_ms: int, interval_seconds: float) -> None:
        key = keys.orders(attempt.job_id, attempt.number)
        order = {"save": save, "deadline_unix_ms": deadline_unix_ms, "interval_seconds": round(interval_seconds, 3)}
        value = json.dumps(order).encode()
        now = self._clock.monotonic()
        last = self._posted.get(key)
        if last is not None and last[1] == value and now - last[0] < _AGAIN_SECONDS:
            return

        def done(outcome: Outcome[object]) -> None:
            if outcome.error is not None:
                self._posted.pop(key, None)
                log.warning("orders_not_posted", key=key, why=str(outcome.error))

        if self._errands.run(key, lambda: self._records.post(key, value), done):
            self._posted[key] = (now, value)
