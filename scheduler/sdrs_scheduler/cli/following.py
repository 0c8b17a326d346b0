"""Follow jobs until they are over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sdrs_core.errors import UnavailableError
from sdrs_scheduler import keys
from sdrs_scheduler.jobs.job import Job, JobState
from sdrs_scheduler.ledger import Ledger

# A controller that is replaced is back within this time.
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 10.0


def follow(ledger: Ledger, job_ids: Sequence[str], tell: Callable[[Job], None]) -> list[Job]:
    """Returns the jobs once all are over; ``tell`` hears of each at first, and whenever state or reason change."""
    seen: dict[str, tuple[JobState, str]] = {}
    revision = 0
    heard = time.monotonic()
    while True:
        try:
            jobs = [ledger.job(job_id).value for job_id in job_ids]
            heard = time.monotonic()
            for job in jobs:
                if seen.get(job.id) != (job.state, job.why):
                    seen[job.id] = (job.state, job.why)
                    tell(job)
            if all(job.state.is_over for job in jobs):
                return jobs
            prefix = keys.job(job_ids[0]) if len(job_ids) == 1 else keys.JOBS
            revision = ledger.records.wait(prefix, revision, _POLL_SECONDS)
        except UnavailableError:
            if time.monotonic() - heard > _PATIENCE_SECONDS:
                raise
            time.sleep(1)
