"""A cluster as its users see it."""

from __future__ import annotations

import logging
import os
from types import TracebackType

from sdrs import forks
from sdrs.address import cluster_url, listens, parse_url
from sdrs.backups import Backups
from sdrs.checkpoints import Checkpoints
from sdrs.operations import Operations
from sdrs.pools import Pools
from sdrs.process import Process, Settings
from sdrs.records import Records
from sdrs.rpc.channels import Channels
from sdrs.rpc.control import Control
from sdrs.save.compression import Compress, resolve_compression
from sdrs.save.policy import DEFAULT_MAX_IN_FLIGHT, OnError, OnFull, SavePolicy
from sdrs.scrubs import Scrubs
from sdrs.upkeep import Upkeep
from sdrs.views import ClusterInfo, JobInfo, cluster_info_from
from sdrs_core.attempts import Attempt
from sdrs_core.cluster import DEFAULT_POOL, Group, Node
from sdrs_core.errors import DeadlineExceededError, InvalidArgumentError, RefusedError, SdrsError, UnavailableError
from sdrs_core.ids import ClusterId, JobName, PoolName, check_name, random_id
from sdrs_core.levels import Level, parse_level
from sdrs_proto.convert import attempt_to, node_from
from sdrs_proto.v1 import control_pb2 as messages
from sdrs_proto.v1 import schedule_pb2 as schedule_messages

DEFAULT_STAGING_BYTES = 256 << 20
# How long close() waits for saves under way.
CLOSE_SECONDS = 30.0

log = logging.getLogger("sdrs")


def connect(url: str | None = None, *, timeout_seconds: float = 10.0, staging_bytes: int | None = None) -> Cluster:
    """Connect to the cluster at ``url``, else at SDRS_URL, else on this machine.

    ``timeout_seconds`` is how long a controller that is out of reach is waited for in later calls. Here each is asked
    once, unless one of them is about to become the active one. ``staging_bytes`` (else SDRS_STAGING_BYTES)
    bounds the memory into which saves are copied: that of this host's daemon, which has a bound of its own too, and
    where none stages for this process, its own (256 MiB unless given). With 0 restores leave the daemon's memory alone
    as well, and read from disks.
    """
    url = cluster_url(url)
    addresses = parse_url(url)
    channels = Channels()
    try:
        info = _first_contact(Control(channels, addresses, timeout_seconds), addresses)
    except (UnavailableError, DeadlineExceededError) as error:
        raise UnavailableError(
            f"no controller answers at {url}: start a cluster on this machine with `sdrs up`, or set SDRS_URL "
            f"to a running one ({error})",
            url=url,
        ) from error
    finally:
        channels.close()
    given = _staging_budget() if staging_bytes is None else staging_bytes
    budget = DEFAULT_STAGING_BYTES if given is None else given
    settings = Settings(addresses, timeout_seconds, budget, given is not None, info.save_ttl_seconds)
    return Cluster(url, info.id, settings)


def _first_contact(control: Control, addresses: tuple[str, ...]) -> ClusterInfo:
    try:
        found = control.call("get_cluster", messages.GetClusterRequest(), patience_seconds=0.0)
    except (UnavailableError, DeadlineExceededError) as error:
        # One that says itself that it is not active will be soon: it starts, or takes over from one that was lost.
        # Of several, the last that was asked may be the lost one.
        says_so = "peer" not in error.facts
        if not says_so and (len(addresses) == 1 or not any(listens(address) for address in addresses)):
            raise
        found = control.call("get_cluster", messages.GetClusterRequest())
    return cluster_info_from(found)


def _staging_budget() -> int | None:
    text = os.environ.get("SDRS_STAGING_BYTES", "")
    if not text:
        return None
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"SDRS_STAGING_BYTES is {text!r}: give a whole number of bytes, 268435456 for example"
        )
    return int(text)


