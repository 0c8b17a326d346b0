"""Committed checkpoints: what readers see, and how one is held, deleted and undeleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState, Shard, newest_by_step
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError, UnavailableError
from sdrs_core.ids import JobName, SaveId, check_name, check_step
from sdrs_storaged.control import keys
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import Compare, Delete
from sdrs_storaged.control.records import MAX_TRIES, PAGE_ENTRIES, ConflictError, Records, Stored, batched, put
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.logs import get_log

log = get_log("catalog")

_MAX_NAMED_STEPS = 8


class Catalog:
    def __init__(
        self, records: Records, clock: Clock, tally: Tally, *, unpinned: Callable[[Save], Awaitable[Compare]]
    ) -> None:
        self._records = records
        self._clock = clock
        self._tally = tally
        self._unpinned = unpinned
        # Changes that the store did not answer, by key: what is counted of it, and what to look for.
        self._doubtful: dict[str, tuple[Save | None, SaveId]] = {}

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
            visible = [save if save.save_id in current else _as_set_aside(save) for save in saves]
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
        saves, _ = await self.page(job, all_states=False, after="", limit=PAGE_ENTRIES)
        if saves:
            newest = ", ".join(str(save.step) for save in saves[:_MAX_NAMED_STEPS])
            return f'job "{job}" has no checkpoint of step {step}; the newest are {newest}'
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
        for _ in range(MAX_TRIES):
            stored = await self.get(job, step)
            edited = edit(stored.value)
            if edited == stored.value:
                return edited
            try:
                with self._doubted(stored.key, stored.value, stored.value.save_id):
                    await self._records.commit([stored.unchanged()], [put(stored.key, edited)])
            except ConflictError:
                continue
            self._tally.change(stored.value, edited)
            return edited
        raise UnavailableError(f'step {step} of job "{job}" is changed by others all the time: try again')

    async def amend(self, key: str, save_id: SaveId, edit: Callable[[Save], Save]) -> Save | None:
        """As ``change``, of one generation wherever it stands in its step's order; None if it is not there any more."""
        for _ in range(MAX_TRIES):
            stored = await self._records.get(key, Save)
            if stored is None or stored.value.save_id != save_id or not stored.value.state.is_readable:
                return None
            edited = edit(stored.value)
            if edited == stored.value:
                return edited
            try:
                with self._doubted(key, stored.value, save_id):
                    await self._records.commit([stored.unchanged()], [put(key, edited)])
            except ConflictError:
                continue
            self._tally.change(stored.value, edited)
            return edited
        raise UnavailableError(f"save {save_id} is changed by others all the time: try again")

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

    async def discard(self, stored: Stored[Save], *, why: str, compare: Sequence[Compare] = ()) -> Save:
        """``compare``: what must still hold beside the record itself."""
        save = stored.value
        if save.held:
            raise RefusedError(
                f'{save.title} is held: release it first with "sdrs ckpt release {save.job} {save.step}"'
            )
        deleted = replace(
            save, state=SaveState.DELETED, before_deletion=save.state, note=why, ended_unix_ms=self._clock.unix_ms()
        )
        try:
            unpinned = await self._unpinned(save)
            if save.state is SaveState.COMMITTED:
                await self._set_older_aside(save)
            with self._doubted(stored.key, save, save.save_id):
                await self._records.commit(
                    [stored.unchanged(), unpinned, *compare],
                    [Delete(stored.key), put(keys.trash(save.save_id), deleted)],
                )
        except ConflictError:
            raise UnavailableError(
                f"{save.title} changed while it was being deleted: look at it and try again"
            ) from None
        self._tally.remove(save)
        log.info("checkpoint_deleted", job=save.job, step=save.step, attempt=save.attempt, why=why)
        return deleted

    @contextmanager
    def _doubted(self, key: str, counted: Save | None, save_id: SaveId) -> Iterator[None]:
        """Around a change of a record: if the store leaves it unanswered, the totals are put right later."""
        try:
            yield
        except UnavailableError:
            self._doubtful.setdefault(key, (counted, save_id))
            raise
        self._doubtful.pop(key, None)

    async def settle_doubts(self) -> None:
        for key, (counted, save_id) in list(self._doubtful.items()):
            found = await self._records.get(key, Save)
            if self._doubtful.pop(key, None) is None:
                continue
            if counted:
                self._tally.remove(counted)
            if found and found.value.save_id == save_id:
                self._tally.add(found.value)

    async def _set_older_aside(self, save: Save) -> None:
        """Older attempts' generations of the step, which this one kept from sight: its end must not bring them up."""
        step_keys = keys.saves_of_step(save.job, save.step)
        older = [
            stored
            async for stored in self._records.all(step_keys, Save)
            if stored.value.state is SaveState.COMMITTED and stored.value.attempt < save.attempt
        ]
        for batch in batched((stored, put(stored.key, _as_set_aside(stored.value))) for stored in older):
            await self._records.commit([stored.unchanged() for stored, _ in batch], [write for _, write in batch])

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
        owner = await self._records.get(keys.job(job), Job)
        if owner is None:
            raise NotFoundError(f'job "{job}" does not exist')
        if owner.value.left_behind(back.attempt, back.step):
            # P16: a resume passed it by while it lay in the trash.
            back = _as_set_aside(back)
        key = keys.save(back.job, back.step, back.attempt)
        try:
            with self._doubted(key, None, back.save_id):
                await self._records.commit(
                    [stored.unchanged(), owner.unchanged(), Compare.absent(key)], [Delete(stored.key), put(key, back)]
                )
        except ConflictError:
            raise AlreadyExistsError(f"{back.title} was saved again meanwhile, or is just being collected") from None
        self._tally.add(back)
        log.info("checkpoint_undeleted", job=job, step=step)
        return back


def _as_set_aside(save: Save) -> Save:
    if save.state is not SaveState.COMMITTED:
        return save
    return replace(save, state=SaveState.SET_ASIDE, note="replaced or left behind by a later attempt")
