"""Where the blobs are that a shard refers to: in the shards of earlier saves, which are their homes.

Holders are on the home's record alone. Whatever changes them (repair, scrub, drains, conversions, mirrors) works there,
and whoever reads a shard with references is told what stands there now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Home, Reference, Save, Shard
from sdrs_core.ids import BlobId, JobName, SaveId
from sdrs_core.mirroring import twin_of
from sdrs_core.references import home_blob
from sdrs_storaged.control import keys
from sdrs_storaged.control.records import Records, Stored

# By key.
Known = dict[str, Stored[Shard]]


@dataclass(frozen=True, slots=True)
class Referral:
    """Under ``reference/HOME/SAVE``: who refers, so that its record is found."""

    job: JobName
    step: int
    attempt: int


class Homes:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def save(self, job: JobName, home: Home) -> Stored[Save] | None:
        """The record of a home that is kept; None: it is in the trash, or gone, or never was one of this job."""
        async for stored in self._records.all(keys.saves_of_step(job, home.step), Save):
            if stored.value.save_id == home.save_id and stored.value.state.is_kept:
                return stored
        return None

    async def of_page(self, shards: Sequence[Shard]) -> Known:
        """What a page of a save's shards refers to: a range for each home, instead of a read for each rank."""
        found: Known = {}
        ranks: dict[SaveId, list[int]] = {}
        for shard in shards:
            for save_id in {reference.home.save_id for reference in shard.references}:
                ranks.setdefault(save_id, []).append(shard.rank)
        for save_id, needed in ranks.items():
            after = keys.shard(save_id, min(needed) - 1) if min(needed) else ""
            limit = max(needed) - min(needed) + 1
            page, _ = await self._records.page(keys.shards(save_id), Shard, after=after, limit=limit)
            found |= {stored.key: stored for stored in page}
        return found

    async def shards(self, shard: Shard, known: Known | None = None) -> Mapping[SaveId, Stored[Shard]]:
        """The shards of the same rank that ``shard`` refers to, by their saves. ``known``: ``of_page`` it."""
        found: dict[SaveId, Stored[Shard]] = {}
        for save_id in sorted({reference.home.save_id for reference in shard.references}):
            key = keys.shard(save_id, shard.rank)
            stored = await self._records.get(key, Shard) if known is None else known.get(key)
            if stored:
                found[save_id] = stored
        return found

    async def referred(self, shard: Shard, known: Known | None = None) -> list[tuple[Stored[Shard], Blob]]:
        """What ``shard`` refers to, each blob with the record that has it; without those that are nowhere."""
        homes = await self.shards(shard, known)
        found = []
        for reference in shard.references:
            home = homes.get(reference.home.save_id)
            blob = home_blob(reference, home.value) if home else None
            if home and blob:
                found.append((home, blob))
        return found

    async def resolved(self, shard: Shard, known: Known | None = None) -> Shard:
        """As its readers see it: all blobs in their order, with who holds them, in this pool and in the one that
        mirrors it.
        """
        if not shard.references:
            return shard
        homes = await self.shards(shard, known)
        blobs, mirrors = list(shard.blobs), list(shard.mirrors)
        for reference in shard.references:
            home = homes.get(reference.home.save_id)
            blob = home_blob(reference, home.value) if home else None
            blobs.append(replace(blob, ordinal=reference.ordinal) if blob else _nowhere(reference))
            twin = twin_of(home.value, blob) if home and blob else None
            if twin:
                mirrors.append(replace(twin, ordinal=reference.ordinal))
        return replace(shard, blobs=_in_order(blobs), mirrors=_in_order(mirrors))

    async def is_referred(self, save: Save) -> bool:
        """Whether any save refers to ``save``. Only the record that was read before it is asked can tell that none has
        come since: ``referrals`` rises with each (P13).
        """
        if not save.referrals:
            return False
        found, _ = await self._records.page(keys.references_to(save.save_id), Referral, limit=1)
        return bool(found)


def _nowhere(reference: Reference) -> Blob:
    """I5: its readers get a clear error, and nobody else's bytes."""
    return Blob(BlobId(""), reference.ordinal, reference.size_bytes, reference.hash)


def _in_order(blobs: list[Blob]) -> tuple[Blob, ...]:
    return tuple(sorted(blobs, key=lambda blob: blob.ordinal))
