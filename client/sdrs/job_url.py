"""``sdrs://host:port[,host:port]/job/...``: a cluster, and what is in it. Without a host it is the default cluster."""

from __future__ import annotations

from sdrs.checkpoints import Checkpoints
from sdrs.cluster import connect
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import check_step

SCHEME = "sdrs://"


def split_url(url: str) -> tuple[str, str]:
    """Hosts (empty: the default cluster) and path. What is no URL is a path."""
    if not url.startswith(SCHEME):
        return "", url.strip("/")
    hosts, _, path = url[len(SCHEME) :].partition("/")
    return hosts, path.strip("/")


def split_job(url: str) -> tuple[str, str, int | None]:
    """Hosts, job, and step if one is named."""
    hosts, path = split_url(url)
    job, _, step = path.partition("/")
    if not url.startswith(SCHEME) or not job or not (step.isdecimal() or not step):
        raise InvalidArgumentError(f"{url!r} names no job: use sdrs://host:port/job, or sdrs://host:port/job/step")
    return hosts, job, check_step(int(step)) if step else None


def open_job(url: str, *, pool: str | None = None, level: str | None = None) -> Checkpoints:
    """Connect to the cluster that ``url`` names, and take its job."""
    hosts, job, _ = split_job(url)
    return connect(f"{SCHEME}{hosts}" if hosts else None).checkpoints(job, pool=pool, level=level)
