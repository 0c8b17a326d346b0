"""What readers see of the catalog: the checkpoints of a job, and the shards of one."""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState, Shard, newest_by_step
from sdrs_core.errors import NotFoundError
from sdrs_core.ids import JobName, SaveId, check_name, check_step
from sdrs_storaged.control import keys
from sdrs_storaged.control.homes import Homes
from sdrs_storaged.control.records import PAGE_ENTRIES, Records, Stored

_MAX_NAMED_STEPS = 8


class CatalogReader:
    def __init__(self, records: Records) -> None:
        self._records = records
        self.homes = Homes(records)

    async def page(self, job: JobName, *, all_states: bool, after: str, limit: int) -> tuple[list[Save], str]:
        """A page of a job's checkpoints, newest first, read from the store itself (P17); and the token of the next."""
        check_name(job, "job")
        found, more = await self._records.page(
            keys.saves_of_job(job), Save, after=after, limit=min(limit, PAGE_ENTRIES)
        )
        saves = [stored.value for stored in found]
        visible = newest_by_step(saves)
        if visible and after and await self._step_was_seen(after, visible[0]):
            visible = visible[1:]
        if all_states:
            current = {save.save_id for save in visible}
            visible = [save if save.save_id in current else as_set_aside(save) for save in saves]
        return visible, (found[-1].key if more else "")

    async def _step_was_seen(self, after: str, first: Save) -> bool:
        """A page may begin in the middle of a step whose current generation was on the page before."""
        if not after.startswith(keys.saves_of_step(first.job, first.step)):
            return False
        newer = [
            s.value async for s in self._records.all(keys.saves_of_step(first.job, first.step), Save) if s.key <= after
        ]
        return bool(newest_by_step(newer))

    async def jobs(self, *, after: str, limit: int) -> tuple[list[Job], bool]:
        found, more = await self._records.page(keys.JOBS, Job, after=after, limit=limit)
        return [stored.value for stored in found], more

    async def trash_count(self) -> int:
        """Up to a page."""
        found, _ = await self._records.page(keys.TRASH, Save)
        return len(found)

    async def trash_of(self, job: JobName) -> list[Save]:
        return [stored.value async for stored in self._records.all(keys.TRASH, Save) if stored.value.job == job]

    async def get(self, job: JobName, step: int) -> Stored[Save]:
        """The current generation of a step; one that was set aside if there is no other."""
        check_name(job, "job")
        check_step(step)
        found = [stored async for stored in self._records.all(keys.saves_of_step(job, step), Save)]
        for state in (SaveState.COMMITTED, SaveState.SET_ASIDE):
            for stored in found:
                if stored.value.state is state:
                    return stored
        is_pending = any(stored.value.state is SaveState.PENDING for stored in found)
        raise NotFoundError(await self._explain_missing(job, step, pending=is_pending), job=job, step=step)

    async def _explain_missing(self, job: JobName, step: int, *, pending: bool) -> str:
        if pending:
            return f'step {step} of job "{job}" is still being saved: not all ranks are in'
        saves, _ = await self.page(job, all_states=False, after="", limit=PAGE_ENTRIES)
        if saves:
            newest = ", ".join(str(save.step) for save in saves[:_MAX_NAMED_STEPS])
            return f'job "{job}" has no checkpoint of step {step}; the newest are {newest}'
        return f'job "{job}" has no checkpoints: is the name right? See: sdrs status'

    # As they are on record: what a shard refers to is in ``homes``.

    async def shards(self, save_id: SaveId, *, after: str, limit: int) -> tuple[list[Stored[Shard]], bool]:
        return await self._records.page(keys.shards(save_id), Shard, after=after, limit=limit)

    async def shard(self, save_id: SaveId, rank: int) -> Shard:
        stored = await self._records.get(keys.shard(save_id, rank), Shard)
        if stored is None:
            raise NotFoundError(f"save {save_id} has no rank {rank}")
        return stored.value


def as_set_aside(save: Save) -> Save:
    if save.state is not SaveState.COMMITTED:
        return save
    return replace(save, state=SaveState.SET_ASIDE, note="replaced or left behind by a later attempt")
