"""The start of an attempt: the contract with the job, and the order for its executor."""

from __future__ import annotations

from collections.abc import Mapping

from sdrs_scheduler.executors.executor import LaunchOrder
from sdrs_scheduler.jobs.job import Attempt, Job


def contract(job: Job, attempt: Attempt, url: str) -> Mapping[str, str]:
    """What a job finds in its environment; what differs by node its executor adds."""
    wish = job.spec.checkpoint
    environment = {
        **job.spec.environment,
        "SDRS_JOB_ID": job.id,
        "SDRS_JOB_NAME": job.spec.name,
        "SDRS_ATTEMPT": str(attempt.number),
        "SDRS_RESUME_STEP": "" if attempt.resume_step is None else str(attempt.resume_step),
        "SDRS_GRACE_SECONDS": f"{wish.grace_seconds:g}",
        "SDRS_URL": url,
        "SDRS_HISTORY": job.spec.history,
        "SDRS_POOL": wish.pool,
        "SDRS_LEVEL": wish.level,
    }
    if wish.interval_seconds:
        environment["SDRS_SAVE_INTERVAL_SECONDS"] = f"{wish.interval_seconds:g}"
    return environment


def launch_order(job: Job, attempt: Attempt, url: str) -> LaunchOrder:
    spec = job.spec
    return LaunchOrder(
        run=attempt.run,
        command=spec.command,
        slots=attempt.slots,
        launch=spec.launch,
        workdir=spec.workdir,
        environment=contract(job, attempt, url),
        grace_seconds=spec.checkpoint.grace_seconds,
        cpus_per_node=spec.resources.cpus_per_node,
        memory_bytes_per_node=spec.resources.memory_bytes_per_node,
        exclusive=spec.resources.exclusive,
        time_limit_seconds=spec.time_limit_seconds,
        excluded_nodes=job.excluded_nodes,
        signal=spec.checkpoint.signal,
        gpu_type=spec.resources.gpu_type,
    )
