"""After the catalog was replaced by an older one: what it believes to be in the bucket may have been pruned since.

Everything is looked for once. Content that is not there is condemned, so that it is uploaded anew, and the backups that
use it are damaged until then: nothing is ever listed on the word of a catalog of the past.
"""

from __future__ import annotations

from dataclasses import replace

import xxhash

from sdrs_core.backup import layout
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.records import Copy, CopyState, ObjectState
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.logs import get_log

log = get_log("backup")

_MISSING = "it was in the bucket once, and is not there any more"


class Comparing:
    def __init__(
        self, targets: Targets, copies: Copies, buckets: Buckets, cluster_id: str, *, incarnation: int
    ) -> None:
        self._targets = targets
        self._copies = copies
        self._buckets = buckets
        self._cluster_id = cluster_id
        # It rises with each catalog that is put in the place of another.
        self._incarnation = incarnation

    async def carry_out(self, run: RunProgress) -> None:
        target = run.target
        if self._targets.record(target.name).incarnation == self._incarnation:
            return
        there = {
            _digest(stored.key)
            async for stored in self._buckets.each(target, lambda bucket: manifests(bucket, self._cluster_id).objects())
        }
        there |= {
            _digest(key)
            async for key in self._buckets.each(
                target, lambda bucket: manifests(bucket, self._cluster_id).commit_keys()
            )
        }
        await run.keep()
        missing: set[str] = set()
        async for stored in self._copies.objects(target.name):
            if stored.value.state is ObjectState.STORED and _digest(stored.value.place.key) not in there:
                identity = stored.key.rpartition("/")[2]
                missing.add(identity)
                condemned = replace(stored.value, state=ObjectState.CONDEMNED)
                await self._copies.put_object(target.name, identity, stored, condemned)
        users: set[SaveId] = set()
        async for uses in self._copies.uses(target.name):
            if not missing.isdisjoint(uses.value.identities):
                users.add(SaveId(uses.key.split("/")[-2]))
        async for copy in self._copies.of_target(target.name):
            await self._mark(copy.value, there, users)
        await self._targets.change(target.name, lambda record: replace(record, incarnation=self._incarnation))

    async def _mark(self, copy: Copy, there: set[int], users: set[SaveId]) -> None:
        key = layout.checkpoint(copy.cluster_id, copy.job, copy.step, copy.save_id)
        is_whole = _digest(key) in there and copy.save_id not in users
        if copy.state is CopyState.UPLOADING and copy.save_id in users:
            # What its ranks are made of is looked up anew.
            await self._copies.change(copy.target, copy.save_id, lambda known: replace(known, damage=_MISSING))
        elif copy.is_good and not is_whole:
            log.error("backup_missing", target=copy.target, job=copy.job, step=copy.step)
            await self._copies.change(copy.target, copy.save_id, lambda known: replace(known, damage=_MISSING))


def _digest(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode())
