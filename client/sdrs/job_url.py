"""A job by its URL, for adapters whose users name everything by one string."""

from __future__ import annotations

from sdrs.address import parse_job_url
from sdrs.checkpoints import Checkpoints
from sdrs.cluster import connect
from sdrs.save.compression import Compress


def open_job(
    url: str, *, pool: str | None = None, level: str | None = None, compress: Compress | None = None
) -> Checkpoints:
    """Connect to the cluster that ``url`` names, and take its job."""
    cluster, job, _ = parse_job_url(url)
    return connect(cluster).checkpoints(job, pool=pool, level=level, compress=compress)
