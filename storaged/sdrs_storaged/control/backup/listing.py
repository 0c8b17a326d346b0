"""What backups there are, by the catalog or by the bucket itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from sdrs_core.backup.manifests import CommitRecord
from sdrs_core.checkpoints import Save
from sdrs_core.errors import CorruptDataError, NotFoundError, UnsupportedError
from sdrs_core.ids import SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.records import Copy, CopyState
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.records import Records

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket


@dataclass(frozen=True, slots=True)
class FromBucket:
    """A commit record; or why there is none under this key that can be read."""

    key: str
    record: CommitRecord | None
    damage: str = ""


class Listing:
    def __init__(self, records: Records, targets: Targets, copies: Copies, buckets: Buckets, cluster_id: str) -> None:
        self._records = records
        self._targets = targets
        self._copies = copies
        self._buckets = buckets
        self._cluster_id = cluster_id

    async def page(self, target: str, *, job: str, after: str, limit: int) -> tuple[list[Copy], str]:
        """Those that can be restored from, of one target or all; and the token of the next page."""
        names = [self._targets.get(target).name] if target else [record.target.name for record in self._targets.all()]
        found: list[Copy] = []
        for name in names:
            prefix = keys.backup_copies(name)
            if after and not after.startswith(prefix) and after > prefix:
                continue
            more = True
            while more:
                behind = after if after.startswith(prefix) else ""
                page, more = await self._copies.page(name, after=behind, limit=limit)
                for stored in page:
                    after = stored.key
                    if stored.value.state is CopyState.LISTED and job in ("", stored.value.job):
                        found.append(stored.value)
                    if len(found) == limit:
                        return found, after
        return found, ""

    async def in_cluster(self, copies: Iterable[Copy | CommitRecord]) -> set[SaveId]:
        """Which of them the cluster has as well."""
        found: set[SaveId] = set()
        for copy in copies:
            if copy.cluster_id == self._cluster_id and await self.save_of(copy):
                found.add(copy.save_id)
        return found

    async def save_of(self, copy: Copy | CommitRecord) -> Save | None:
        """The checkpoint that it is a backup of, if it can still be read from the cluster."""
        async for stored in self._records.all(keys.saves_of_step(copy.job, copy.step), Save):
            save = stored.value
            if save.save_id == copy.save_id and save.state.is_readable and not save.evicted:
                return save
        return None

    async def from_bucket(self, target: str, *, job: str, after: str, limit: int) -> tuple[list[FromBucket], str]:
        """What the bucket says of itself, also of those who wrote there before it was taken over; by cluster, job and
        step. The token is the key of the last one.
        """
        place = self._targets.get(target)

        def read(bucket: Bucket) -> list[FromBucket]:
            return list(islice(_found(bucket, place.source_cluster_id, self._cluster_id, job, after), limit + 1))

        found = await self._buckets.call(place, read)
        more = len(found) > limit
        return found[:limit], (found[limit - 1].key if more else "")


def _found(bucket: Bucket, source_cluster_id: str, own_id: str, job: str, after: str) -> Iterator[FromBucket]:
    owner = None if source_cluster_id else manifests(bucket, own_id).read_owner()
    writers = {source_cluster_id or own_id, *(owner.former if owner else ())}
    for cluster_id in sorted(writers):
        of_cluster = manifests(bucket, cluster_id)
        for key in of_cluster.commit_keys(job):
            if key <= after:
                continue
            try:
                yield FromBucket(key, of_cluster.read_commit(key))
            except (CorruptDataError, UnsupportedError) as error:
                # One that cannot be read must not hide the others.
                yield FromBucket(key, None, error.message)
            except NotFoundError:
                continue  # pruned since it was listed
