"""Where a cluster is: ``sdrs://host:port[,host:port]``, and a job or a checkpoint in it: ``.../job[/step]``."""

from __future__ import annotations

import os
import re
import socket

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import check_name, check_step

DEFAULT_URL = "sdrs://127.0.0.1:7070"
DEFAULT_PORT = 7070
_PROBE_SECONDS = 1.0
SCHEME = "sdrs://"
# A name, an IPv4 address or an IPv6 address in brackets; then perhaps a port.
_ADDRESS = re.compile(
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?\Z"
)


def cluster_url(given: str | None) -> str:
    """What the caller gave, else SDRS_URL, else the cluster that ``sdrs up`` starts on this machine."""
    return given or os.environ.get("SDRS_URL", "") or DEFAULT_URL


def parse_url(url: str) -> tuple[str, ...]:
    """The controllers' addresses as ``host:port``, in the order in which they are tried."""
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise _malformed(url, f"it does not start with {SCHEME}")
    rest = url[len(SCHEME) :].removesuffix("/")
    if "/" in rest:
        raise _malformed(url, "it has a path: jobs are named with checkpoints(job), steps with save and restore")
    return tuple(_parse_address(url, part) for part in rest.split(","))


def split_url(url: str) -> tuple[str, str]:
    """Hosts (empty: the default cluster) and path. What is no URL is a path."""
    if not url.startswith(SCHEME):
        return "", url.strip("/")
    hosts, _, path = url[len(SCHEME) :].partition("/")
    return hosts, path.strip("/")


def parse_job_url(url: str) -> tuple[str | None, str, int | None]:
    """``sdrs://host:port/job[/step]`` as (cluster, job, step); the cluster of ``sdrs:///job`` is None: SDRS_URL's."""
    if not isinstance(url, str) or not url.startswith(SCHEME):
        raise _malformed_job(url, f"it does not start with {SCHEME}")
    hosts, path = split_url(url)
    job, *steps = path.split("/")
    if not job or len(steps) > 1:
        raise _malformed_job(url, "a job, or a job and a step, are expected after the cluster")
    if not all(step.isascii() and step.isdigit() for step in steps):
        raise _malformed_job(url, f"the step {steps[0]!r} is not a whole number")
    cluster = f"{SCHEME}{hosts}" if hosts else None
    if cluster is not None:
        parse_url(cluster)
    return cluster, check_name(job, "job"), check_step(int(steps[0])) if steps else None


def parse_checkpoint_url(url: str) -> tuple[str | None, str, int]:
    """The same where a step must be named."""
    cluster, job, step = parse_job_url(url)
    if step is None:
        raise InvalidArgumentError(f"{url!r} names no step of its job: use {url.rstrip('/')}/STEP")
    return cluster, job, step


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` for a socket; brackets of an IPv6 address are taken off."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _parse_address(url: str, part: str) -> str:
    match = _ADDRESS.match(part)
    if match is None:
        raise _malformed(url, f"{part!r} is not host:port" if part else "a host is missing")
    port = int(match["port"] or DEFAULT_PORT)
    if not 1 <= port <= 65535:
        raise _malformed(url, f"port {port} does not exist")
    return f"{match['host']}:{port}"


def _malformed(url: object, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{url!r} is not the address of a cluster: {what}. Use sdrs://host:port, or sdrs://host1:port,host2:port "
        "with several controllers"
    )


def _malformed_job(url: object, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{url!r} names no job: {what}. Use sdrs://host:port/job or sdrs://host:port/job/step; without a host it is "
        "the cluster of SDRS_URL"
    )


def listens(address: str) -> bool:
    """Whether anybody takes connections there."""
    try:
        socket.create_connection(split_address(address), _PROBE_SECONDS).close()
    except OSError:
        return False
    return True
