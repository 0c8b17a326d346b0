"""What a bucket says of itself: whose it is, which checkpoints it has, and what each is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sdrs_core.backup.manifests import CommitRecord, ShardManifest
from sdrs_core.errors import SdrsError
from sdrs_core.ids import SaveId
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.store import StoredObject, Upload


@dataclass(frozen=True, slots=True)
class Owner:
    """The one cluster that writes under a prefix. ``former``: those that did before, the last one first."""

    cluster_id: str
    since_unix_ms: int
    former: tuple[str, ...] = ()


class ManifestStore:
    """Of one cluster's backups in a bucket: this cluster's own, or another's that are only read (P25)."""

    def __init__(self, bucket: Bucket, cluster_id: str) -> None: ...

    def read_owner(self) -> Owner | None:
        """None: nobody's yet."""
        raise NotImplementedError

    def claim(self) -> Owner:
        """It is ours from here on, or was already. RefusedError names the other cluster if it is that one's."""
        raise NotImplementedError

    def take_over(self) -> Owner:
        """As ``claim``, also if it is another's, which is gone for good."""
        raise NotImplementedError

    def put_shard(self, manifest: ShardManifest, data_key_id: str = "") -> str:
        """Its BLAKE3 as it lies in the bucket, for the commit record. Under ``data_key_id`` if not empty."""
        raise NotImplementedError

    def get_shard(self, record: CommitRecord, rank: int) -> ShardManifest:
        """CorruptDataError if it is not the one that the commit record means."""
        raise NotImplementedError

    def put_commit(self, record: CommitRecord) -> None:
        """I2: last of all. The checkpoint is in the backup from here on."""
        raise NotImplementedError

    def get_commit(self, job: str, step: int, save_id: SaveId) -> CommitRecord:
        raise NotImplementedError

    def commits(self, job: str = "") -> Iterator[CommitRecord]:
        """By job and step. One that cannot be read (CorruptDataError) is raised: none is passed over silently."""
        raise NotImplementedError

    def delete_commit(self, record: CommitRecord) -> SdrsError | None:
        """Why the store refuses, if it does (a lock, a permission)."""
        raise NotImplementedError

    def delete_shards(self, save_id: SaveId) -> dict[str, SdrsError]:
        """All ranks' manifests; those that the store refuses to delete, each with its reason."""
        raise NotImplementedError

    def shards(self) -> Iterator[StoredObject]:
        """The manifests of all ranks of all saves, also of those without a commit record."""
        raise NotImplementedError

    def objects(self) -> Iterator[StoredObject]:
        """Everything that was uploaded for this cluster's checkpoints; keys are as in ``ObjectPlace``."""
        raise NotImplementedError

    def uploads(self) -> Iterator[Upload]:
        """Multipart uploads of such objects that are under way or were left."""
        raise NotImplementedError
