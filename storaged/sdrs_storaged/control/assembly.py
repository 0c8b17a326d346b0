"""A rank's shard put together from what its fragments tell (P19). Values in, values out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sdrs_core.checkpoints import Blob, ContentKind, Shard, content_of
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.ids import BlobId, NodeId, SaveId
from sdrs_core.redundancy import Form, Standing, standing
from sdrs_core.soundness import counted, is_readable, shares_needed
from sdrs_storaged.control.evidence import Row

Domains = Mapping[NodeId, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A blob that fragments tell of, for one place of a shard; several when a rank sent its bytes again, or when they
    were stored in another form since (P2).
    """

    blob: Blob
    created_unix_ms: int
    # In another pool.
    is_mirror: bool

    @property
    def content(self) -> tuple[int, str]:
        return self.blob.size_bytes, self.blob.hash

    def rank(self, domains: Domains) -> tuple[Standing, int, BlobId]:
        """The higher, the better: what is stored better, then what is newer."""
        return standing_of(self.blob, domains), self.created_unix_ms, self.blob.id


def standing_of(blob: Blob, domains: Domains) -> Standing:
    """By its code alone: what its pool asked for may be lost."""
    code = parse_code(blob.code)
    form = Form(blob.code, code.data, code.total, spread=True) if code else Form(MIRROR, 1, 2)
    return standing(form, counted(blob), domains)


def best(candidates: Iterable[Candidate], domains: Domains) -> Candidate | None:
    return max(candidates, key=lambda candidate: candidate.rank(domains), default=None)


def candidates_of(rows: Iterable[Row]) -> tuple[dict[int, list[Candidate]], list[str]]:
    """By their place in the shard; and what is wrong with them."""
    by_blob: defaultdict[tuple[int, BlobId], list[Row]] = defaultdict(list)
    for row in rows:
        by_blob[row.ordinal, row.blob_id].append(row)
    found: defaultdict[int, list[Candidate]] = defaultdict(list)
    troubles = []
    for (ordinal, blob_id), parts in sorted(by_blob.items()):
        first = parts[0]
        # One index of a code has the same bytes wherever it lies.
        hashes = {row.fragment_index: row.hash for row in parts}
        if any(
            (row.content, row.code, row.packing, row.hash)
            != (first.content, first.code, first.packing, hashes[row.fragment_index])
            for row in parts
        ):
            nodes = ", ".join(row.node_id for row in parts)
            troubles.append(f"blob {blob_id} of rank {first.rank} is not the same on its nodes {nodes}")
        holders = tuple(row.holder for row in parts)
        blob = Blob(blob_id, ordinal, *first.content, code=first.code, holders=holders, packing=first.packing)
        created_unix_ms = max(row.created_unix_ms for row in parts)
        found[ordinal].append(Candidate(blob, created_unix_ms, is_mirror=bool(first.save_pool)))
    return dict(found), troubles


def assemble(save_id: SaveId, rank: int, rows: Sequence[Row], domains: Domains) -> tuple[Shard, str]:
    """A shard, and what is wrong with it; "": it is whole, its fragments agree, and each blob can be brought back."""
    by_ordinal, troubles = candidates_of(rows)
    blobs: list[Blob] = []
    mirrors: list[Blob] = []
    for ordinal, candidates in sorted(by_ordinal.items()):
        if len({candidate.content for candidate in candidates}) > 1:
            # All stay on record: nobody can say which is wrong, so none is nobody's (I7).
            troubles.append(f"rank {rank} has different blobs in place {ordinal}")
            blobs += [candidate.blob for candidate in candidates]
            continue
        own = best((candidate for candidate in candidates if not candidate.is_mirror), domains)
        mirror = best((candidate for candidate in candidates if candidate.is_mirror), domains)
        # A mirror takes the place of what is nowhere any more.
        forms = [candidate.blob for candidate in (own, mirror) if candidate]
        blobs.append(forms[0])
        mirrors += forms[1:]
        if not any(is_readable(blob, counted(blob)) for blob in forms):
            needed = shares_needed(forms[0].code)
            troubles.append(f"blob {forms[0].id} of rank {rank} has fewer than the {needed} fragments that it needs")
    counts = {row.blob_count for row in rows}
    if len(counts) > 1:
        troubles.append(f"the blobs of rank {rank} do not agree about how many there are")
    elif [blob.ordinal for blob in blobs] != list(range(*counts)):
        troubles.append(f"rank {rank} has {len(blobs)} of {max(counts)} blobs")
    shard = Shard(
        save_id,
        rank,
        ContentKind(rows[0].kind or ContentKind.STATE),
        sum(blob.raw_bytes for blob in blobs),
        content_of(blobs),
        tuple(blobs),
        tuple(mirrors),
    )
    return shard, "; ".join(troubles)
