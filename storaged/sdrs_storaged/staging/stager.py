"""What was sealed is carried out here, whether its process lives or not, and again after a restart of this daemon.

A shard ends in, or failed; either way its segment is its owner's again before that is told. Until all ranks of its save
are in, the save is kept alive (P13). Nothing ends without a word (I6): to its process, or else into the log.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from sdrs_core.backoff import backoff
from sdrs_core.checkpoints import SaveState
from sdrs_core.errors import InternalError, NotFoundError, SaveFailedError, SdrsError
from sdrs_proto.staging import BEAT_SECONDS
from sdrs_proto.v1.staging_pb2 import StagedShard
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log
from sdrs_storaged.metrics import StagingMetrics
from sdrs_storaged.staging.carrier import Carrier
from sdrs_storaged.staging.segment import Copy, Segment
from sdrs_storaged.staging.segments import Segments
from sdrs_storaged.staging.work import DaemonStopsError, Listener, Work

log = get_log("staging")

# Shards that are sent at once, each in a few streams; the others wait in their segments.
MAX_CARRIED = 4
# How long the save of a process that is gone is kept alive for ranks that are not in: they may be dead too.
FOLLOW_SECONDS = 3600.0
# I10: of those that are in, and wait for other ranks. Beyond it the oldest expire unless their process renews them.
MAX_FOLLOWED = 1024


class Stager:
    """``submit``, ``follow``, ``cancel`` and ``leave`` come from the threads of sessions."""

    def __init__(
        self,
        segments: Segments,
        carrier: Carrier,
        metrics: StagingMetrics,
        recovered: Sequence[tuple[StagedShard, Segment | None]] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """To be made on the event loop. ``recovered``: what an earlier run of this daemon was left with; processes may
        ask for it from here on, it is carried out when ``run`` is.
        """
        self._segments = segments
        self._carrier = carrier
        self._metrics = metrics
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(MAX_CARRIED)
        self._lock = threading.Lock()
        self._works: dict[str, Work] = {}
        self._carried: dict[str, asyncio.Task[None]] = {}
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._recovered = [self._add(shard, segment, None) for shard, segment in recovered]

    @property
    def waiting_count(self) -> int:
        """Sealed, and not in yet."""
        return len(self._carried)

    @property
    def oldest_waiting_seconds(self) -> float:
        return max((work.age_seconds for work in self._waiting()), default=0.0)

    def _waiting(self) -> list[Work]:
        with self._lock:
            return [work for staged_id, work in self._works.items() if staged_id in self._carried]

    async def run(self) -> None:
        for work in self._recovered:
            log.info("staged_save_found", save=work.title)
            if work.segment is None:
                self._keep_alive(work, work.shard.registered_save_id)
            else:
                self._start(work)
        try:
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                for work in self._waiting():
                    work.beat()
                await asyncio.to_thread(self._segments.tidy)
        finally:
            await self._stop()

    async def _stop(self) -> None:
        """What is sealed stays so, for the next start."""
        for work in self._works.values():
            work.stop(DaemonStopsError(f"{work.title} waits: its daemon is being stopped"))
        tasks = [*self._carried.values(), *self._followed.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # From sessions

    def submit(self, shard: StagedShard, segment: Segment, listener: Listener) -> None:
        work = self._add(shard, segment, listener)
        self._metrics.saves_staged.inc()
        self._metrics.staged_bytes.inc(work.total_bytes)
        self._loop.call_soon_threadsafe(self._start, work)

    def follow(self, staged_id: str, listener: Listener) -> None:
        with self._lock:
            work = self._works.get(staged_id)
        if work is None:
            raise NotFoundError(f"no shard {staged_id} is staged here: it ended, or was lost with a reboot")
        work.follow(listener)

    def cancel(self, staged_id: str, listener: Listener) -> None:
        with self._lock:
            work = self._works.get(staged_id)
        if work is not None and work.is_followed_by(listener):
            work.stop(SaveFailedError(f"{work.title} was cancelled by its process"))

    def leave(self, listener: Listener) -> None:
        with self._lock:
            works = list(self._works.values())
        for work in works:
            work.leave(listener)

    def _add(self, shard: StagedShard, segment: Segment | None, listener: Listener | None) -> Work:
        work = Work(shard, segment, listener, self._clock)
        with self._lock:
            self._works[shard.id] = work
        return work

    # On the event loop

    def _start(self, work: Work) -> None:
        task = self._carried[work.shard.id] = asyncio.ensure_future(self._carry(work))
        task.add_done_callback(lambda _: self._carried.pop(work.shard.id, None))

    async def _carry(self, work: Work) -> None:
        started = self._clock()
        try:
            async with self._slots:
                save_id, state = await self._carrier.carry(work)
        except DaemonStopsError:
            return
        except SdrsError as error:
            await self._fail(work, error)
            return
        except Exception as error:
            log.error("staged_save_broke", exc_info=error)
            await self._fail(work, InternalError(f"{work.title} failed by a defect of storaged"))
            return
        reach("stage.carried")
        work.shard.registered_save_id = save_id
        if state is SaveState.PENDING:
            await asyncio.to_thread(self._segments.record, work.shard)
        else:
            await asyncio.to_thread(self._segments.forget, work.shard)
        await self._release(work, Copy(save_id, work.shard.order.rank, work.shard.blobs, work.tables))
        elapsed_ms = int(1000 * (self._clock() - started))
        log.info("staged_save_in", save=work.title, size_bytes=work.total_bytes, elapsed_ms=elapsed_ms)
        if state is SaveState.PENDING:
            self._keep_alive(work, save_id)
        else:
            self._drop(work)
        work.end(None)

    async def _fail(self, work: Work, error: SdrsError) -> None:
        self._metrics.saves_failed.inc()
        log.error("staged_save_failed", save=work.title, why=error.message, process_is_gone=work.alone_seconds > 0)
        await asyncio.to_thread(self._segments.forget, work.shard)
        await self._release(work)
        self._drop(work)
        work.end(error)

    async def _release(self, work: Work, copy: Copy | None = None) -> None:
        """P12: every member has acknowledged, or nobody will; no thread reads it any more."""
        if work.segment is not None:
            segment, work.segment = work.segment, None
            await asyncio.to_thread(self._segments.release, segment, copy)

    def _drop(self, work: Work) -> None:
        with self._lock:
            self._works.pop(work.shard.id, None)

    def _keep_alive(self, work: Work, save_id: str) -> None:
        if len(self._followed) >= MAX_FOLLOWED:
            oldest = next(iter(self._followed))
            self._followed.pop(oldest).cancel()
            self._segments.forget(self._works[oldest].shard)
        task = self._followed[work.shard.id] = asyncio.ensure_future(self._renew(work, save_id))

        def ended(_: object) -> None:
            self._followed.pop(work.shard.id, None)
            self._drop(work)

        task.add_done_callback(ended)

    async def _renew(self, work: Work, save_id: str) -> None:
        """P13: until all ranks are in, whatever becomes of the process that was the first."""
        pauses = backoff()
        while work.alone_seconds < FOLLOW_SECONDS:
            try:
                state = await self._carrier.wait(work, save_id)
                pauses = backoff()
            except NotFoundError:
                break
            except SdrsError:
                await asyncio.sleep(next(pauses))
                continue
            if state is not SaveState.PENDING:
                break
        await asyncio.to_thread(self._segments.forget, work.shard)
