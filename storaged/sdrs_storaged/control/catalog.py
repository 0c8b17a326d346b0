"""Committed checkpoints: what readers see, and how one is held, deleted and undeleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sdrs_core.checkpoints import Save, SaveState, Shard, newest_by_step
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError, UnavailableError
from sdrs_core.ids import JobName, SaveId, check_name, check_step
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import Compare, Delete
from sdrs_storaged.control.records import PAGE_ENTRIES, ConflictError, Records, Stored, put
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.logs import get_log

log = get_log("catalog")

_MAX_TRIES = 20


class Catalog:
    def __init__(self, records: Records, clock: Clock, tally: Tally, *, pins: Callable[[], set[SaveId]]) -> None:
        self._records = records
        self._clock = clock
        self._tally = tally
        self._pins = pins

    async def page(self, job: JobName, *, all_states: bool, after: str, limit: int) -> tuple[list[Save], str]:
        """A page of a job's checkpoints, newest first, read from the store itself (P17); and the token of the next."""
        check_name(job, "job")
        found, more = await self._records.page(
            keys.saves_of_job(job), Save, after=after, limit=min(limit, PAGE_ENTRIES)
        )
        saves = [stored.value for stored in found]
        visible = saves if all_states else newest_by_step(saves)
        if visible and after and not all_states and await self._step_was_seen(after, visible[0]):
            visible = visible[1:]
        return visible, (found[-1].key if more else "")

    async def _step_was_seen(self, after: str, first: Save) -> bool:
        """A page may begin in the middle of a step whose current generation was on the page before."""
        if not after.startswith(keys.saves_of_step(first.job, first.step)):
            return False
        newer = [
            s.value async for s in self._records.all(keys.saves_of_step(first.job, first.step), Save) if s.key <= after
        ]
        return bool(newest_by_step(newer))

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
        raise NotFoundError(await self._explain_missing(job, step, pending=bool(found)), job=job, step=step)

    async def _explain_missing(self, job: JobName, step: int, *, pending: bool) -> str:
        if pending:
            return f'step {step} of job "{job}" is still being saved: not all ranks are in'
        newest, _ = await self.page(job, all_states=False, after="", limit=8)
        if newest:
            return (
                f'job "{job}" has no checkpoint of step {step}; the newest are {", ".join(str(s.step) for s in newest)}'
            )
        return f'job "{job}" has no checkpoints: is the name right? See: sdrs status'

    async def shards(self, save_id: SaveId, *, after: str, limit: int) -> tuple[list[Stored[Shard]], bool]:
        return await self._records.page(keys.shards(save_id), Shard, after=after, limit=limit)

    async def shard(self, save_id: SaveId, rank: int) -> Shard:
        stored = await self._records.get(keys.shard(save_id, rank), Shard)
        if stored is None:
            raise NotFoundError(f"save {save_id} has no rank {rank}")
        return stored.value

    async def change(self, job: JobName, step: int, edit: Callable[[Save], Save]) -> Save:
        """Change a committed record by compare-and-swap (P4)."""
        for _ in range(_MAX_TRIES):
            stored = await self.get(job, step)
            edited = edit(stored.value)
            if edited == stored.value:
                return edited
            try:
                await self._records.commit([stored.unchanged()], [put(stored.key, edited)])
            except ConflictError:
                continue
            self._tally.change(stored.value, edited)
            return edited
        raise UnavailableError(f'step {step} of job "{job}" is changed by others all the time: try again')

    async def hold(self, job: JobName, step: int, *, held: bool) -> Save:
        return await self.change(job, step, lambda save: replace(save, held=held))

    async def mark_damage(self, job: JobName, step: int, save_id: SaveId, damage: str) -> Save:
        """Remember what is wrong, or that nothing is any more (``damage`` empty)."""
        if damage:
            log.error("checkpoint_damaged", job=job, step=step, damage=damage)
        return await self.change(
            job, step, lambda save: replace(save, damage=damage) if save.save_id == save_id else save
        )

    async def delete(self, job: JobName, step: int, *, why: str) -> Save:
        """Into the trash, from where it can be undeleted until its grace period is over."""
        return await self.discard(await self.get(job, step), why=why)

    async def discard(self, stored: Stored[Save], *, why: str) -> Save:
        save = stored.value
        if save.held:
            raise RefusedError(
                f'{save.title} is held: release it first with "sdrs ckpt release {save.job} {save.step}"'
            )
        if save.save_id in self._pins():
            raise RefusedError(f"{save.title} is being restored right now: try again when that is over")
        deleted = replace(
            save, state=SaveState.DELETED, before_deletion=save.state, note=why, ended_unix_ms=self._clock.unix_ms()
        )
        try:
            await self._records.commit(
                [stored.unchanged()], [Delete(stored.key), put(keys.trash(save.save_id), deleted)]
            )
        except ConflictError:
            raise UnavailableError(
                f"{save.title} changed while it was being deleted: look at it and try again"
            ) from None
        self._tally.remove(save)
        log.info("checkpoint_deleted", job=save.job, step=save.step, attempt=save.attempt, why=why)
        return deleted

    async def undelete(self, job: JobName, step: int) -> Save:
        deleted = [s async for s in self._records.all(keys.TRASH, Save) if (s.value.job, s.value.step) == (job, step)]
        candidates = [s for s in deleted if s.value.state is SaveState.DELETED]
        if not candidates:
            raise NotFoundError(
                f'job "{job}" has no deleted checkpoint of step {step} that could still be brought back'
            )
        stored = max(candidates, key=lambda s: s.value.ended_unix_ms)
        back = replace(
            stored.value,
            state=stored.value.before_deletion or SaveState.COMMITTED,
            before_deletion=None,
            note="",
            ended_unix_ms=0,
        )
        key = keys.save(back.job, back.step, back.attempt)
        try:
            await self._records.commit([stored.unchanged(), Compare.absent(key)], [Delete(stored.key), put(key, back)])
        except ConflictError:
            raise AlreadyExistsError(f"{back.title} was saved again meanwhile, or is just being collected") from None
        self._tally.add(back)
        log.info("checkpoint_undeleted", job=job, step=step)
        return back
