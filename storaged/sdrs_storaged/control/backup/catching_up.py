"""Backups that are in the bucket and not in the catalog: of a target that was removed and added again, or made before
an older catalog was put back. They are taken into the catalog, before anything there can be taken for rubbish (I7).
"""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.backup.manifests import CommitRecord, ShardManifest
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.errors import CorruptDataError, NotFoundError
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.records import Copy, CopyState, ObjectRecord, ObjectState, Uses
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.records import ConflictError
from sdrs_storaged.logs import get_log

log = get_log("backup")


class CatchingUp:
    def __init__(self, copies: Copies, buckets: Buckets, cluster_id: str) -> None:
        self._copies = copies
        self._buckets = buckets
        self._cluster_id = cluster_id
        # Once in each term: a catalog that was put back begins a new one.
        self._done: set[TargetName] = set()

    async def carry_out(self, run: RunProgress, *, again: bool = False) -> bool:
        """Whether the catalog knows all that is there: what it could not read may use what looks like rubbish."""
        target, is_whole = run.target, True
        if target.name in self._done and not again:
            return True
        async for key in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).commit_keys()):
            save_id = SaveId(key.rpartition("/")[2].removesuffix(".json"))
            if await self._copies.get(target.name, save_id) is None:
                await run.keep()
                is_whole &= await self._take_in(run, key)
        if is_whole:
            self._done.add(target.name)
        return is_whole

    def forget(self, target: TargetName) -> None:
        self._done.discard(target)

    async def _take_in(self, run: RunProgress, key: str) -> bool:
        target = run.target
        try:
            record = await self._buckets.call(
                target, lambda bucket: manifests(bucket, self._cluster_id).read_commit(key)
            )
            copy = _copy_of(target, record)
            # Found again if this is interrupted: what it uses goes on record before it does.
            for rank in range(record.world_size):
                manifest = await self._manifest(target, record, rank)
                await self._note(target, manifest, record.shards[rank])
        except (NotFoundError, CorruptDataError) as error:
            run.record.tell(f"a backup in {target.name} that the catalog does not know cannot be read: {error.message}")
            return False
        await self._copies.add(copy)
        log.info("backup_taken_in", target=target.name, job=copy.job, step=copy.step, save=copy.save_id)
        return True

    async def _manifest(self, target: Target, record: CommitRecord, rank: int) -> ShardManifest:
        return await self._buckets.call(
            target, lambda bucket: manifests(bucket, self._cluster_id).get_shard(record, rank)
        )

    async def _note(self, target: Target, manifest: ShardManifest, name: str) -> None:
        identities = tuple(blob.blake3 for blob in manifest.blobs)
        await self._copies.put_uses(target.name, manifest.save_id, manifest.rank, Uses(identities, name))
        for blob in manifest.blobs:
            known = await self._copies.object(target.name, blob.blake3)
            after = ObjectRecord(blob.place, ObjectState.STORED)
            if known:
                names = (known.value.place.key, *known.value.also)
                if blob.place.key in names:
                    continue
                after = replace(known.value, also=(*known.value.also, blob.place.key))
            try:
                await self._copies.put_object(target.name, blob.blake3, known, after)
            except ConflictError:
                raise CorruptDataError("two runs are under way with one target") from None


def _copy_of(target: Target, record: CommitRecord) -> Copy:
    return Copy(
        target=target.name,
        cluster_id=record.cluster_id,
        save_id=record.save_id,
        job=record.job,
        step=record.step,
        attempt=record.attempt,
        world_size=record.world_size,
        pool=record.pool,
        kind=record.kind,
        size_bytes=record.size_bytes,
        created_unix_ms=record.created_unix_ms,
        committed_unix_ms=record.committed_unix_ms,
        state=CopyState.LISTED,
        backed_up_unix_ms=record.backed_up_unix_ms,
    )
