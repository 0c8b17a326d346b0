"""The async twin: the same names as in ``sdrs``, awaitable.

::

    async with sdrs.aio.connect() as cluster:
        checkpoints = cluster.checkpoints("llm-7b")
        saving = await checkpoints.save(step=1000, state=state)
        await saving.wait()

Each call runs the sync one in a bounded pool of threads, so there is one implementation of everything. A cancelled call
raises CancelledError at once; what it had begun ends in its thread, as it would after a lost connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from sdrs import checkpoints as sync_checkpoints
from sdrs import cluster as sync_cluster
from sdrs import saving as sync_saving
from sdrs.restore import parts as sync_parts
from sdrs.save.compression import Compress
from sdrs.save.policy import DEFAULT_MAX_IN_FLIGHT, OnError, OnFull
from sdrs_core.attempts import Attempt
from sdrs_core.checkpoints import Save as Checkpoint
from sdrs_core.levels import Level

# Ranks that restore together wait for each other, so all that run in one process must fit.
MAX_THREADS = 64

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


async def _run(pool: ThreadPoolExecutor, call: Callable[[], R]) -> R:
    return await asyncio.get_running_loop().run_in_executor(pool, call)


class _Twin(Generic[S]):
    def __init__(self, sync: S, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    def __repr__(self) -> str:
        return f"<async {self._sync!r}>"


def _awaitable(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[_Twin[S], P], Coroutine[Any, Any, R]]:
    async def call(self: _Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await _run(self._pool, partial(method, self._sync, *args, **kwargs))

    return _named_as(call, method)


def _starts_saving(
    method: Callable[Concatenate[S, P], sync_saving.Saving],
) -> Callable[Concatenate[_Twin[S], P], Coroutine[Any, Any, Saving]]:
    async def call(self: _Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> Saving:
        return Saving(await _run(self._pool, partial(method, self._sync, *args, **kwargs)), self._pool)

    return _named_as(call, method)


def _named_as(call: R, method: Any) -> R:
    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(call, name, getattr(method, name))
    return call


class Saving(_Twin[sync_saving.Saving]):
    @property
    def step(self) -> int:
        return self._sync.step

    @property
    def skipped(self) -> bool:
        return self._sync.skipped

    async def wait(self, level: str | Level | None = None, timeout: float | None = None) -> Checkpoint:
        """As the sync one, without a thread that waits for the commit."""
        started = time.monotonic()
        await _run(self._pool, partial(self._sync.check_level, level))
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ended.set)

        self._sync.outcome.add_done_callback(wake)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await ended.wait()
        if level is None:
            return self._sync.settle(timeout)
        deadline = None if timeout is None else started + timeout
        return await _run(self._pool, partial(self._sync.settle, timeout, level, deadline))

    def done(self) -> bool:
        return self._sync.done()

    def progress(self) -> sync_saving.Progress:
        return self._sync.progress()

    def exception(self) -> BaseException | None:
        return self._sync.exception()


class OpenShard(_Twin[sync_parts.OpenShard]):
    @property
    def checkpoint(self) -> Checkpoint:
        return self._sync.checkpoint

    @property
    def rank(self) -> int:
        return self._sync.rank

    @property
    def read_bytes(self) -> int:
        return self._sync.read_bytes

    parts = _awaitable(sync_parts.OpenShard.parts)
    read = _awaitable(sync_parts.OpenShard.read)
    array = _awaitable(sync_parts.OpenShard.array)


class Checkpoints(_Twin[sync_checkpoints.Checkpoints]):
    @property
    def job(self) -> str:
        return self._sync.job

    @property
    def skipped_count(self) -> int:
        return self._sync.skipped_count

    save = _starts_saving(sync_checkpoints.Checkpoints.save)
    save_files = _starts_saving(sync_checkpoints.Checkpoints.save_files)
    restore = _awaitable(sync_checkpoints.Checkpoints.restore)
    restore_files = _awaitable(sync_checkpoints.Checkpoints.restore_files)

    async def open(self, step: int | None = None, *, rank: int = 0) -> OpenShard:
        """As the sync one."""
        return OpenShard(await _run(self._pool, partial(self._sync.open, step, rank=rank)), self._pool)

    export_state = _awaitable(sync_checkpoints.Checkpoints.export_state)
    list = _awaitable(sync_checkpoints.Checkpoints.list)
    latest = _awaitable(sync_checkpoints.Checkpoints.latest)
    get = _awaitable(sync_checkpoints.Checkpoints.get)
    shards = _awaitable(sync_checkpoints.Checkpoints.shards)
    delete = _awaitable(sync_checkpoints.Checkpoints.delete)
    undelete = _awaitable(sync_checkpoints.Checkpoints.undelete)
    hold = _awaitable(sync_checkpoints.Checkpoints.hold)
    release = _awaitable(sync_checkpoints.Checkpoints.release)
    verify = _awaitable(sync_checkpoints.Checkpoints.verify)
    # Warnings by signals are taken once the main thread has called ``sdrs.current_job()``.
    should_save = _awaitable(sync_checkpoints.Checkpoints.should_save)


class Cluster(_Twin[sync_cluster.Cluster]):
    @property
    def url(self) -> str:
        return self._sync.url

    @property
    def id(self) -> str:
        return self._sync.id

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
        """As the sync one; ``on_error`` is called with the sync ``Saving``, in a thread."""
        found = self._sync.checkpoints(
            job,
            pool=pool,
            level=level,
            attempt=attempt,
            on_full=on_full,
            max_in_flight=max_in_flight,
            on_error=on_error,
            raise_errors=raise_errors,
            compress=compress,
        )
        return Checkpoints(found, self._pool)

    info = _awaitable(sync_cluster.Cluster.info)
    nodes = _awaitable(sync_cluster.Cluster.nodes)
    node = _awaitable(sync_cluster.Cluster.node)
    pools = _awaitable(sync_cluster.Cluster.pools)
    pool = _awaitable(sync_cluster.Cluster.pool)
    create_pool = _awaitable(sync_cluster.Cluster.create_pool)
    update_pool = _awaitable(sync_cluster.Cluster.update_pool)
    expand_pool = _awaitable(sync_cluster.Cluster.expand_pool)
    shrink_pool = _awaitable(sync_cluster.Cluster.shrink_pool)
    delete_pool = _awaitable(sync_cluster.Cluster.delete_pool)
    jobs = _awaitable(sync_cluster.Cluster.jobs)
    open_attempt = _awaitable(sync_cluster.Cluster.open_attempt)
    groups = _awaitable(sync_cluster.Cluster.groups)
    group = _awaitable(sync_cluster.Cluster.group)
    switchover = _awaitable(sync_cluster.Cluster.switchover)
    failover = _awaitable(sync_cluster.Cluster.failover)
    pause = _awaitable(sync_cluster.Cluster.pause)
    resume = _awaitable(sync_cluster.Cluster.resume)
    cordon = _awaitable(sync_cluster.Cluster.cordon)
    uncordon = _awaitable(sync_cluster.Cluster.uncordon)
    history = _awaitable(sync_cluster.Cluster.history)
    node_status = _awaitable(sync_cluster.Cluster.node_status)
    drain_node = _awaitable(sync_cluster.Cluster.drain_node)
    remove_node = _awaitable(sync_cluster.Cluster.remove_node)
    ok_to_stop = _awaitable(sync_cluster.Cluster.ok_to_stop)
    safe_to_destroy = _awaitable(sync_cluster.Cluster.safe_to_destroy)
    disks = _awaitable(sync_cluster.Cluster.disks)
    drain_disk = _awaitable(sync_cluster.Cluster.drain_disk)
    replace_disk = _awaitable(sync_cluster.Cluster.replace_disk)
    repair = _awaitable(sync_cluster.Cluster.repair)
    set_repair = _awaitable(sync_cluster.Cluster.set_repair)
    start_scrub = _awaitable(sync_cluster.Cluster.start_scrub)
    stop_scrub = _awaitable(sync_cluster.Cluster.stop_scrub)
    scrub_status = _awaitable(sync_cluster.Cluster.scrub_status)
    export_meta = _awaitable(sync_cluster.Cluster.export_meta)
    import_meta = _awaitable(sync_cluster.Cluster.import_meta)
    rebuild_meta = _awaitable(sync_cluster.Cluster.rebuild_meta)

    async def close(self) -> None:
        try:
            await _run(self._pool, self._sync.close)
        finally:
            self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await _run(self._pool, partial(self._sync.__exit__, kind, error, trace))
        finally:
            self._pool.shutdown(wait=False)


class _Connecting:
    """What ``connect`` gives: to be awaited, or entered at once."""

    def __init__(self, call: Callable[[], sync_cluster.Cluster]) -> None:
        self._call = call
        self._cluster: Cluster | None = None

    def __await__(self) -> Generator[Any, None, Cluster]:
        return self._connect().__await__()

    async def _connect(self) -> Cluster:
        pool = ThreadPoolExecutor(MAX_THREADS, "sdrs-aio")
        try:
            return Cluster(await _run(pool, self._call), pool)
        except BaseException:
            pool.shutdown(wait=False)
            raise

    async def __aenter__(self) -> Cluster:
        self._cluster = await self._connect()
        return self._cluster

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster:
            await self._cluster.__aexit__(kind, error, trace)


def connect(url: str | None = None, *, timeout_seconds: float = 10.0, staging_bytes: int | None = None) -> _Connecting:
    """``cluster = await connect()``, or ``async with connect() as cluster``."""
    return _Connecting(partial(sync_cluster.connect, url, timeout_seconds=timeout_seconds, staging_bytes=staging_bytes))
