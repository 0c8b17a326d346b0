"""A job by its URL, for adapters whose users name everything by one string."""

from __future__ import annotations

from sdrs.address import cluster_url, parse_job_url
from sdrs.checkpoints import Checkpoints
from sdrs.cluster import connect
from sdrs.job.current import CurrentJob, current_job
from sdrs.save.compression import Compress
from sdrs_core.errors import InvalidArgumentError


def resolve_job_url(given: str | None) -> str:
    """What was given, else the history of the job that this process belongs to."""
    if given is None:
        job = current_job()
        if job is None:
            raise InvalidArgumentError(
                "no URL was given, and this process belongs to no job: give sdrs://host:port/job, or start it with "
                "`sdrs job submit`"
            )
        return f"{cluster_url(None).rstrip('/')}/{job.history}"
    parse_job_url(given)
    return given


def open_job(
    url: str, *, pool: str | None = None, level: str | None = None, compress: Compress | None = None
) -> Checkpoints:
    """Connect to the cluster that ``url`` names, and take its job; where its job file says, if it is this process's."""
    cluster, history, _ = parse_job_url(url)
    job = owner_of(history)
    if job:
        pool, level = pool or job.pool or None, level or job.level or None
    return connect(cluster).checkpoints(history, pool=pool, level=level, compress=compress)


def owner_of(history: str) -> CurrentJob | None:
    """The job that this process belongs to, if ``history`` is its own."""
    job = current_job()
    return job if job and job.history == history else None


def has_start(checkpoints: Checkpoints) -> bool:
    """Whether there is something to go on from: as the scheduler says, else whatever there is."""
    job = owner_of(checkpoints.job)
    return job.resume_step is not None if job else checkpoints.latest() is not None
