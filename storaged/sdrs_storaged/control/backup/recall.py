"""Checkpoints brought back into their pool from a backup: what is kept there only, and what nodes lost.

Blob by blob, so that whatever ends it, what was brought back stays, and the next recall goes on from there. Only once
every blob is there does the checkpoint count as the cluster's own again. Whoever asks for one that is on its way joins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

from sdrs_core.backup.manifests import CommitRecord
from sdrs_core.checkpoints import Blob, Reference, Save, Shard
from sdrs_core.errors import (
    CorruptDataError,
    FullError,
    NotFoundError,
    SdrsError,
    StaleTermError,
    UnavailableError,
)
from sdrs_core.failed_restores import is_marked_by_restores, without_failures
from sdrs_core.ids import JobName, SaveId
from sdrs_core.pools import quota_refusal
from sdrs_core.redundancy import worth
from sdrs_core.references import home_blob
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.locks import SaveLocks
from sdrs_storaged.control.backup.presence import Presence
from sdrs_storaged.control.backup.recalled_blobs import RecalledBlobs
from sdrs_storaged.control.backup.shedding import without_references
from sdrs_storaged.control.backup.sources import Backing, BackupSources, backed_up
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.copier import InBucket
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("recall")

_BLOBS_AT_ONCE = 8
_MAX_RECALLS = 64  # I10
_HEAR_SECONDS = 30.0
_LOOK_AGAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class RecallProgress:
    target: str
    done_bytes: int
    total_bytes: int
    # Of what is done, what came from the backup.
    moved_bytes: int = 0
    is_done: bool = False


@dataclass(slots=True)
class _UnderWay:
    progress: RecallProgress
    ended: asyncio.Future[Save]
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, progress: RecallProgress) -> None:
        self.progress = progress
        self.changed.set()
        self.changed = asyncio.Event()

    def found(self, size_bytes: int) -> None:
        self.tell(replace(self.progress, done_bytes=self.progress.done_bytes + size_bytes))

    def brought(self, size_bytes: int) -> None:
        self.progress = replace(self.progress, moved_bytes=self.progress.moved_bytes + size_bytes)
        self.found(size_bytes)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A blob that nodes cannot bring back: whose it is, the record that has it, and as what the checkpoint names it."""

    owner: Save
    shard: Stored[Shard]
    blob: Blob
    as_named: Blob | Reference


