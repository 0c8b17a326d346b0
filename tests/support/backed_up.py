"""What a bucket really has, read without the catalog: every listed backup down to the last byte."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Self

from blake3 import blake3

import sdrs
from sdrs.backups import Run
from sdrs_core.backup.manifests import CommitRecord, ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_core.ids import SaveId
from sdrs_storaged.bucket.downloading import open_object
from sdrs_storaged.bucket.manifest_store import ManifestStore
from sdrs_storaged.bucket.opening import open_bucket
from tests.support.waiting import wait_for


def finished(cluster: sdrs.Cluster, run: Run, seconds: float = 30.0) -> Run:
    """As it ended."""
    ended: list[Run] = []

    def is_over() -> bool:
        ended[:] = [one for one in cluster.backups.runs(run.target) if one.id == run.id and not one.is_under_way]
        return bool(ended)

    wait_for(is_over, f"the {run.kind} to end", seconds)
    return ended[0]


class BucketView:
    def __init__(self, target: Target, cluster_id: str = "") -> None:
        self._bucket = open_bucket(target)
        owner = ManifestStore(self._bucket, cluster_id or "0" * 32).read_owner()
        self.manifests = ManifestStore(self._bucket, cluster_id or (owner.cluster_id if owner else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bucket.close()

    def restorable(self) -> set[SaveId]:
        """All that are listed, once each was read whole; raises if one cannot be."""
        found = set()
        for record in self.manifests.commits():
            self.read(record)
            found.add(record.save_id)
        return found

    def read(self, record: CommitRecord) -> bytes:
        whole = b""
        for rank in range(record.world_size):
            for blob in self.manifests.get_shard(record, rank).blobs:
                data = bytearray(blob.size_bytes)
                reader = open_object(self._bucket, blob.place)
                try:
                    reader.receive(memoryview(data))
                finally:
                    reader.close()
                assert blake3(data).hexdigest() == blob.blake3, f"{blob.place.key} is not what it should be"
                whole += data
        assert len(whole) == record.size_bytes
        return whole

    def places(self) -> set[ObjectPlace]:
        """What the listed backups are made of."""
        return set(self._uses())

    def users(self, place: ObjectPlace) -> int:
        return self._uses()[place]

    def _uses(self) -> Counter[ObjectPlace]:
        return Counter(
            blob.place
            for record in self.manifests.commits()
            for rank in range(record.world_size)
            for blob in self.manifests.get_shard(record, rank).blobs
        )

    def object_keys(self) -> set[str]:
        return {stored.key for stored in self.manifests.objects()}
