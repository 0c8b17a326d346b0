"""A checkpoint of a bucket becomes known here: its shards first, and the one record that makes it visible last (I2).

While its shards are written a note says under which id, so that what an interruption leaves behind is found and taken
away. No node has anything of it: it is kept in the backup only, until it is recalled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from sdrs_core.attempts import Job
from sdrs_core.backup.manifests import CommitRecord, ShardManifest
from sdrs_core.checkpoints import Blob, Save, SaveState, Shard
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import AlreadyExistsError, CorruptDataError, NotFoundError, UnavailableError
from sdrs_core.ids import BlobId, JobName, PoolName, SaveId, check_name, check_step, random_id
from sdrs_core.levels import Level
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.sources import Backing, BackupSources, origin_of
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.catalog_reader import as_set_aside
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.meta.store import Compare, Delete, Op
from sdrs_storaged.control.records import MAX_TRIES, MAX_TXN_RECORDS, ConflictError, Records, Stored, batched, put
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("import")

_OWNER = "imported from a backup"
_MANIFESTS_AT_ONCE = 8


class ConflictingError(AlreadyExistsError):
    """The step is here with other content. It never crosses the wire."""


@dataclass(frozen=True, slots=True)
class Importing:
    """Under ``backup/import/TARGET/SAVE``, where SAVE is its id here."""

    origin: str


class Adoption:
    def __init__(self, records: Records, members: Members, catalog: Catalog, sources: BackupSources) -> None:
        self._records = records
        self._members = members
        self._catalog = catalog
        self._sources = sources

    async def adopt(self, backing: Backing, job: JobName, step: int, into_pool: str) -> tuple[Save, bool]:
        """The checkpoint as it is known here, and whether it is new. ConflictingError if the
        step is here, and another one."""
        check_name(job, "job")
        check_step(step)
        record = await self._sources.record(backing, job, step)
        if not 0 < record.attempt < keys.MAX_ATTEMPT:
            raise CorruptDataError(f"{job} step {step} in backup {backing.target.name} is of attempt {record.attempt}")
        same = await self._same(backing, record)
        if same:
            return same, False
        pool = self._pool(record, into_pool)
        save = Save(
            save_id=SaveId(random_id()),
            job=record.job,
            step=record.step,
            attempt=record.attempt,
            world_size=record.world_size,
            pool=pool,
            kind=record.kind,
            state=SaveState.COMMITTED,
            level=Level.NONE,
            size_bytes=record.size_bytes,
            created_unix_ms=record.created_unix_ms,
            committed_unix_ms=record.committed_unix_ms,
            layout=self._members.layout(pool).value.number,
            evicted=backing.target.name,
            origin=origin_of(backing.cluster_id, backing.save_id),
        )
        note = keys.backup_import(backing.target.name, save.save_id)
        await self._records.commit([], [put(note, Importing(save.origin))])
        for first in range(0, record.world_size, _MANIFESTS_AT_ONCE):
            ranks = range(first, min(first + _MANIFESTS_AT_ONCE, record.world_size))
            found = await asyncio.gather(*(self._sources.manifest(backing, record, rank) for rank in ranks))
            shards = [_shard(save, manifest) for manifest in found]
            for batch in batched((shard, put(keys.shard(save.save_id, shard.rank), shard)) for shard in shards):
                await self._records.commit([], [write for _, write in batch])
                reach("import.shards")
        try:
            save = await self._publish(save, note)
        except ConflictingError:
            await self.clear_leftovers(backing.target.name)
            raise
        if pool != record.pool:
            log.warning("imported_into_other_pool", job=job, step=step, pool=pool, was=record.pool)
        log.info("checkpoint_imported", job=job, step=step, target=backing.target.name, origin=save.origin)
        return save, True

    async def _publish(self, save: Save, note: str) -> Save:
        """I2: one transaction. P1: its attempt is never later than that of a job which has started here, and whoever
        starts one later comes after it.
        """
        for _ in range(MAX_TRIES):
            job = await self._records.get(keys.job(save.job), Job)
            owner = job.value if job else Job(save.job, owner=_OWNER)
            if owner.owner == _OWNER:
                owner = replace(owner, attempt=max(owner.attempt, save.attempt))
            final = replace(save, attempt=min(save.attempt, owner.attempt))
            if owner.left_behind(final.attempt, final.step):
                final = as_set_aside(final)
            if known := await self._occupant(final):
                raise _conflict(known)
            key = keys.save(final.job, final.step, final.attempt)
            writes: list[Op] = [put(key, final), Delete(note)]
            if job is None or job.value != owner:
                writes.append(put(keys.job(save.job), owner))
            compare = [
                Compare.absent(key),
                Compare.present(note),
                Compare.present(keys.pool(final.pool)),
                job.unchanged() if job else Compare.absent(keys.job(save.job)),
            ]
            reach("import.publishing")
            try:
                await self._catalog.write(Stored(key, None, 0), final, compare, writes)
            except ConflictError:
                continue
            reach("import.published")
            return final
        raise UnavailableError(f"{save.title} was not imported: the job changes all the time; try again")

    def _pool(self, record: CommitRecord, into_pool: str) -> PoolName:
        if into_pool:
            return self._members.pool(PoolName(into_pool)).name
        try:
            return self._members.pool(record.pool).name
        except NotFoundError:
            return self._members.pool(PoolName(DEFAULT_POOL)).name

    # What is here

    async def _occupant(self, save: Save | CommitRecord) -> Save | None:
        """Another generation of the step, be it only on its way; the one of the highest attempt."""
        async for stored in self._records.all(keys.saves_of_step(save.job, save.step), Save):
            if stored.value.state.is_readable or stored.value.state is SaveState.PENDING:
                return stored.value
        return None

    async def _same(self, backing: Backing, record: CommitRecord) -> Save | None:
        """One of the same content, though nobody says where it came from: a catalog that was rebuilt forgets that."""
        known = await self._occupant(record)
        if known and not (known.state.is_readable and await self._is_same(known, backing, record)):
            raise _conflict(known)
        return known

    async def _is_same(self, save: Save, backing: Backing, record: CommitRecord) -> bool:
        if (save.world_size, save.kind, save.size_bytes) != (record.world_size, record.kind, record.size_bytes):
            return False
        for rank in range(record.world_size):
            shard = await self._catalog.shard(save.save_id, rank)
            if shard.content_hash != (await self._sources.manifest(backing, record, rank)).content_hash:
                return False
        return True

    async def clear_leftovers(self, target: str) -> None:
        """Of imports that were interrupted before anybody could see what they brought."""
        async for note in self._records.all(keys.backup_imports(target), Importing):
            save_id = note.key.rpartition("/")[2]
            more = True
            while more:
                page, more = await self._records.page(keys.shards(save_id), Shard, limit=MAX_TXN_RECORDS)
                if page:
                    await self._records.commit([note.unchanged()], [Delete(shard.key) for shard in page])
            await self._records.commit([note.unchanged()], [Delete(note.key)])


def _conflict(known: Save) -> ConflictingError:
    what = "is being saved here" if known.state is SaveState.PENDING else "is here with other content"
    return ConflictingError(
        f"{known.title} {what} (save {known.save_id} of attempt {known.attempt}): kept as it is. To have the one in "
        f"the backup, delete it first: sdrs ckpt delete {known.job} {known.step}"
    )


def _shard(save: Save, manifest: ShardManifest) -> Shard:
    """All blobs are its own: what they were references to may not be here."""
    return Shard(
        save.save_id,
        manifest.rank,
        manifest.kind,
        manifest.size_bytes,
        manifest.content_hash,
        tuple(
            Blob(
                BlobId(random_id()),
                blob.ordinal,
                blob.size_bytes,
                blob.hash,
                # P23: of what was saved, which nobody has looked at where that is not what is stored.
                blake3="" if blob.packing else blob.blake3,
                packing=blob.packing,
            )
            for blob in sorted(manifest.blobs, key=lambda blob: blob.ordinal)
        ),
        evicted=True,
    )
