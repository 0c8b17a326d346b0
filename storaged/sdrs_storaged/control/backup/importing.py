"""Checkpoints of a bucket into this cluster: one, a job's, a pool's, or all of them; this cluster's own, or another's.

First each becomes known here, as one that is kept in the backup only: from then on a restore finds it. Then, unless
that is left to whoever asks for it, its bytes are recalled, the newest checkpoint first. Everything may be repeated:
what is here is known by whose it was and under which id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdrs_core.backup.manifests import CommitRecord
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Save
from sdrs_core.errors import (
    CorruptDataError,
    FullError,
    NotFoundError,
    SdrsError,
    StaleTermError,
    UnavailableError,
    UnsupportedError,
)
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.adoption import Adoption, ConflictingError
from sdrs_storaged.control.backup.buckets import Buckets
from sdrs_storaged.control.backup.recall import Recalls
from sdrs_storaged.control.backup.records import Run
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.backup.sources import Backing, BackupSources, origin_of
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.logs import get_log

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket

log = get_log("import")


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit record without what grows with the number of ranks (I10)."""

    cluster_id: str
    save_id: SaveId
    job: JobName
    step: int
    attempt: int
    size_bytes: int
    committed_unix_ms: int

    @property
    def title(self) -> str:
        return f"{self.job} step {self.step}"


class Importer:
    def __init__(
        self,
        records: Records,
        members: Members,
        buckets: Buckets,
        sources: BackupSources,
        adoption: Adoption,
        recalls: Recalls,
        cluster_id: str,
    ) -> None:
        self._records = records
        self._members = members
        self._buckets = buckets
        self._sources = sources
        self._adoption = adoption
        self._recalls = recalls
        self._cluster_id = cluster_id

    async def carry_out(self, run: RunProgress) -> None:
        target, record = run.target, run.record
        if record.selection.into_pool:
            self._members.pool(PoolName(record.selection.into_pool))  # raises, and names those that there are
        await self._adoption.clear_leftovers(target.name)
        record.done_checkpoints = record.skipped_checkpoints = record.failed_checkpoints = record.done_bytes = 0
        entries = await self._entries(target, record)
        record.total_checkpoints, record.total_bytes = len(entries), sum(entry.size_bytes for entry in entries)
        known = []
        for entry in entries:
            record.current = entry.title
            await run.keep()
            if found := await self._make_known(run, entry):
                known.append((entry, *found))
        for entry, save, is_new in known:
            record.current = entry.title
            await run.keep()
            await self._bring(run, entry, save, is_new=is_new)
        record.current = ""

    async def _entries(self, target: Target, run: Run) -> list[Entry]:
        """Of a step the one of the highest attempt, the newest first: what is worth most comes back first."""
        selection = run.selection
        best: dict[tuple[str, int], Entry] = {}
        for cluster_id in await self._clusters(target):
            async for record in self._commits(target, cluster_id, selection.job):
                if isinstance(record, SdrsError):
                    run.failed_checkpoints += 1
                    run.tell(record.message)
                    continue
                if not selection.takes(record.pool, record.job, record.step):
                    continue
                entry = Entry(
                    cluster_id,
                    record.save_id,
                    record.job,
                    record.step,
                    record.attempt,
                    record.size_bytes,
                    record.committed_unix_ms,
                )
                known = best.get((entry.job, entry.step))
                if known is None or _rank(entry) > _rank(known):
                    best[entry.job, entry.step] = entry
        if selection.step is not None and not best:
            raise NotFoundError(f"backup {target.name} has no {selection.job} step {selection.step}")
        return sorted(best.values(), key=_rank, reverse=True)

    async def _clusters(self, target: Target) -> list[str]:
        """Whose checkpoints are under the prefix: also those that wrote there before it was taken over."""
        if target.source_cluster_id:
            return [target.source_cluster_id]
        return await self._buckets.call(target, _clusters, self._cluster_id)

    async def _commits(self, target: Target, cluster_id: str, job: str) -> AsyncIterator[CommitRecord | SdrsError]:
        async for record in self._buckets.each(target, lambda bucket: _commits(bucket, cluster_id, job)):
            yield record

    # One checkpoint

    async def _make_known(self, run: RunProgress, entry: Entry) -> tuple[Save, bool] | None:
        """What is here of it, and whether it is new here; None if it cannot be had, which was told."""
        record = run.record
        backing = Backing(run.target, entry.cluster_id, entry.save_id)
        try:
            if present := await self._present(entry):
                return present, False
            return await self._adoption.adopt(backing, entry.job, entry.step, record.selection.into_pool)
        except StaleTermError:
            raise
        except (ConflictingError, CorruptDataError, NotFoundError) as error:
            record.failed_checkpoints += 1
            record.tell(error.message)
            return None

    async def _present(self, entry: Entry) -> Save | None:
        origin = origin_of(entry.cluster_id, entry.save_id)
        async for stored in self._records.all(keys.saves_of_step(entry.job, entry.step), Save):
            save = stored.value
            is_own = entry.cluster_id == self._cluster_id and save.save_id == entry.save_id
            if save.state.is_readable and (is_own or save.origin == origin):
                return save
        return None

    async def _bring(self, run: RunProgress, entry: Entry, save: Save, *, is_new: bool) -> None:
        record, selection = run.record, run.record.selection
        is_wanted = bool(save.evicted) and not selection.lazy
        # What is here is looked at closely only by who asks for what is missing.
        is_doubted = not save.evicted and (bool(save.damage) or selection.missing_only or selection.step is not None)
        moved_bytes = 0
        if is_wanted or is_doubted:
            try:
                moved_bytes = await self._recall(run, save)
            except (StaleTermError, UnavailableError, FullError):
                raise  # it would be the same with the next one
            except SdrsError as error:
                record.failed_checkpoints += 1
                record.tell(error.message)
                return
        record.done_bytes += entry.size_bytes
        if is_new or moved_bytes or is_wanted:
            record.done_checkpoints += 1
        else:
            record.skipped_checkpoints += 1

    async def _recall(self, run: RunProgress, save: Save) -> int:
        done_bytes, moved_bytes, last_bytes = run.record.done_bytes, run.record.moved_bytes, 0
        try:
            async for progress in self._recalls.recall(save.job, save.step, save.save_id):
                last_bytes = progress.moved_bytes
                run.record.done_bytes = done_bytes + progress.done_bytes
                run.record.moved_bytes = moved_bytes + last_bytes
                await run.keep()
        finally:
            run.record.done_bytes = done_bytes
        return last_bytes


def _rank(entry: Entry) -> tuple[int, int, SaveId]:
    return entry.committed_unix_ms, entry.attempt, entry.save_id


def _clusters(bucket: Bucket, cluster_id: str) -> list[str]:
    from sdrs_storaged.bucket.manifest_store import ManifestStore

    owner = ManifestStore(bucket, cluster_id).read_owner()
    return list(dict.fromkeys((owner.cluster_id, *owner.former))) if owner else []


def _commits(bucket: Bucket, cluster_id: str, job: str) -> Iterator[CommitRecord | SdrsError]:
    """One that is damaged must not keep the others."""
    from sdrs_storaged.bucket.manifest_store import ManifestStore

    manifests = ManifestStore(bucket, cluster_id)
    for key in manifests.commit_keys(job):
        try:
            yield manifests.read_commit(key)
        except (CorruptDataError, UnsupportedError) as error:
            yield error
        except NotFoundError:
            continue  # pruned since it was listed
