"""Checking a checkpoint where it lies: every fragment of it is read and compared by its own node.

A bad fragment of a blob that others bring back is no damage: it is taken off the record, and made again by repair (I5).
A checkpoint is damaged when a blob has too few others left, and no mirror.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.errors import NotFoundError, RefusedError
from sdrs_core.ids import BlobId, JobName, SaveId
from sdrs_core.soundness import Look, counted
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.findings import Judge, Problem, damage_text, forms_of
from sdrs_storaged.control.looks import Finding, Looks, Reading
from sdrs_storaged.control.records import Stored
from sdrs_storaged.logs import get_log

log = get_log("verifier")

# A blob whose holders change while it is looked at, and that would be lost by what was seen: so often, then undecided.
_MAX_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Progress:
    # Each blob is counted once, however many fragments of it are read.
    checked_bytes: int
    total_bytes: int
    checked_blobs: int
    problems: tuple[Problem, ...]
    checkpoint: Save | None  # set on the last one


@dataclass(slots=True)
class BlobReport:
    """What was found of one blob and its mirrors, at the end of a look at them."""

    findings: list[Finding]
    problems: list[Problem]


class Verifier:
    def __init__(self, catalog: Catalog, looks: Looks, judge: Judge) -> None:
        self._catalog = catalog
        self._looks = looks
        self._judge = judge

    async def verify(self, job: JobName, step: int) -> AsyncIterator[Progress]:
        """Progress, blob by blob; at the end the checkpoint's mark of damage is set or lifted by what was found."""
        save = (await self._catalog.get(job, step)).value
        if save.evicted:
            raise RefusedError(
                f'{save.title} is kept in the backup "{save.evicted}" only: verify it there with "sdrs backup verify '
                f'{save.evicted}"'
            )
        checked_bytes = checked_blobs = 0
        problems: list[Problem] = []
        after, more = "", True
        while more:
            shards, more = await self._catalog.shards(save.save_id, after=after, limit=100)
            for stored in shards:
                after = stored.key
                for shard, forms in await self._parts(stored.value):
                    report = BlobReport([], [])
                    total_bytes = _to_read_bytes(forms)
                    read_bytes = 0
                    async with aclosing(self.check(shard, forms, report)) as reading:
                        async for part in reading:
                            read_bytes = min(read_bytes + part.checked_bytes, total_bytes)
                            done_bytes = checked_bytes + read_bytes * forms[0].raw_bytes // max(1, total_bytes)
                            yield Progress(done_bytes, save.size_bytes, checked_blobs, tuple(problems), None)
                    problems += report.problems
                    checked_bytes += forms[0].raw_bytes
                    checked_blobs += 1
        damage = damage_text(problems)
        if damage or not any(problem.undecided for problem in problems):
            save = await self._catalog.mark_damage(job, step, save.save_id, damage)
        yield Progress(checked_bytes, save.size_bytes, checked_blobs, tuple(problems), save)

    async def _parts(self, shard: Shard) -> list[tuple[Shard, list[Blob]]]:
        """All that a shard is made of: each blob with its mirrors, and the shard that has it on record."""
        parts = [(shard, forms) for forms in forms_of(shard)]
        for home, blob in await self._catalog.homes.referred(shard):
            parts += [(home.value, forms) for forms in forms_of(home.value) if blob in forms]
        return parts

    async def check(
        self,
        shard: Shard,
        forms: Sequence[Blob],
        report: BlobReport,
        *,
        known: Sequence[Finding] = (),
        max_bytes_per_second: int = 0,
    ) -> AsyncGenerator[Reading, None]:
        """Read every block of a blob and its mirrors, and act on what is bad. ``known``: what was just looked at."""
        for _ in range(_MAX_LOOKS):
            report.findings = list(known)
            for blob in forms:
                unknown = [
                    holder
                    for holder in counted(blob)
                    if not any((found.blob.id, found.holder) == (blob.id, holder) for found in known)
                ]
                looking = self._looks.read(blob, unknown, report.findings, max_bytes_per_second=max_bytes_per_second)
                async with aclosing(looking) as reading:
                    async for part in reading:
                        yield part
            settled = await self._judge.settle(shard, forms, report.findings)
            if settled is not None:
                report.problems = settled
                return
            known = ()
            try:
                shard = await self._catalog.shard(shard.save_id, shard.rank)
            except NotFoundError:
                return  # it was collected
            forms = next((now for now in forms_of(shard) if now[0].ordinal == forms[0].ordinal), [])
            if not forms:
                return
        report.problems = _undecided(shard, report.findings)

    async def check_reported(
        self, job: JobName, step: int, save_id: SaveId, rank: int, blob_id: BlobId, node_id: str = ""
    ) -> Save:
        """A reader says that a blob is bad, on ``node_id`` if it can tell.

        Its word moves nothing: the holder looks itself, and quarantines what is bad.
        """
        stored = await self._catalog.get(job, step)
        if stored.value.save_id != save_id:
            return stored.value
        return await self._inspect(stored, rank, blob_id, node_id)

    async def inspect(self, stored: Stored[Save], rank: int, blob_id: BlobId) -> None:
        """Every fragment of a blob, because repair cannot get it from any of them."""
        await self._inspect(stored, rank, blob_id, "")

    async def _inspect(self, stored: Stored[Save], rank: int, blob_id: BlobId, node_id: str) -> Save:
        save = stored.value
        own = await self._catalog.shard(save.save_id, rank)
        named_parts = [part for part in await self._parts(own) if any(blob.id == blob_id for blob in part[1])]
        shard, forms = named_parts[0] if named_parts else (own, [])
        named = [
            (blob, holder)
            for blob in forms
            for holder in counted(blob)
            if (blob.id, holder.node_id) == (blob_id, node_id)
        ]
        findings: list[Finding] = []
        for blob, holder in named:
            async with aclosing(self._looks.read(blob, [holder], findings)) as reading:
                async for _ in reading:
                    pass
        if not forms or (named and not any(found.look is Look.BAD or found.is_unproven for found in findings)):
            return save
        # Do others bring it back? Only then what is bad is dispensable.
        report = BlobReport([], [])
        bad = [found for found in findings if found.look is Look.BAD]
        async with aclosing(self.check(shard, forms, report, known=bad)) as reading:
            async for _ in reading:
                pass
        damage = damage_text(report.problems)
        if not damage:
            return save
        log.error("checkpoint_damaged", job=save.job, step=save.step, damage=damage)
        marked = await self._catalog.amend(stored.key, save.save_id, lambda known: replace(known, damage=damage))
        return marked or save


def _to_read_bytes(forms: Sequence[Blob]) -> int:
    return sum(fragment_bytes(blob, holder.fragment_index) for blob in forms for holder in counted(blob))


def _undecided(shard: Shard, findings: Sequence[Finding]) -> list[Problem]:
    text = "who holds it changes all the time, so it could not be looked at"
    return [
        Problem(found.blob.id, shard.rank, found.holder.node_id, text, undecided=True)
        for found in findings
        if found.look is Look.BAD
    ]
