"""Runs: backing up, verifying, pruning, importing. One at a time for each target, those of several side by side.

How far one is stands in the MetaStore, so that another controller goes on with it. What fails for now is tried again
within the run; what somebody has to mend ends it, and its policy tries again later.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import RefusedError, SdrsError, StaleTermError, UnavailableError
from sdrs_core.ids import random_id
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.records import Run, TargetRecord
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.meta.store import Op
from sdrs_storaged.control.records import Records, put
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket
    from sdrs_storaged.bucket.lock import PrefixLock

log = get_log("backup")

OPERATOR = "an operator"
_KEEP_SECONDS = 5.0
# However long it is until the next one is due: clocks may be moved.
_MAX_REST_SECONDS = 60.0
_RETRY_SECONDS = 5.0
_LEASE_SECONDS = 60.0
_RENEW_SECONDS = 20.0
# Waits between tries of a run that cannot go on for now; once they are used up without a byte moved, it is given up.
_BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
# The others only read what is under the prefix, whoever owns it.
_WRITING = (RunKind.BACKUP, RunKind.PRUNE)


class StoppedError(RefusedError):
    """An operator stopped the run. It never crosses the wire."""


class RunProgress:
    """A run as those see it who carry it out: they count on ``record`` and have it kept, and ask whether to go on."""

    def __init__(self, target: Target, record: Run, keep: Callable[[], Awaitable[None]], clock: Clock) -> None:
        self.target = target
        self.record = record
        self._keep = keep
        self._clock = clock
        self._kept_seconds = clock.monotonic_seconds()
        self._began = (clock.monotonic_seconds(), record.done_bytes)
        self._counted_bytes = record.moved_bytes
        # Somebody else works under this prefix now, who is no successor of ours; empty: nobody does.
        self.lost_because = ""

    @property
    def bytes_per_second(self) -> int:
        """Since this controller carries it on."""
        seconds = self._clock.monotonic_seconds() - self._began[0]
        return int(max(0, self.record.done_bytes - self._began[1]) / seconds) if seconds > 0 else 0

    def newly_moved_bytes(self) -> int:
        """Since this was last asked, or this controller began to carry it on."""
        more_bytes, self._counted_bytes = self.record.moved_bytes - self._counted_bytes, self.record.moved_bytes
        return max(0, more_bytes)

    def check(self) -> None:
        if self.lost_because:
            raise RefusedError(self.lost_because)
        if self.record.is_stopping:
            raise StoppedError("stopped by an operator")

    async def keep(self, *, at_once: bool = False) -> None:
        """Now and then is enough, but for what must not be forgotten."""
        self.check()
        if at_once or self._clock.monotonic_seconds() - self._kept_seconds >= _KEEP_SECONDS:
            await self._keep()
            self._kept_seconds = self._clock.monotonic_seconds()


# What a kind of run does. It raises why it could not go on; done again, it goes on from what its record says.
CarryOut = Callable[[RunProgress], Awaitable[None]]


class Runs:
    def __init__(
        self,
        records: Records,
        targets: Targets,
        policies: Policies,
        buckets: Buckets,
        events: Events,
        clock: Clock,
        cluster_id: str,
        *,
        on_ended: Callable[[TargetName], Awaitable[None]],
    ) -> None:
        self._records = records
        self._targets = targets
        self._policies = policies
        self._buckets = buckets
        self._events = events
        self._clock = clock
        self._cluster_id = cluster_id
        self._on_ended = on_ended
        # By kind; filled by whoever wires.
        self.kinds: dict[RunKind, CarryOut] = {}
        self._known: dict[TargetName, Run] = {}
        self._tasks: dict[TargetName, asyncio.Task[None]] = {}
        self._progress: dict[TargetName, RunProgress] = {}
        # Since this controller leads.
        self.ended: Counter[tuple[TargetName, RunKind, str]] = Counter()
        self.moved_bytes: Counter[tuple[TargetName, RunKind]] = Counter()
        self._woken = asyncio.Event()
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        found = [stored.value async for stored in self._records.all(keys.BACKUP_RUNS, Run)]
        self._known = {run.target: run for run in found}

    def wake(self) -> None:
        self._woken.set()

    def get(self, target: TargetName) -> Run | None:
        """The one under way, or else the last one."""
        return self._known.get(target)

    def all(self) -> list[Run]:
        return [self._known[name] for name in sorted(self._known)]

    def bytes_per_second(self, run: Run) -> int:
        progress = self._progress.get(run.target)
        return progress.bytes_per_second if progress and run.is_under_way else 0

    async def start(
        self,
        kind: RunKind,
        target: str,
        selection: Selection,
        *,
        trigger: str = OPERATOR,
        request_id: str = "",
        policy_key: str = "",
    ) -> Run:
        """One that is under way already is joined if it is the same, and else in the way."""
        name = self._targets.get(target).name
        if kind in _WRITING:
            self._targets.writable(target)
        async with self._lock:
            last = self._known.get(name)
            if last and request_id and last.request_id == request_id:
                return last
            if last and last.is_under_way:
                if (last.kind, last.selection) == (kind, selection):
                    return last
                raise RefusedError(
                    f"a {last.title} is under way ({last.done_checkpoints} of {last.total_checkpoints} checkpoints are "
                    f'done): wait until it is through, or stop it; "sdrs backup status" tells',
                    target=target,
                )
            run = Run(random_id(), name, kind, trigger, selection, request_id, self._clock.unix_ms())
            run.policy_key = policy_key
            await self._records.commit([], [put(keys.backup_run(name), run)])
            self._known[name] = run
        self._policies.begun(policy_key)
        log.info("backup_run_started", target=name, kind=str(kind), trigger=trigger, run=run.id)
        self.wake()
        return run

    async def stop(self, target: str) -> Run:
        """What it has done stays done."""
        name = self._targets.get(target).name
        run = self._known.get(name)
        if run is None or not run.is_under_way:
            raise RefusedError(f"no run is under way with backup target {target}", target=target)
        run.is_stopping = True
        await self._records.commit([], [put(keys.backup_run(name), run)])
        self.wake()
        return run

    def forget(self, target: TargetName) -> None:
        self._known.pop(target, None)

    async def run(self) -> None:
        try:
            while True:
                self._woken.clear()
                try:
                    rest_seconds = await self._pass_once()
                except StaleTermError:
                    raise
                except Exception as error:
                    # A defect here must not take the control plane down with it.
                    log.error("backups_failed", exc_info=error)
                    rest_seconds = _RETRY_SECONDS
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_seconds):
                        await self._woken.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _pass_once(self) -> float:
        """Carry on what is under way, begin what is due; for how long nothing is to do then."""
        self._reap()
        rest_seconds = _MAX_REST_SECONDS
        for record in self._targets.all():
            name = record.target.name
            if name in self._tasks or record.is_leaving:
                continue
            try:
                rest_seconds = min(rest_seconds, await self._begin_due(name))
            except StaleTermError:
                raise
            except SdrsError as error:
                log.warning("backup_not_begun", target=name, why=error.message)
                rest_seconds = min(rest_seconds, _RETRY_SECONDS)
                continue
            run = self._known.get(name)
            if run and run.is_under_way:
                task = self._tasks[name] = asyncio.create_task(self._carry_on(run))
                task.add_done_callback(lambda _: self.wake())
        return rest_seconds

    def _reap(self) -> None:
        for name in [name for name, task in self._tasks.items() if task.done()]:
            error = self._tasks.pop(name).exception()
            if isinstance(error, StaleTermError):
                raise error

    async def _begin_due(self, name: TargetName) -> float:
        """For how long nothing is due."""
        run = self._known.get(name)
        due = self._policies.due(name)
        if due is None or (run and run.is_under_way):
            return _MAX_REST_SECONDS
        moment, key = due
        rest_seconds = (moment - self._clock.unix_ms()) / 1000
        if rest_seconds > 0:
            return rest_seconds
        record = self._policies.get(key)
        if record:
            selection = Selection(record.policy.pool, record.policy.job)
            of = record.policy.pool + (f"/{record.policy.job}" if record.policy.job else "")
            await self.start(RunKind.BACKUP, name, selection, trigger=f"policy of {of}", policy_key=key)
        return _MAX_REST_SECONDS

    # One run

    async def _carry_on(self, run: Run) -> None:
        progress = RunProgress(self._targets.get(run.target), run, lambda: self._keep(progress), self._clock)
        self._progress[run.target] = progress
        try:
            failure = await self._try_all(progress)
            self.moved_bytes[run.target, run.kind] += progress.newly_moved_bytes()
            while True:
                try:
                    await self._end(run, failure)
                    break
                except StaleTermError:
                    raise
                except SdrsError as error:
                    # The store is out of reach: what was done stays done, and it is ended later.
                    log.warning("backup_run_not_ended", target=run.target, why=error.message)
                    await asyncio.sleep(_RETRY_SECONDS)
            await self._on_ended(run.target)
        finally:
            del self._progress[run.target]

    async def _try_all(self, progress: RunProgress) -> str:
        """Why it ended early; empty: it did not."""
        run, waits, moved_bytes = progress.record, list(_BACKOFF_SECONDS), -1
        while True:
            try:
                progress.check()
                async with self._locked(progress):
                    run.failure = ""
                    await self.kinds[run.kind](progress)
                return ""
            except StaleTermError:
                raise
            except UnavailableError as error:
                if run.moved_bytes > moved_bytes:
                    waits, moved_bytes = list(_BACKOFF_SECONDS), run.moved_bytes
                if not waits:
                    return error.message
                run.failure = f"{error.message}; it is tried again"
                log.warning("backup_run_waits", target=run.target, run=run.id, why=error.message)
                await asyncio.sleep(waits.pop(0))
            except SdrsError as error:
                return error.message
            except Exception as error:
                # A defect here must not take the control plane down with it.
                log.error("backup_run_failed", target=run.target, run=run.id, exc_info=error)
                return f"it failed by a defect of storaged ({type(error).__name__}); the controller's log tells more"

    @asynccontextmanager
    async def _locked(self, progress: RunProgress) -> AsyncIterator[None]:
        """While the prefix is ours to work on; of others' prefixes we only read."""
        target = progress.target
        if target.source_cluster_id:
            yield
            return
        # By the run: the next controller of this history goes on with the same one, another history has others.
        holder, term = progress.record.id, self._records.term.number
        if progress.record.kind in _WRITING:
            await self._buckets.call(target, _check_owner, self._cluster_id)
        lock = await self._buckets.call(target, _acquire, self._cluster_id, holder, term)
        renewing = asyncio.create_task(self._renew(progress, lock))
        try:
            yield
        finally:
            renewing.cancel()
            with suppress(SdrsError):
                await self._buckets.call(target, lambda _: lock.release())

    async def _renew(self, progress: RunProgress, lock: PrefixLock) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                if progress.record.kind in _WRITING:
                    await self._buckets.call(progress.target, _check_owner, self._cluster_id)
                await self._buckets.call(progress.target, lambda _: lock.renew())
            except UnavailableError as error:
                log.warning("backup_lock_not_renewed", target=progress.target.name, why=error.message)
            except SdrsError as error:
                # Safety does not depend on it (I8): another history of this cluster is at work, and a person is needed.
                log.error("backup_lock_lost", target=progress.target.name, why=error.message)
                progress.lost_because = error.message
                return

    async def _keep(self, progress: RunProgress) -> None:
        run = progress.record
        self.moved_bytes[run.target, run.kind] += progress.newly_moved_bytes()
        # Nobody else writes it in this term, and every write holds for this term only.
        await self._records.commit([], [put(keys.backup_run(run.target), run)])

    async def _end(self, run: Run, failure: str) -> None:
        now = self._clock.unix_ms()
        ended = replace(run, ended_unix_ms=now, failure=failure, current="")
        is_stopped = run.is_stopping
        why = failure or (run.problems[0] if run.failed_checkpoints and run.problems else "")
        async with self._policies.lock:
            before = self._policies.get(run.policy_key)
            policy, writes = (
                (None, ()) if is_stopped else self._policies.ended(run.policy_key, run.started_unix_ms, why)
            )
            then: list[Op] = [put(keys.backup_run(run.target), ended), *writes]
            health = self._targets.record(run.target)
            after = health if is_stopped else _health(health, failure, now)
            was_failing = bool(health.failure or (before and before.failures))
            if why and not was_failing and not is_stopped:
                then.append(self._events.entry("backup_failed", f"{run.title} failed: {why}"))
            elif was_failing and not why and not after.failure and not is_stopped:
                since_ms = max(0, now - health.failing_since_unix_ms) if health.failing_since_unix_ms else 0
                text = f"{run.title} went through again"
                then.append(self._events.entry("backup_recovered", text, duration_ms=since_ms))
            reach("backup.ending")
            await self._targets.change(run.target, lambda _: after, then)
            if policy:
                self._policies.note(run.policy_key, policy)
        self._known[run.target] = ended
        outcome = "stopped" if is_stopped else "failed" if failure else "partial" if why else "done"
        self.ended[run.target, run.kind, outcome] += 1
        tell = log.warning if why else log.info
        tell(
            "backup_run_ended", target=run.target, kind=str(run.kind), run=run.id, why=why, moved_bytes=run.moved_bytes
        )


def _health(record: TargetRecord, failure: str, now_unix_ms: int) -> TargetRecord:
    if not failure:
        return replace(record, failure="", failing_since_unix_ms=0)
    return replace(record, failure=failure, failing_since_unix_ms=record.failing_since_unix_ms or now_unix_ms)


def _acquire(bucket: Bucket, cluster_id: str, holder: str, term: int) -> PrefixLock:
    from sdrs_storaged.bucket.lock import PrefixLock

    lock = PrefixLock(bucket, cluster_id, holder, time.time, _LEASE_SECONDS)
    lock.acquire(term)
    return lock


def _check_owner(bucket: Bucket, cluster_id: str) -> None:
    """Another may have taken the prefix over, and count on what is there: nothing of it may go by our rules (P25)."""
    found = manifests(bucket, cluster_id)
    owner = found.read_owner() or found.claim()
    if owner.cluster_id != cluster_id:
        name = bucket.target.name
        raise RefusedError(
            f"cluster {owner.cluster_id} has taken over the prefix of backup target {name}: add a target with another "
            f"prefix and remove this one, or take it back with sdrs backup target add {name} ... --take-over"
        )
