"""Backups go from a bucket when the rules of their policy do not keep them, and then the content that nobody uses.

Each step is safe to be interrupted: a backup is condemned in the catalog first, then its commit record goes (so nobody
sees it any more), its manifests, and what the catalog knows of it. Content is condemned, compared with what all backups
use, before it is deleted, and never referred to again under that name (P25).
"""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.backup.manifests import CommitRecord
from sdrs_core.backup.pruning import decide_pruning
from sdrs_core.backup.runs import Selection
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import SdrsError
from sdrs_core.ids import SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.backing_up import kept
from sdrs_storaged.control.backup.buckets import Buckets, manifests
from sdrs_storaged.control.backup.catching_up import CatchingUp
from sdrs_storaged.control.backup.copies import Copies
from sdrs_storaged.control.backup.policies import Policies
from sdrs_storaged.control.backup.records import Copy, CopyState
from sdrs_storaged.control.backup.rubbish import Rubbish
from sdrs_storaged.control.backup.runs import RunProgress
from sdrs_storaged.control.backup.sweeping import Sweeping
from sdrs_storaged.control.meta.store import Delete
from sdrs_storaged.control.records import MAX_TXN_RECORDS, ConflictError, Records, Stored, put
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log

log = get_log("backup")


class Pruning:
    def __init__(
        self,
        records: Records,
        copies: Copies,
        policies: Policies,
        buckets: Buckets,
        catching_up: CatchingUp,
        sweeping: Sweeping,
        rubbish: Rubbish,
        cluster_id: str,
    ) -> None:
        self._records = records
        self._copies = copies
        self._policies = policies
        self._buckets = buckets
        self._catching_up = catching_up
        self._sweeping = sweeping
        self._rubbish = rubbish
        self._cluster_id = cluster_id

    async def carry_out(self, run: RunProgress) -> None:
        """What an operator asked for: also what is there and on no record."""
        is_whole = await self._catching_up.carry_out(run, again=True)
        await self.prune(run)
        if is_whole and not run.record.selection.dry_run:
            await self._rubbish.carry_out(run)

    async def prune(self, run: RunProgress) -> None:
        target, selection = run.target.name, run.record.selection
        chosen = await self._choose(target, selection)
        if selection.dry_run:
            run.record.deleted_checkpoints = len(chosen)
            going = [stored.value.save_id for stored in chosen]
            run.record.deleted_objects, run.record.deleted_bytes = await self._sweeping.count(target, going)
            return
        for stored in chosen:
            await self._condemn(stored)
            reach("prune.condemned")
        async for stored in self._copies.of_target(target):
            if stored.value.state is CopyState.CONDEMNED:
                run.record.current = stored.value.title
                await self._remove(run, stored.value)
                await run.keep()
        run.record.current = ""
        await self._sweeping.carry_out(run)

    async def _choose(self, target: TargetName, selection: Selection) -> list[Stored[Copy]]:
        """Those that no rule keeps; and those that were never finished, and will not be."""
        # First: whoever comes to need one of them from here on changes its record (P25), and it is not condemned.
        known = {stored.value.save_id: stored async for stored in self._copies.of_target(target)}
        here, needed = await self._here(target)
        jobs: dict[tuple[str, str], list[Copy]] = {}
        chosen: list[SaveId] = []
        for copy in (stored.value for stored in known.values()):
            if copy.state is CopyState.UPLOADING and copy.save_id not in here:
                chosen.append(copy.save_id)
            elif copy.state is CopyState.LISTED and selection.takes(copy.pool, copy.job, copy.step):
                jobs.setdefault((copy.pool, copy.job), []).append(copy)
        for (pool, job), copies in jobs.items():
            keep = self._policies.keep(target, pool, job)
            chosen += decide_pruning([kept(copy, is_needed=copy.save_id in needed) for copy in copies], keep)
        return [known[save_id] for save_id in chosen]

    async def _condemn(self, stored: Stored[Copy]) -> None:
        condemned = replace(stored.value, state=CopyState.CONDEMNED)
        try:
            await self._records.commit([stored.unchanged()], [put(stored.key, condemned)])
        except ConflictError:
            return  # held, or needed, since it was chosen

    async def _here(self, target: TargetName) -> tuple[set[SaveId], set[SaveId]]:
        """Which checkpoints the cluster has and would back up, and of which only this backup has the bytes; by the ids
        that they have in the bucket.
        """
        here: set[SaveId] = set()
        needed: set[SaveId] = set()
        async for stored in self._records.all(keys.SAVES, Save):
            save = stored.value
            if save.state is SaveState.COMMITTED and not save.damage:
                here.add(save.save_id)
            if save.evicted == target and save.state.is_kept:
                needed |= {save.save_id, SaveId(save.origin.rpartition("/")[2])}
        async for stored in self._records.all(keys.TRASH, Save):
            # It may be undeleted.
            if stored.value.evicted == target:
                needed |= {stored.value.save_id, SaveId(stored.value.origin.rpartition("/")[2])}
        return here, needed

    async def _remove(self, run: RunProgress, copy: Copy) -> None:
        """One that the store holds on to stays condemned, and is tried again by the next run."""
        target = run.target
        refused = await self._buckets.call(
            target, lambda bucket: manifests(bucket, self._cluster_id).delete_commit(_record_of(copy))
        )
        if refused:
            self._tell(run, copy, refused)
            return
        reach("prune.uncommitted")
        left = await self._buckets.call(
            target, lambda bucket: manifests(bucket, self._cluster_id).delete_shards(copy.save_id)
        )
        if left:
            self._tell(run, copy, next(iter(left.values())))
            return
        reach("prune.manifests")
        await self._forget(target, copy)
        run.record.deleted_checkpoints += 1
        log.info("backup_pruned", target=target.name, job=copy.job, step=copy.step, save=copy.save_id)

    def _tell(self, run: RunProgress, copy: Copy, why: SdrsError) -> None:
        run.record.tell(f"the backup of {copy.title} cannot be deleted yet, it is tried again: {why.message}")

    async def _forget(self, target: Target, copy: Copy) -> None:
        more = True
        while more:
            page = await self._records.store.range(
                keys.backup_uses_of(target.name, copy.save_id), limit=MAX_TXN_RECORDS
            )
            more = page.more
            if page.entries:
                await self._records.commit([], [Delete(entry.key) for entry in page.entries])
        reach("prune.uses")
        await self._records.commit([], [Delete(keys.backup_copy(target.name, copy.save_id))])


def _record_of(copy: Copy) -> CommitRecord:
    """As much of it as tells where it is."""
    return CommitRecord(
        cluster_id=copy.cluster_id,
        save_id=copy.save_id,
        job=copy.job,
        step=copy.step,
        attempt=copy.attempt,
        world_size=copy.world_size,
        pool=copy.pool,
        kind=copy.kind,
        size_bytes=copy.size_bytes,
        created_unix_ms=copy.created_unix_ms,
        committed_unix_ms=copy.committed_unix_ms,
        backed_up_unix_ms=copy.backed_up_unix_ms,
        shards=(),
    )
