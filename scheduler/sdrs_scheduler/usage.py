"""Who has used how much of late: GPU-seconds by user and tenant, halved again and again. Fair share goes by it."""

from __future__ import annotations

from collections.abc import Iterable

from sdrs_scheduler.entries import Usage
from sdrs_scheduler.jobs.job import Job

HALF_LIFE_SECONDS = 24 * 3600.0
_FORGOTTEN_GPU_SECONDS = 1.0


def used(usage: Usage, running: Iterable[Job], now_unix_ms: int) -> Usage:
    """``usage`` at this moment, if ``running`` ran since it was last counted."""
    seconds = max(0, now_unix_ms - usage.unix_ms) / 1000 if usage.unix_ms else 0.0
    decay = 0.5 ** (seconds / HALF_LIFE_SECONDS)
    by_user = {user: amount * decay for user, amount in usage.by_user.items()}
    by_tenant = {tenant: amount * decay for tenant, amount in usage.by_tenant.items()}
    for job in running:
        gpu_seconds = seconds * sum(len(slot.gpus) for slot in job.slots)
        by_user[job.user] = by_user.get(job.user, 0.0) + gpu_seconds
        if job.spec.tenant:
            by_tenant[job.spec.tenant] = by_tenant.get(job.spec.tenant, 0.0) + gpu_seconds
    return Usage(now_unix_ms, _without_traces(by_user), _without_traces(by_tenant))


def _without_traces(amounts: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount >= _FORGOTTEN_GPU_SECONDS}
