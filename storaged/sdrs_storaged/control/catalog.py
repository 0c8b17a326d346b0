"""Committed checkpoints: how one is held, marked, deleted and undeleted; ``catalog_reader`` is what readers see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Save, SaveState, Shard
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError, UnavailableError
from sdrs_core.failed_restores import note_failed_restore, without_failures
from sdrs_core.ids import JobName, SaveId
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog_reader import CatalogReader, as_set_aside
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.homes import Referral
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

    @property
    def has_retired(self) -> bool:
        return self._tally.retired_saves > 0 or bool(self._tally.doubtful)

    async def change(self, job: JobName, step: int, edit: Callable[[Save], Save]) -> Save:
        """Change a committed record by compare-and-swap (P4)."""
        for _ in range(MAX_TRIES):
            stored = await self.get(job, step)
            edited = edit(stored.value)
            if edited == stored.value:
                return edited
            try:
                await self.write(stored, edited, [stored.unchanged()], [put(stored.key, edited)])
            except ConflictError:
                continue
            return edited
        raise UnavailableError(f'step {step} of job "{job}" is changed by others all the time: try again')

    async def amend(self, key: str, save_id: SaveId, edit: Callable[[Save], Save]) -> Save | None:
        """As ``change``, of one generation wherever it stands in its step's order; None if it is not there any more."""
        for _ in range(MAX_TRIES):
            stored = await self._records.get(key, Save)
            if stored is None or stored.value.save_id != save_id or not stored.value.state.is_kept:
                return None
            edited = edit(stored.value)
            if edited == stored.value:
                return edited
            try:
                await self.write(stored, edited, [stored.unchanged()], [put(key, edited)])
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

    async def mark_referring(self, home_id: SaveId, rank: int, ordinal: int, damage: str) -> None:
        """A stored blob is lost: so is every checkpoint that refers to it, and the one that has it."""
        async for referral in self._records.all(keys.references_to(home_id), Referral):
            who, save_id = referral.value, SaveId(referral.key.rpartition("/")[2])
            shard = await self._records.get(keys.shard(save_id, rank), Shard)
            for home in (reference.home for reference in (shard.value.references if shard else ())):
                if (home.save_id, home.ordinal) == (home_id, ordinal):
                    await self._mark_unmarked(keys.save(who.job, who.step, who.attempt), save_id, damage)
                    stored = await self.homes.save(who.job, home)
                    if stored:
                        await self._mark_unmarked(stored.key, home_id, damage)

    async def _mark_unmarked(self, key: str, save_id: SaveId, damage: str) -> None:
        def mark(known: Save) -> Save:
            return known if known.damage or known.evicted else replace(known, damage=damage)

        await self.amend(key, save_id, mark)

    async def delete(self, job: JobName, step: int, *, why: str) -> Save:
        """Into the trash, from where it can be undeleted until its grace period is over; or, while others refer to it,
        out of sight.
        """
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
        key = keys.trash(save.save_id)
        # I7: what others refer to stays where it is looked after. Its record is compared, and changes with each that
        # begins to refer to it.
        if await self.homes.is_referred(save):
            deleted = replace(deleted, state=SaveState.RETIRED)
            key = _retired_key(save)
        try:
            unpinned = await self._unpinned(save)
            if save.state is SaveState.COMMITTED:
                await self._set_older_aside(save)
            await self.write(
                stored,
                deleted if deleted.state.is_kept else None,
                [stored.unchanged(), unpinned, *compare],
                [Delete(stored.key), put(key, deleted)],
            )
        except ConflictError:
            raise UnavailableError(
                f"{save.title} changed while it was being deleted: look at it and try again"
            ) from None
        is_kept = deleted.state.is_kept
        log.info("checkpoint_deleted", job=save.job, step=save.step, attempt=save.attempt, why=why, is_kept=is_kept)
        return deleted

    async def write(
        self, before: Stored[Save] | Stored[None], after: Save | None, compare: Sequence[Compare], then: Sequence[Op]
    ) -> int:
        """Change the record ``before`` into ``after``; the revision. The totals follow it, also if the store leaves it
        unanswered.
        """
        known = before.value or after
        assert known is not None
        self._tally.follow(known.save_id, before.value, before.revision)
        try:
            revision = await self._records.commit(compare, then)
        except BaseException:
            # After a conflict too: what it lost against may be a change of our own that was given up before.
            self._tally.doubt(known)
            raise
        self._tally.count(known.save_id, after, revision)
        return revision

    async def settle_doubts(self) -> None:
        """What the store did not tell is looked up."""
        for save_id, known in list(self._tally.doubtful.items()):
            # First: a doubt that comes up while this one is looked into is another one.
            del self._tally.doubtful[save_id]
            try:
                found, revision = await self._find(known)
            except BaseException:
                self._tally.doubt(known)
                raise
            self._tally.count(save_id, found, revision)

    async def _find(self, known: Save) -> tuple[Save | None, int]:
        """Wherever it counts: in its place, or retired. If it is nowhere, it may have moved between the looks: then it
        was not found as of the first, and who moved it tells.
        """
        in_place, first_revision = await self._records.look(keys.save(known.job, known.step, known.attempt), Save)
        if in_place and in_place.value.save_id == known.save_id:
            return in_place.value, first_revision
        retired, revision = await self._records.look(_retired_key(known), Save)
        return (retired.value, revision) if retired else (None, first_revision)

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
        deleted += [s async for s in self._records.all(keys.saves_of_step(job, step), Save)]
        kinds = (SaveState.DELETED, SaveState.RETIRED)
        candidates = [s for s in deleted if s.value.state in kinds and not s.value.trimmed]
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
            await self.write(
                # One that is not kept is gone since it came into the trash.
                stored if stored.value.state.is_kept else Stored(key, None, stored.revision),
                back,
                [stored.unchanged(), owner.unchanged(), Compare.absent(key)],
                [Delete(stored.key), put(key, back)],
            )
        except ConflictError:
            raise AlreadyExistsError(f"{back.title} was saved again meanwhile, or is just being collected") from None
        log.info("checkpoint_undeleted", job=job, step=step)
        return back


def _retired_key(save: Save) -> str:
    return keys.retired(save.job, save.step, save.attempt, save.save_id)
