"""After the catalog was replaced by an older one: what it believes to be in the bucket may have been pruned since.

Everything is looked for once. Content that is not there is condemned, so that it is uploaded anew, and the backups that
use it are damaged until then: nothing is ever listed on the word of a catalog of the past.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from sdrs_core.backup import layout
from sdrs_core.backup.targets import TargetName
from sdrs_core.ids import SaveId
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.ranges import in_ranges
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
        users: set[SaveId] = set()

        async def objects(prefix: str) -> AsyncGenerator[str, None]:
            async for stored in self._buckets.each(
                target, lambda bucket: manifests(bucket, self._cluster_id).objects(prefix)
            ):
                yield stored.key

        async for prefix, there in in_ranges(objects):
            await run.keep()
            users |= await self._users(target.name, await self._condemned(target.name, prefix, there))
        # Checkpoints are few, as compared with their objects.
        commits = {
            key
            async for key in self._buckets.each(
                target, lambda bucket: manifests(bucket, self._cluster_id).commit_keys()
            )
        }
        async for copy in self._copies.of_target(target.name):
            await self._mark(copy.value, commits, users)
        await self._targets.change(target.name, lambda record: replace(record, incarnation=self._incarnation))

    async def _condemned(self, target: TargetName, prefix: str, there: set[str]) -> set[str]:
        """The content that ought to be in this range of names, and is not ``there``; it is condemned."""
        missing: set[str] = set()
        begins = layout.objects(self._cluster_id, prefix)
        async for stored in self._copies.objects(target):
            key, state = stored.value.place.key, stored.value.state
            if state is ObjectState.UPLOADING or not key.startswith(begins) or key in there:
                continue
            identity = stored.key.rpartition("/")[2]
            # Also what is condemned already: whoever was interrupted in this has not said yet who uses it.
            missing.add(identity)
            if state is ObjectState.STORED:
                condemned = replace(stored.value, state=ObjectState.CONDEMNED)
                await self._copies.put_object(target, identity, stored, condemned)
        return missing

    async def _users(self, target: TargetName, missing: set[str]) -> set[SaveId]:
        found: set[SaveId] = set()
        if missing:
            async for uses in self._copies.uses(target):
                if not missing.isdisjoint(uses.value.identities):
                    found.add(SaveId(uses.key.split("/")[-2]))
        return found

    async def _mark(self, copy: Copy, commits: set[str], users: set[SaveId]) -> None:
        key = layout.checkpoint(copy.cluster_id, copy.job, copy.step, copy.save_id)
        is_whole = key in commits and copy.save_id not in users
        if copy.state is CopyState.UPLOADING and copy.save_id in users:
            # What its ranks are made of is looked up anew.
            await self._copies.change(copy.target, copy.save_id, lambda known: replace(known, damage=_MISSING))
        elif copy.is_good and not is_whole:
            log.error("backup_missing", target=copy.target, job=copy.job, step=copy.step)
            await self._copies.change(copy.target, copy.save_id, lambda known: replace(known, damage=_MISSING))
