"""What backups there are, by the catalog or by the bucket itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sdrs_core.backup import layout
from sdrs_core.backup.manifests import CommitRecord
from sdrs_core.checkpoints import Save
from sdrs_core.ids import SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.records import Copy, CopyState
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.records import Records

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket


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

    async def in_cluster(self, copies: Iterable[Copy]) -> set[SaveId]:
        """Which of them the cluster has as well."""
        found: set[SaveId] = set()
        for copy in copies:
            if copy.cluster_id == self._cluster_id and await self.save_of(copy):
                found.add(copy.save_id)
        return found

    async def save_of(self, copy: Copy) -> Save | None:
        """The checkpoint that it is a backup of, if it can still be read from the cluster."""
        async for stored in self._records.all(keys.saves_of_step(copy.job, copy.step), Save):
            save = stored.value
            if save.save_id == copy.save_id and save.state.is_readable and not save.evicted:
                return save
        return None

    async def from_bucket(self, target: str, *, job: str, after: str, limit: int) -> tuple[list[CommitRecord], str]:
        """What the bucket says of itself; by job and step. The token is the key of the last one."""
        place = self._targets.get(target)
        owner = place.source_cluster_id or self._cluster_id

        def read(bucket: Bucket) -> list[CommitRecord]:
            return list(islice(_behind(manifests(bucket, owner).commits(job), after), limit + 1))

        found = await self._buckets.call(place, read)
        more = len(found) > limit
        return found[:limit], (_key(found[limit - 1]) if more else "")


def _key(record: CommitRecord) -> str:
    return layout.checkpoint(record.cluster_id, record.job, record.step, record.save_id)


def _behind(records: Iterator[CommitRecord], after: str) -> Iterator[CommitRecord]:
    return (record for record in records if _key(record) > after)
