"""What a copy of the catalog says, against what nodes hold now (P19): the holders that are really there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sdrs_core.checkpoints import Blob, Holder, Shard
from sdrs_core.ids import NodeId
from sdrs_core.soundness import is_readable, shares_needed
from sdrs_storaged.control.assembly import best, candidates_of, standing_of
from sdrs_storaged.control.evidence import Evidence
from sdrs_storaged.control.findings import forms_of

MAX_PROBLEMS = 200


@dataclass(slots=True)
class Problems:
    """What could not be brought back, in sentences; the first ones, and how many more there are (I10)."""

    _texts: list[str] = field(default_factory=list)
    _count: int = 0

    def add(self, text: str) -> None:
        self._count += 1
        if len(self._texts) < MAX_PROBLEMS:
            self._texts.append(text)

    def texts(self) -> list[str]:
        more = self._count - len(self._texts)
        return [*self._texts, f"and {more} more like these"] if more else list(self._texts)


class Corrections:
    def __init__(
        self, evidence: Evidence, asked: frozenset[NodeId], domains: Mapping[NodeId, str], problems: Problems
    ) -> None:
        self._evidence = evidence
        self._asked = asked
        self._domains = domains
        self._problems = problems

    def corrected(self, shard: Shard, *, is_leaving: bool) -> Shard:
        """With the holders that are really there; what is ``is_leaving`` gets no new ones."""
        blobs = [self._corrected(blob, is_leaving) for blob in shard.blobs]
        mirrors = [self._corrected(blob, is_leaving) for blob in shard.mirrors]
        if not is_leaving:
            blobs, mirrors = self._with_new_forms(shard, blobs, mirrors)
        return replace(shard, blobs=tuple(blobs), mirrors=tuple(mirrors))

    def _with_new_forms(self, shard: Shard, blobs: list[Blob], mirrors: list[Blob]) -> tuple[list[Blob], list[Blob]]:
        """Since the copy was made, a blob may have been stored in another form, under another id (P2), and mirrors may
        have come and gone.
        """
        known = {blob.id for blob in shard.all_blobs}
        rows = (row for row in self._evidence.of_rank(shard.save_id, shard.rank) if row.blob_id not in known)
        candidates, _ = candidates_of(rows)

        def newer(blob: Blob, *, is_mirror: bool) -> Blob | None:
            """Only what can be brought back, and is of the same content."""
            found = best(
                (
                    candidate
                    for candidate in candidates.get(blob.ordinal, ())
                    if candidate.is_mirror is is_mirror and candidate.content == (blob.size_bytes, blob.hash)
                ),
                self._domains,
            )
            return found.blob if found and standing_of(found.blob, self._domains) else None

        current = []
        for blob in blobs:
            other = newer(blob, is_mirror=False)
            is_better = other and standing_of(other, self._domains) > standing_of(blob, self._domains)
            current.append(other if other and is_better else blob)
        kept = [mirror for mirror in mirrors if mirror.holders]
        mirrored = {mirror.ordinal for mirror in kept}
        made = (newer(blob, is_mirror=True) for blob in blobs if blob.ordinal not in mirrored)
        return current, [*kept, *(mirror for mirror in made if mirror)]

    def _corrected(self, blob: Blob, is_leaving: bool) -> Blob:
        held: dict[tuple[NodeId, int], Holder] = {}
        # One index of a code has the same bytes wherever it lies.
        hashes = {holder.fragment_index: holder.fragment_hash for holder in blob.holders}
        for row in self._evidence.of_blob(blob.id):
            is_same = (*row.content, row.code) == (blob.size_bytes, blob.hash, blob.code)
            if is_same and row.hash == hashes.get(row.fragment_index, row.hash):
                held[row.node_id, row.fragment_index] = row.holder
            else:
                self._problems.add(
                    f"node {row.node_id} has another blob {blob.id} than is on record: what it has does not count"
                )
        holders = []
        for holder in blob.holders:
            found = held.pop((holder.node_id, holder.fragment_index), None)
            if found:
                holders.append(replace(found, dropping=holder.dropping))
            elif holder.node_id not in self._asked:
                holders.append(holder)
        return replace(blob, holders=(*holders, *(() if is_leaving else held.values())))

    def lacking(self, shard: Shard) -> list[str]:
        """What of it the nodes that were asked cannot bring back, in words."""
        return [
            self._where(forms[0], shard.rank)
            for forms in forms_of(shard)
            if not any(self._is_seen(blob) or shard.is_in_backup_only(blob) for blob in forms)
        ]

    def _is_seen(self, blob: Blob) -> bool:
        return is_readable(blob, (holder for holder in blob.holders if holder.node_id in self._asked))

    def _where(self, blob: Blob, rank: int) -> str:
        what, needed = f"blob {blob.id} of rank {rank}", shares_needed(blob.code)
        others = sorted({holder.node_id for holder in blob.holders} - self._asked)
        if needed > 1:
            seen = len({holder.fragment_index for holder in blob.holders if holder.node_id in self._asked})
            elsewhere = f"; {', '.join(others)} was not asked" if others else ""
            return f"{what} has {seen} fragments on the nodes that were asked, and needs {needed}{elsewhere}"
        if others:
            return f"{what} is only on {', '.join(others)}, which was not asked"
        return f"{what} is on no node that was asked"