class Recalls:
    def __init__(
        self,
        records: Records,
        members: Members,
        catalog: Catalog,
        commits: Commits,
        tally: Tally,
        sources: BackupSources,
        presence: Presence,
        blobs: RecalledBlobs,
        locks: SaveLocks,
        events: Events,
        clock: Clock,
        *,
        poke_repair: Callable[[], None],
    ) -> None:
        self._records = records
        self._members = members
        self._catalog = catalog
        self._commits = commits
        self._tally = tally
        self._sources = sources
        self._presence = presence
        self._blobs = blobs
        self._clock = clock
        self._poke_repair = poke_repair
        self._locks = locks
        self._events = events
        self._began_seconds = clock.monotonic_seconds()
        self._under_way: dict[SaveId, _UnderWay] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def has_backup(self, save: Save) -> bool:
        return bool(await self._sources.of(save))

    async def recall(self, job: JobName, step: int, save_id: SaveId | None = None) -> AsyncIterator[RecallProgress]:
        """As it goes on; it does not end with who asked for it. NotFoundError if no backup has it; FullError if the
        pool has no room for it; else why the last backup could not serve.
        """
        stored = await self._find(job, step, save_id)
        mine = self._under_way.get(stored.value.save_id) or await self._begin(stored)
        while True:
            changed, progress = mine.changed, mine.progress
            if mine.ended.done():
                await mine.ended
                yield replace(mine.progress, is_done=True)
                return
            yield progress
            await changed.wait()

    async def _find(self, job: JobName, step: int, save_id: SaveId | None) -> Stored[Save]:
        if not save_id:
            return await self._catalog.get(job, step)
        async for stored in self._records.all(keys.saves_of_step(job, step), Save):
            if stored.value.save_id == save_id and stored.value.state.is_readable:
                return stored
        raise NotFoundError(f'step {step} of job "{job}" is not there any more as save {save_id}', job=job, step=step)

    async def _begin(self, stored: Stored[Save]) -> _UnderWay:
        save = stored.value
        backings = await self._sources.of(save)
        if not backings:
            why = f"no backup has {save.title}"
            if save.evicted:
                why = f"{save.title} is kept in backup {save.evicted} only, which is no target any more: add it again"
            raise NotFoundError(why, job=save.job, step=save.step)
        # Somebody else may have begun it while the backups were looked for.
        if known := self._under_way.get(save.save_id):
            return known
        if len(self._under_way) >= _MAX_RECALLS:
            raise UnavailableError(f"{_MAX_RECALLS} checkpoints are being recalled already: try again later")
        progress = RecallProgress(backings[0].target.name, 0, save.size_bytes)
        mine = _UnderWay(progress, asyncio.get_running_loop().create_future())
        self._under_way[save.save_id] = mine
        task = asyncio.create_task(self._carry_out(stored, backings, mine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return mine

    async def _carry_out(self, stored: Stored[Save], backings: list[Backing], mine: _UnderWay) -> None:
        save = stored.value
        log.warning("recall_begun", job=save.job, step=save.step, target=backings[0].target.name)
        try:
            async with self._locks.hold(save.save_id):
                recalled = await self._recall(stored, backings, mine)
        except SdrsError as error:
            log.warning("recall_failed", job=save.job, step=save.step, why=error.message)
            mine.ended.set_exception(error)
        except Exception as error:
            # A defect here must not take the control plane down with it.
            log.error("recall_failed", job=save.job, step=save.step, exc_info=error)
            mine.ended.set_exception(UnavailableError(f"{save.title} was not recalled: {error!r}"))
        except BaseException:
            mine.ended.set_exception(UnavailableError("this controller no longer leads: ask the active one"))
            raise
        else:
            log.warning("recalled", job=save.job, step=save.step, target=mine.progress.target)
            mine.ended.set_result(recalled)
            text = f"{save.title} was recalled from backup {mine.progress.target}"
            await self._events.record("checkpoint_recalled", text, pool=save.pool)
        finally:
            del self._under_way[save.save_id]
            mine.ended.exception()  # whoever asked may be gone
            mine.changed.set()

    async def _recall(self, stored: Stored[Save], backings: list[Backing], mine: _UnderWay) -> Save:
        save = stored.value
        await self._hear_nodes()
        self._check_quota(save)
        failures: list[SdrsError] = []
        for backing in backings:
            mine.tell(replace(mine.progress, target=backing.target.name, done_bytes=0))
            try:
                await self._recall_from(save, backing, mine)
                break
            except (StaleTermError, FullError):
                raise
            except SdrsError as error:
                target = backing.target.name
                log.warning("backup_not_usable", job=save.job, step=save.step, target=target, why=error.message)
                failures.append(error)
        else:
            raise _failed(save, backings, failures)
        reach("recall.settling")
        return await self._settle(stored, has_brought=mine.progress.moved_bytes > 0)

    async def _hear_nodes(self) -> None:
        """A controller that has just begun knows of nobody whether it is up."""
        while self._clock.monotonic_seconds() < self._began_seconds + _HEAR_SECONDS:
            if not any(map(self._members.is_unheard, self._members.node_ids())):
                return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _check_quota(self, save: Save) -> None:
        if not save.evicted:
            return  # it counts already
        why = quota_refusal(
            self._members.pool(save.pool),
            used_bytes=self._tally.bytes_by_pool[save.pool],
            reserved_bytes=self._commits.reserved_bytes(save.pool),
            wanted_bytes=save.size_bytes,
        )
        if why:
            raise FullError(f"{save.title} cannot be brought back from the backup: {why}", pool=save.pool)

    # Its blobs

    async def _recall_from(self, save: Save, backing: Backing, mine: _UnderWay) -> None:
        record = await self._sources.record_of(save, backing)
        slots, failures = asyncio.Semaphore(_BLOBS_AT_ONCE), list[Exception]()
        # None of them raises: what is being made is seen through, and undone if it cannot be.
        async with asyncio.TaskGroup() as tasks:
            try:
                async for wanted, source in self._wanted(save, backing, record, mine):
                    await slots.acquire()
                    if failures:
                        break
                    tasks.create_task(self._bring(wanted, source, mine, slots, failures))
            except SdrsError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _wanted(
        self, save: Save, backing: Backing, record: CommitRecord, mine: _UnderWay
    ) -> AsyncIterator[tuple[_Wanted, InBucket]]:
        """What nodes cannot bring back, each with where the backup has it."""
        for rank in range(save.world_size):
            shard = await self._records.get(keys.shard(save.save_id, rank), Shard)
            if shard and save.evicted:
                shard = await without_references(self._records, shard)
            if shard is None:
                raise NotFoundError(f"{save.title} was deleted while it was recalled", job=save.job, step=save.step)
            missing = await self._missing(save, shard, mine)
            if not missing:
                continue
            manifest = await self._sources.manifest(backing, record, rank)
            for wanted in missing:
                there = backed_up(save, shard.value, wanted.as_named, manifest)
                # As it lies there: compressed, though the record of what was once a reference does not say so.
                blob = replace(wanted.blob, size_bytes=there.size_bytes, hash=there.hash, packing=there.packing)
                yield replace(wanted, blob=blob), InBucket(backing.target, there.place, there.table)

    async def _missing(self, save: Save, shard: Stored[Shard], mine: _UnderWay) -> list[_Wanted]:
        wanted = [_Wanted(save, shard, blob, blob) for blob in shard.value.blobs]
        homes = await self._catalog.homes.shards(shard.value)
        for reference in shard.value.references:
            home, owner = homes.get(reference.home.save_id), await self._catalog.homes.save(save.job, reference.home)
            blob = home_blob(reference, home.value) if home else None
            if home is None or owner is None or blob is None:
                raise CorruptDataError(
                    f"{save.title}, rank {shard.value.rank}: blob {reference.ordinal} is on no record any more"
                )
            wanted.append(_Wanted(owner.value, home, blob, reference))
        there = await self._presence.readable([(one.shard.value, one.blob) for one in wanted])
        mine.found(sum(one.blob.size_bytes for one in wanted if one.blob.id in there))
        return [one for one in wanted if one.blob.id not in there]

    async def _bring(
        self, wanted: _Wanted, source: InBucket, mine: _UnderWay, slots: asyncio.Semaphore, failures: list[Exception]
    ) -> None:
        try:
            stored = wanted.shard
            if not await self._blobs.bring(wanted.owner, stored.key, stored.value, wanted.blob, source):
                raise UnavailableError(f"{wanted.owner.title} changed while it was recalled: try again")
            reach("recall.brought")
            mine.brought(wanted.blob.size_bytes)
        except Exception as error:
            failures.append(error)
        finally:
            slots.release()

    # Its record

    async def _settle(self, stored: Stored[Save], *, has_brought: bool) -> Save:
        """The cluster has it again, as well as its nodes allow (I6)."""
        save, pool = stored.value, self._members.pool(stored.value.pool)
        level, degraded, spared_bytes = pool.level, False, 0
        async for shard in self._records.all(keys.shards(save.save_id), Shard):
            spared_bytes += shard.value.spared_bytes
            blobs = (await self._catalog.homes.resolved(shard.value)).blobs
            own_level, is_degraded = worth(pool, blobs, self._members.domains())
            level, degraded = min(level, own_level), degraded or is_degraded

        def edit(known: Save) -> Save:
            if known.evicted:
                known = replace(known, evicted="", level=level, recalled_unix_ms=self._clock.unix_ms())
                known = replace(known, spared_bytes=spared_bytes)
            if not has_brought:
                return known
            sound = known if is_marked_by_restores(known) else without_failures(known)
            return replace(sound, degraded=degraded)

        recalled = await self._catalog.amend(stored.key, save.save_id, edit)
        if recalled is None:
            raise NotFoundError(f"{save.title} was deleted while it was recalled", job=save.job, step=save.step)
        if degraded or pool.mirror_pool:
            self._poke_repair()
        return recalled


def _failed(save: Save, backings: Sequence[Backing], failures: Sequence[SdrsError]) -> SdrsError:
    """I5: damaged only if what every backup has is."""
    told = "; ".join(
        f"backup {backing.target.name}: {failure.message}" for backing, failure in zip(backings, failures, strict=True)
    )
    is_damaged = all(isinstance(failure, CorruptDataError | NotFoundError) for failure in failures)
    kind = CorruptDataError if is_damaged else UnavailableError
    return kind(f"{save.title} cannot be brought back ({told})", job=save.job, step=save.step)
