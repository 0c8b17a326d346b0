"""What the buckets have, as the catalog knows it: backed-up checkpoints, and the content that they are made of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from sdrs_core.backup.targets import TargetName
from sdrs_core.errors import NotFoundError, UnavailableError
from sdrs_core.ids import JobName, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.records import Copy, CopyState, ObjectRecord, Uses, best_first
from sdrs_storaged.control.backup.targets import Targets
from sdrs_storaged.control.meta.store import Compare, Op
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, put


class Copies:
    def __init__(self, records: Records, targets: Targets) -> None:
        self._records = records
        self._targets = targets

    async def find(
        self, save_id: SaveId | None = None, *, job: JobName | None = None, step: int | None = None
    ) -> list[Stored[Copy]]:
        """Those that can be restored from, of any target, the best first. By the id of the save, which is quick, or by
        its job and step.
        """
        found: dict[str, Stored[Copy]] = {}
        for record in self._targets.all():
            if save_id is not None:
                stored = await self.get(record.target.name, save_id)
                if stored and stored.value.state is CopyState.LISTED:
                    found[stored.key] = stored
                continue
            async for stored in self.of_target(record.target.name):
                copy = stored.value
                if copy.state is CopyState.LISTED and (copy.job, copy.step) == (job, step):
                    found[stored.key] = stored
        ordered = best_first([stored.value for stored in found.values()])
        return [found[keys.backup_copy(copy.target, copy.save_id)] for copy in ordered]

    async def get(self, target: TargetName, save_id: SaveId) -> Stored[Copy] | None:
        return await self._records.get(keys.backup_copy(target, save_id), Copy)

    def of_target(self, target: TargetName) -> AsyncIterator[Stored[Copy]]:
        return self._records.all(keys.backup_copies(target), Copy)

    async def page(self, target: TargetName, *, after: str, limit: int) -> tuple[list[Stored[Copy]], bool]:
        return await self._records.page(keys.backup_copies(target), Copy, after=after, limit=limit)

    async def change(
        self, target: TargetName, save_id: SaveId, edit: Callable[[Copy], Copy], extra: tuple[Op, ...] = ()
    ) -> Copy:
        for _ in range(MAX_TRIES):
            stored = await self.get(target, save_id)
            if stored is None:
                raise NotFoundError(f"backup target {target} has no backup of save {save_id}", target=target)
            edited = edit(stored.value)
            if edited == stored.value and not extra:
                return edited
            try:
                await self._records.commit([stored.unchanged()], [put(stored.key, edited), *extra])
            except ConflictError:
                continue
            return edited
        raise UnavailableError(f"the backup of save {save_id} is changed by others all the time: try again")

    async def hold(self, target: TargetName, job: JobName, step: int, *, held: bool) -> Copy:
        newest: Copy | None = None
        async for stored in self.of_target(target):
            copy = stored.value
            is_meant = (copy.job, copy.step) == (job, step) and copy.state is CopyState.LISTED
            if is_meant and (newest is None or copy.attempt > newest.attempt):
                newest = copy
        if newest is None:
            raise NotFoundError(f'backup target {target} has no backup of step {step} of job "{job}"', target=target)
        return await self.change(target, newest.save_id, lambda copy: replace(copy, held=held))

    async def add(self, copy: Copy) -> None:
        key = keys.backup_copy(copy.target, copy.save_id)
        await self._records.commit([Compare.absent(key)], [put(key, copy)])

    # Content

    async def object(self, target: TargetName, identity: str) -> Stored[ObjectRecord] | None:
        return await self._records.get(keys.backup_object(target, identity), ObjectRecord)

    async def put_object(
        self, target: TargetName, identity: str, before: Stored[ObjectRecord] | None, after: ObjectRecord
    ) -> Stored[ObjectRecord]:
        key = keys.backup_object(target, identity)
        compare = before.unchanged() if before else Compare.absent(key)
        return Stored(key, after, await self._records.commit([compare], [put(key, after)]))

    def objects(self, target: TargetName, prefix: str = "") -> AsyncIterator[Stored[ObjectRecord]]:
        return self._records.all(keys.backup_objects(target) + prefix, ObjectRecord)

    def uses(self, target: TargetName, save_id: SaveId | None = None) -> AsyncIterator[Stored[Uses]]:
        return self._records.all(keys.backup_uses_of(target, save_id or ""), Uses)

    async def uses_of_rank(self, target: TargetName, save_id: SaveId, rank: int) -> Uses | None:
        stored = await self._records.get(keys.backup_uses(target, save_id, rank), Uses)
        return stored.value if stored else None

    async def put_uses(self, target: TargetName, save_id: SaveId, rank: int, uses: Uses) -> None:
        await self._records.commit([], [put(keys.backup_uses(target, save_id, rank), uses)])
