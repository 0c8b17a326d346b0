"""Which blobs of a new save need not be stored, because an earlier one has them (P23).

xxh3 only tells that a blob *may* be unchanged, and so whether it is worth to compute its BLAKE3; that alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sdrs_core.checkpoints import Blob, Home, Reference, Save, Shard
from sdrs_core.ids import SaveId

# Smaller ones are cheaper to store than to keep track of.
LEAST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class NewBlob:
    """A blob that is about to be saved; ``blake3`` of its plain content, empty if that was not computed."""

    ordinal: int
    size_bytes: int
    blake3: str


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


def blake3_hasher() -> Hasher | None:
    """None where the package is not installed: then nothing is recognised, and everything is stored."""
    try:
        from blake3 import blake3
    except ImportError:
        return None
    hasher: Hasher = blake3()
    return hasher


def offers_of(save: Save, shard: Shard) -> tuple[Reference, ...]:
    """What a later save may refer to because of this one: its own blobs, and the homes of what it refers to itself."""
    own = (
        Reference(blob.ordinal, blob.raw_bytes, blob.raw_hash, blob.blake3, Home(save.save_id, save.step, blob.ordinal))
        for blob in shard.blobs
    )
    return tuple(sorted((*own, *shard.references), key=lambda offer: offer.ordinal))


def can_refer(ordinal: int, size_bytes: int, least_bytes: int = LEAST_BYTES) -> bool:
    """Blob 0 has the index, is read first, and says on disk which save it belongs to: every shard has its own."""
    return ordinal > 0 and size_bytes >= least_bytes


def decide_references(
    previous: Sequence[Reference], new: Iterable[NewBlob], *, least_bytes: int = LEAST_BYTES
) -> dict[int, Reference]:
    """By ordinal of the new blob, what it refers to instead of being stored. ``previous``: ``offers_of`` an earlier
    generation.

    By content, wherever it stood; the same place is preferred. One stored blob stands for one new blob: a shard never
    names the same one twice.
    """
    left = {(offer.home.save_id, offer.home.ordinal): offer for offer in previous if offer.blake3}
    decided: dict[int, Reference] = {}
    for blob in new:
        if not blob.blake3 or not can_refer(blob.ordinal, blob.size_bytes, least_bytes):
            continue
        same = [offer for offer in left.values() if (offer.size_bytes, offer.blake3) == (blob.size_bytes, blob.blake3)]
        if same:
            best = min(same, key=lambda offer: (offer.ordinal != blob.ordinal, offer.ordinal))
            del left[best.home.save_id, best.home.ordinal]
            decided[blob.ordinal] = replace(best, ordinal=blob.ordinal)
    return decided


def is_worth_comparing(previous: Iterable[Reference], ordinal: int, size_bytes: int) -> bool:
    """Whether it may be something that can be referred to. What changed with the last save, and so has no BLAKE3, is
    taken to change again; where nothing stood at its place, it may have come from another.
    """
    alike = [offer for offer in previous if offer.size_bytes == size_bytes]
    there = [offer for offer in alike if offer.ordinal == ordinal]
    return any(offer.blake3 for offer in there or alike)


def may_be_unchanged(previous: Iterable[Reference], size_bytes: int, hash: str) -> bool:
    """Whether it has the checksum of something that was saved before: worth to be compared by its BLAKE3."""
    return any((offer.size_bytes, offer.hash) == (size_bytes, hash) for offer in previous)


def is_changing(previous: Iterable[Reference], ordinal: int, size_bytes: int, hash: str) -> bool:
    """Whether another blob was at this place before, and this one nowhere: it will be another one next time as well,
    and its BLAKE3 is not worth computing until it is found the same once.
    """
    alike = [offer for offer in previous if offer.size_bytes == size_bytes]
    return any(offer.ordinal == ordinal for offer in alike) and all(offer.hash != hash for offer in alike)


def home_blob(reference: Reference, home: Shard) -> Blob | None:
    """The blob that a reference stands for, in whatever form it is stored now (P2)."""
    return next((blob for blob in home.blobs if blob.ordinal == reference.home.ordinal), None)


def needed_of(home_id: SaveId, shard: Shard) -> set[int]:
    """Which blobs of the home's shard of the same rank ``shard`` refers to."""
    return {reference.home.ordinal for reference in shard.references if reference.home.save_id == home_id}


def check_references(shard: Shard, homes: Sequence[Shard | None]) -> str:
    """What is wrong with the references of a shard, given the shards that they name; "": nothing.

    ``homes``: in the order of the references, of the same rank; None: there is none.
    """
    ordinals = sorted([*(blob.ordinal for blob in shard.blobs), *(ref.ordinal for ref in shard.references)])
    if ordinals != list(range(len(ordinals))):
        return f"its blobs have the places {ordinals}, which are not all different and complete"
    if all(blob.ordinal for blob in shard.blobs):
        return "its first blob must be its own"
    if len({(ref.home.save_id, ref.home.ordinal) for ref in shard.references}) < len(shard.references):
        return "it refers to the same blob twice"
    for reference, home in zip(shard.references, homes, strict=True):
        stored = home_blob(reference, home) if home else None
        known = (stored.raw_bytes, stored.raw_hash, stored.blake3) if stored else None
        if not reference.blake3 or known != (reference.size_bytes, reference.hash, reference.blake3):
            return f"save {reference.home.save_id} does not store its blob {reference.ordinal}"
    return ""
