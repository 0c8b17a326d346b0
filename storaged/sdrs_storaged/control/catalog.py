"""Committed checkpoints: how one is held, marked, deleted and undeleted; ``catalog_reader`` is what readers see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError, UnavailableError
from sdrs_core.failed_restores import note_failed_restore, without_failures
from sdrs_core.ids import JobName, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog_reader import CatalogReader, as_set_aside
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.meta.store import Compare, Delete, Op
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, Stored, batched, put
from sdrs_storaged.control.tally import Tally
from sdrs_storaged.logs import get_log

log = get_log("catalog")


class Catalog(CatalogReader):
    def __init__(
        self, records: Records, clock: Clock, tally: Tally, *, unpinned: Callable[[Save], Awaitable[Compare]]
    ) -> None:
        super().__init__(records)
        self._clock = clock
        self._tally = tally
        self._unpinned = unpinned

    async def change(self, job: JobName, step: int, edit: Callable[[Save], Save]) -> Save:
        """Change a committed record by compare-and-swap (P4)."""
        for _ in range(MAX_TRIES):
            stored = await self.get(job, step)
            edited = edit(stored.value)
            if edited == stored.value:
                return edited
            try:
                await self._write(stored, edited, [stored.unchanged()], [put(stored.key, edited)])
            except ConflictError:
                continue
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
                await self._write(stored, edited, [stored.unchanged()], [put(key, edited)])
            except ConflictError:
                continue
            return edited
        raise UnavailableError(f"save {save_id} is changed by others all the time: try again")

    async def hold(self, job: JobName, step: int, *, held: bool) -> Save:
        return await self.change(job, step, lambda save: replace(save, held=held))

    async def mark_damage(self, job: JobName, step: int, save_id: SaveId, damage: str) -> Save:
        """Remember what is wrong, or that nothing is any more (``damage`` empty)."""
        if damage:
            log.error("checkpoint_damaged", job=job, step=step, damage=damage)

        def mark(save: Save) -> Save:
            if save.save_id != save_id:
                return save
            return replace(save, damage=damage) if damage else without_failures(save)

        return await self.change(job, step, mark)

    async def note_failed_restore(self, job: JobName, step: int, save_id: SaveId, restore_id: str, why: str) -> Save:
        """Count a restore that failed on the bytes of this generation; the last of several marks it."""
        save = await self.change(
            job, step, lambda save: note_failed_restore(save, restore_id, why) if save.save_id == save_id else save
        )
        if save.save_id == save_id:
            log.warning("restore_failed", job=job, step=step, times=len(save.failed_restores), why=why)
        return save

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
            await self._write(
                stored,
                None,
                [stored.unchanged(), unpinned, *compare],
                [Delete(stored.key), put(keys.trash(save.save_id), deleted)],
            )
        except ConflictError:
            raise UnavailableError(
                f"{save.title} changed while it was being deleted: look at it and try again"
            ) from None
        log.info("checkpoint_deleted", job=save.job, step=save.step, attempt=save.attempt, why=why)
        return deleted

    async def _write(
        self, before: Stored[Save] | Stored[None], after: Save | None, compare: Sequence[Compare], then: Sequence[Op]
    ) -> None:
        """Change the record ``before`` into ``after``. The totals follow it, also if the store leaves it unanswered."""
        known = before.value or after
        assert known is not None
        self._tally.follow(known.save_id, before.value, before.revision)
        try:
            revision = await self._records.commit(compare, then)
        except BaseException:
            # After a conflict too: what it lost against may be a change of our own that was given up before.
            self._tally.doubt(known.save_id, before.key)
            raise
        self._tally.count(known.save_id, after, revision)

    async def settle_doubts(self) -> None:
        """What the store did not tell is looked up."""
        for save_id, key in list(self._tally.doubtful.items()):
            # First: a doubt that comes up while this one is looked into is another one.
            del self._tally.doubtful[save_id]
            try:
                found, revision = await self._records.look(key, Save)
            except BaseException:
                self._tally.doubt(save_id, key)
                raise
            self._tally.count(save_id, found.value if found and found.value.save_id == save_id else None, revision)

    async def _set_older_aside(self, save: Save) -> None:
        """Older attempts' generations of the step, which this one kept from sight: its end must not bring them up."""
        step_keys = keys.saves_of_step(save.job, save.step)
        older = [
            stored
            async for stored in self._records.all(step_keys, Save)
            if stored.value.state is SaveState.COMMITTED and stored.value.attempt < save.attempt
        ]
        for batch in batched((stored, put(stored.key, as_set_aside(stored.value))) for stored in older):
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
            back = as_set_aside(back)
        key = keys.save(back.job, back.step, back.attempt)
        try:
            await self._write(
                # It is gone since it came into the trash.
                Stored(key, None, stored.revision),
                back,
                [stored.unchanged(), owner.unchanged(), Compare.absent(key)],
                [Delete(stored.key), put(key, back)],
            )
        except ConflictError:
            raise AlreadyExistsError(f"{back.title} was saved again meanwhile, or is just being collected") from None
        log.info("checkpoint_undeleted", job=job, step=step)
        return back
