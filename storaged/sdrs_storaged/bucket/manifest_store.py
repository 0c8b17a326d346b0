"""What a bucket says of itself: whose it is, which checkpoints it has, and what each is made of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from blake3 import blake3 as new_blake3

from sdrs_core.backup import layout
from sdrs_core.backup.manifest_json import (
    FORMAT,
    commit_from_json,
    commit_to_json,
    shard_from_json,
    shard_to_json,
)
from sdrs_core.backup.manifests import CommitRecord, ShardManifest
from sdrs_core.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    RefusedError,
    SdrsError,
    UnsupportedError,
)
from sdrs_core.ids import SaveId
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.failures import where
from sdrs_storaged.bucket.store import StoredObject, Upload

_MAX_OWNER_BYTES = 1 << 20
# Records of 100,000 ranks, and manifests of shards of terabytes, are smaller.
_MAX_MANIFEST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Owner:
    """The one cluster that writes under a prefix. ``former``: those that did before, the last one first.

    ``target``: as which of its targets, however its endpoint is called. Empty in records of older versions.
    """

    cluster_id: str
    since_unix_ms: int
    former: tuple[str, ...] = ()
    target: str = ""


class ManifestStore:
    """Of one cluster's backups in a bucket: this cluster's own, or another's that are only read (P25)."""

    def __init__(self, bucket: Bucket, cluster_id: str, clock: Callable[[], float] = time.time) -> None:
        self._bucket = bucket
        self._store = bucket.store
        self._persist = bucket.patience.persist
        self._cluster_id = cluster_id
        self._clock = clock

    def read_owner(self) -> Owner | None:
        """None: nobody's yet."""
        try:
            data = self._store.get(layout.OWNER, _MAX_OWNER_BYTES)
        except NotFoundError:
            return None
        try:
            values = json.loads(data)
            found = values["format"]
            if found == FORMAT:
                return Owner(
                    str(values["cluster"]),
                    int(values["since_unix_ms"]),
                    tuple(map(str, values["former"])),
                    str(values.get("target", "")),
                )
        except (ValueError, KeyError, TypeError):
            raise CorruptDataError(
                f"{where(self._bucket.target)}: {layout.OWNER} does not tell whose prefix it is: it was damaged or "
                "changed. Use another prefix, or mend it by hand"
            ) from None
        raise UnsupportedError(
            f"{where(self._bucket.target)} was written in format {found}, this version reads {FORMAT}: use a newer one"
        )

    def claim(self, rivals: Collection[str] = ()) -> Owner:
        """It is ours from here on, or was already. RefusedError names the other cluster if it is that one's.

        ``rivals``: the other targets that this cluster has. AlreadyExistsError if it is one of those: each would take
        what the other uploads for rubbish.
        """
        return self._own(self.read_owner(), rivals, take_over=False)

    def take_over(self, rivals: Collection[str] = ()) -> Owner:
        """As ``claim``, also if it is another's, which is gone for good."""
        return self._own(self.read_owner(), rivals, take_over=True)

    def _own(self, owner: Owner | None, rivals: Collection[str], *, take_over: bool) -> Owner:
        self._check_own()
        name = self._bucket.target.name
        if owner and owner.cluster_id != self._cluster_id and not take_over:
            raise RefusedError(
                f"{where(self._bucket.target)} belongs to cluster {owner.cluster_id}: use another prefix; to read its "
                "backups, import them; if that cluster is gone for good, add the target with --take-over",
                cluster_id=owner.cluster_id,
            )
        if owner and owner.cluster_id == self._cluster_id:
            if owner.target == name:
                return owner
            if owner.target in rivals:
                raise AlreadyExistsError(
                    f"{where(self._bucket.target)} is the place of this cluster's target {owner.target} already: use "
                    "that one, or another prefix",
                    target=owner.target,
                )
            # Of a target that was removed, or from before they were named.
            wanted = replace(owner, target=name)
        else:
            before = (owner.cluster_id, *owner.former) if owner else ()
            former = tuple(one for one in before if one != self._cluster_id)
            wanted = Owner(self._cluster_id, int(self._clock() * 1000), former, name)
        self._write_owner(wanted, only_if_absent=owner is None)
        # Another may have written at the same time: what is there counts, not what was meant.
        found = self.read_owner()
        if found is None or found.cluster_id != self._cluster_id:
            other = found.cluster_id if found else "unknown"
            raise RefusedError(
                f"{where(self._bucket.target)} was claimed by cluster {other} at the same time: use another prefix",
                cluster_id=other,
            )
        return found

    def _write_owner(self, owner: Owner, *, only_if_absent: bool) -> None:
        values = {
            "format": FORMAT,
            "cluster": owner.cluster_id,
            "since_unix_ms": owner.since_unix_ms,
            "former": list(owner.former),
            "target": owner.target,
        }
        data = json.dumps(values, indent=1).encode()
        try:
            self._persist(lambda: self._store.put(layout.OWNER, data, only_if_absent=only_if_absent))
        except AlreadyExistsError:
            return
        except UnsupportedError:
            self._persist(lambda: self._store.put(layout.OWNER, data))

    def put_shard(self, manifest: ShardManifest, data_key_id: str = "") -> str:
        """Its BLAKE3 as it lies in the bucket, for the commit record. Under ``data_key_id`` if not empty."""
        self._check_own()
        if self._bucket.keys and not data_key_id:
            raise InvalidArgumentError(f"{where(self._bucket.target)} is encrypted: its manifests need a data key")
        key = layout.shard(self._cluster_id, manifest.save_id, manifest.rank)
        data = shard_to_json(manifest)
        if data_key_id:
            data = self._bucket.data_key(self._cluster_id, data_key_id).seal_manifest(key, data)
        self._persist(lambda: self._store.put(key, data))
        return new_blake3(data).hexdigest()

    def get_shard(self, record: CommitRecord, rank: int) -> ShardManifest:
        """CorruptDataError if it is not the one that the commit record means."""
        key = layout.shard(record.cluster_id, record.save_id, rank)
        data = self._store.get(key, _MAX_MANIFEST_BYTES)
        found = new_blake3(data).hexdigest()
        if found != record.shards[rank]:
            raise CorruptDataError(
                f"{where(self._bucket.target)}: {key} has BLAKE3 {found}, the commit record says {record.shards[rank]}"
                ": it was damaged or changed"
            )
        if record.data_key_id:
            data = self._bucket.data_key(record.cluster_id, record.data_key_id).open_manifest(key, data)
        return shard_from_json(data, key)

    def put_commit(self, record: CommitRecord) -> None:
        """I2: last of all. The checkpoint is in the backup from here on."""
        self._check_own()
        data = commit_to_json(record)
        self._persist(lambda: self._store.put(self._commit_key(record), data))

    def get_commit(self, job: str, step: int, save_id: SaveId) -> CommitRecord:
        return self._read_commit(layout.checkpoint(self._cluster_id, job, step, save_id))

    def commits(self, job: str = "") -> Iterator[CommitRecord]:
        """By job and step. One that cannot be read (CorruptDataError) is raised: none is passed over silently."""
        for key in self.commit_keys(job):
            try:
                yield self._read_commit(key)
            except NotFoundError:
                # Pruned since it was listed.
                continue

    def commit_keys(self, job: str = "") -> Iterator[str]:
        for found in self._store.list(layout.checkpoints(self._cluster_id, job)):
            yield found.key

    def read_commit(self, key: str) -> CommitRecord:
        """One of ``commit_keys``: for whoever goes on past those that are damaged."""
        return self._read_commit(key)

    def delete_commit(self, record: CommitRecord) -> SdrsError | None:
        """Why the store refuses, if it does (a lock, a permission)."""
        key = self._commit_key(record)
        return self.delete([key]).get(key)

    def delete_shards(self, save_id: SaveId) -> dict[str, SdrsError]:
        """All ranks' manifests; those that the store refuses to delete, each with its reason."""
        return self.delete([found.key for found in self._store.list(layout.shards(self._cluster_id, save_id))])

    def delete(self, keys: list[str]) -> dict[str, SdrsError]:
        """Of this cluster's own objects; those that the store refuses to delete, each with its reason."""
        self._check_own()
        if foreign := [key for key in keys if not key.startswith(f"{self._cluster_id}/")]:
            raise InvalidArgumentError(
                f"{foreign[0]} is not one of cluster {self._cluster_id}: it is not deleted (P25)"
            )
        return self._persist(lambda: self._store.delete(keys))

    def shards(self) -> Iterator[StoredObject]:
        """The manifests of all ranks of all saves, also of those without a commit record."""
        return self._store.list(layout.all_shards(self._cluster_id))

    def objects(self, hash_prefix: str = "") -> Iterator[StoredObject]:
        """What was uploaded for this cluster's checkpoints, all or by its hash; keys are as in ``ObjectPlace``."""
        return self._store.list(layout.objects(self._cluster_id, hash_prefix))

    def uploads(self) -> Iterator[Upload]:
        """Multipart uploads of such objects that are under way or were left."""
        return self._store.uploads(layout.objects(self._cluster_id))

    def abort(self, upload: Upload) -> None:
        """One of ``uploads``."""
        self._check_own()
        self._persist(lambda: self._store.abort_upload(upload.key, upload.upload_id))

    def _commit_key(self, record: CommitRecord) -> str:
        return layout.checkpoint(self._cluster_id, record.job, record.step, record.save_id)

    def _read_commit(self, key: str) -> CommitRecord:
        record = commit_from_json(self._store.get(key, _MAX_MANIFEST_BYTES), key)
        named = layout.checkpoint(record.cluster_id, record.job, record.step, record.save_id)
        if named != key:
            raise CorruptDataError(f"{where(self._bucket.target)}: {key} is the commit record of {named}")
        return record

    def _check_own(self) -> None:
        """P25: other clusters' backups are only read."""
        of = self._bucket.target.source_cluster_id
        if of and of == self._cluster_id:
            raise RefusedError(f"{where(self._bucket.target)} has cluster {of}'s backups: they are only read")
