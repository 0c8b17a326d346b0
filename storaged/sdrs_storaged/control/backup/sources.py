"""Which backups have a checkpoint, and what they say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ShardManifest
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob, Reference, Save, Shard
from sdrs_core.errors import CorruptDataError, NotFoundError
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.targets import Targets

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket


@dataclass(frozen=True, slots=True)
class Backing:
    """A checkpoint in a bucket, under the ids that it has there."""

    target: Target
    cluster_id: str
    save_id: SaveId


def origin_of(cluster_id: str, save_id: SaveId) -> str:
    return f"{cluster_id}/{save_id}"


class BackupSources:
    def __init__(self, targets: Targets, copies: Copies, buckets: Buckets, cluster_id: str) -> None:
        self._targets = targets
        self._copies = copies
        self._buckets = buckets
        self._cluster_id = cluster_id

    async def of(self, save: Save) -> list[Backing]:
        """The best first: where it was evicted to, then what the catalog knows to be sound; then others' buckets that
        it came from, which only they themselves can tell of.
        """
        found: list[Backing] = []
        for cluster_id, save_id in self._names(save):
            for stored in await self._copies.find(save_id):
                if stored.value.cluster_id == cluster_id:
                    found.append(Backing(self._targets.get(stored.value.target), cluster_id, save_id))
            for record in self._targets.all():
                is_known = any(backing.target == record.target for backing in found)
                # Of a cluster that wrote there before this one took the prefix over, the catalog knows nothing.
                others = (cluster_id,) if cluster_id == self._cluster_id else (cluster_id, "")
                is_source = record.target.source_cluster_id in others or record.target.name == save.evicted
                if is_source and not is_known and not record.is_leaving:
                    found.append(Backing(record.target, cluster_id, save_id))
        return sorted(found, key=lambda backing: backing.target.name != save.evicted)

    def _names(self, save: Save) -> list[tuple[str, SaveId]]:
        """As which it may be in a bucket."""
        own = (self._cluster_id, save.save_id)
        if not save.origin:
            return [own]
        cluster_id, _, save_id = save.origin.rpartition("/")
        return [(cluster_id, SaveId(save_id)), own]

    async def record(self, backing: Backing, job: str, step: int) -> CommitRecord:
        return await self._buckets.call(backing.target, _get_commit, backing, job, step)

    async def record_of(self, save: Save, backing: Backing) -> CommitRecord:
        """CorruptDataError if that is another checkpoint."""
        record = await self.record(backing, save.job, save.step)
        if (record.world_size, record.kind) != (save.world_size, save.kind):
            raise CorruptDataError(
                f"backup {backing.target.name} has another {save.title}: {record.kind} of {record.world_size} ranks "
                f"instead of {save.kind} of {save.world_size}"
            )
        return record

    async def manifest(self, backing: Backing, record: CommitRecord, rank: int) -> ShardManifest:
        return await self._buckets.call(backing.target, _get_shard, backing.cluster_id, record, rank)


def backed_up(save: Save, shard: Shard, blob: Blob | Reference, manifest: ShardManifest) -> BackedUpBlob:
    """What the backup has for a blob of ``shard``; CorruptDataError if that is something else than is on record."""
    found = next((known for known in manifest.blobs if known.ordinal == blob.ordinal), None)
    content = (blob.raw_bytes, blob.raw_hash) if isinstance(blob, Blob) else (blob.size_bytes, blob.hash)
    if found is None or found.content != content:
        has = f"{found.content[0]} bytes with hash {found.content[1]}" if found else "nothing"
        raise CorruptDataError(
            f"the backup of {save.title}, rank {shard.rank}, has {has} for blob {blob.ordinal}, on record are "
            f"{content[0]} with {content[1]}"
        )
    return found


def _get_commit(bucket: Bucket, backing: Backing, job: str, step: int) -> CommitRecord:
    from sdrs_storaged.bucket.manifest_store import ManifestStore

    try:
        return ManifestStore(bucket, backing.cluster_id).get_commit(job, step, backing.save_id)
    except NotFoundError as error:
        raise NotFoundError(f"backup {backing.target.name} has no {job} step {step} ({error.message})") from error


def _get_shard(bucket: Bucket, cluster_id: str, record: CommitRecord, rank: int) -> ShardManifest:
    from sdrs_storaged.bucket.manifest_store import ManifestStore

    return ManifestStore(bucket, cluster_id).get_shard(record, rank)