class Cluster(Pools, Operations, Upkeep, Scrubs):
    """Made by ``connect``; may be used from several threads, and after a fork."""

    def __init__(self, url: str, cluster_id: ClusterId, settings: Settings) -> None:
        self.url = url
        self.id = cluster_id
        self._settings = settings
        self._is_closed = False
        # What belongs to processes that this one was forked from stays here untouched: to free it would be to use it.
        self._processes: dict[int, Process] = {}

    def checkpoints(
        self,
        job: str,
        *,
        pool: str | None = None,
        level: str | Level | None = None,
        attempt: str | int | Attempt | None = None,
        on_full: OnFull = "block",
        max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
        on_error: OnError | None = None,
        raise_errors: bool = True,
        compress: Compress | None = None,
    ) -> Checkpoints:
        """The history of one job. ``pool`` and ``level`` say where its saves go, ``attempt`` who saves (P1).

        When ``max_in_flight`` saves are not stored yet, or earlier ones fill the staging, ``on_full`` says what the
        next one does: ``"block"`` waits, ``"skip"`` leaves it out (``saving.skipped``, logged, counted in
        ``skipped_count``), ``"fail"`` raises. A save that fails after ``save`` has returned is told to
        ``on_error(saving, error)``, and raised by the next ``save`` or ``close``; with ``raise_errors=False`` never:
        what cannot be stored then does not stop the training.

        ``compress="zstd"`` (else SDRS_COMPRESS) stores saves compressed where that pays, which is measured for each
        blob; ``"none"`` does not, whatever the environment says.
        """
        return Checkpoints(
            self,
            JobName(check_name(job, "job")),
            pool=PoolName(check_name(pool, "pool")) if pool else DEFAULT_POOL,
            level=parse_level(level) if level is not None else Level.NONE,
            attempt=attempt,
            policy=SavePolicy(on_full, max_in_flight, on_error, raise_errors),
            compression=resolve_compression(compress),
        )

    @property
    def backups(self) -> Backups:
        """Backups in buckets: targets, policies, runs."""
        return Backups(self.process)

    @property
    def records(self) -> Records:
        """What a scheduler keeps here: records and notes."""
        return Records(self.process)

    def open_attempt(self, history: str, attempt: Attempt) -> int:
        """Make ``attempt`` the current one of a history before any of its ranks speaks; its number (P1).

        Repeating it is harmless. From here on what an older attempt does is refused, and so is this if a newer one was
        heard: StaleAttemptError.
        """
        request = schedule_messages.OpenAttemptRequest(
            request_id=random_id(), job=check_name(history, "job"), attempt=attempt_to(attempt)
        )
        number: int = self.process().control.call("open_attempt", request).number
        return number

    def info(self) -> ClusterInfo:
        return cluster_info_from(self.process().control.call("get_cluster", messages.GetClusterRequest()))

    def nodes(self) -> list[Node]:
        pages = self.process().control.pages("list_nodes", messages.ListNodesRequest())
        return [node_from(node) for page in pages for node in page.nodes]

    def node(self, node_id: str) -> tuple[Node, list[Group]]:
        """A node and the groups that it is a member of."""
        status = self.node_status(node_id)
        return status.node, list(status.groups)

    def jobs(self) -> list[JobInfo]:
        pages = self.process().control.pages("list_jobs", messages.ListJobsRequest())
        return [JobInfo(JobName(job.job), job.attempt, job.attempt_owner) for page in pages for job in page.jobs]

    def process(self) -> Process:
        """What this process keeps for the cluster; made anew after a fork, without touching the parent's."""
        if self._is_closed:
            raise RefusedError(f"the connection to {self.url} is closed: connect again")
        generation = forks.generation()
        if generation not in self._processes:
            # No lock, which a thread of the parent could have held: of two that race here the first one stays.
            self._processes.setdefault(generation, Process(self._settings))
        return self._processes[generation]

    def close(self) -> None:
        """Wait for saves under way, raise what failed and was not seen yet, and disconnect."""
        process = self._processes.get(forks.generation())
        if process is None or self._is_closed:
            self._is_closed = True
            return
        self._is_closed = True
        # If this times out the connections stay: what is under way goes on.
        process.saves.finish(CLOSE_SECONDS)
        process.stage.close()
        process.channels.close()
        process.saves.raise_unseen()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SdrsError as failure:
            if error is None:
                raise
            # What the caller is raising comes first.
            log.error("closing %s: %s", self.url, failure)

    def __repr__(self) -> str:
        return f"<Cluster {self.id} at {self.url}>"
