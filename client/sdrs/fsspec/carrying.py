"""How the files of the newest generation get into the next: in the very blobs that hold them, not stored again.

A blob is kept if most of it is still in use. What is left over, and what shares the first blob with the index (P23:
that one is never referred to), is packed anew together with what was written; so a write stores itself and little else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from sdrs.fsspec.generations import StoredBytes
from sdrs.fsspec.trees import Parts, Tree, entries_of
from sdrs.state import EncodedState, KeptBlob, encode_entries
from sdrs_core.ids import SaveId
from sdrs_core.references import LEAST_BYTES, can_refer
from sdrs_core.unchanged import Identity

# A save refers to few others (P3), and has few blobs. Beyond that it is packed anew.
MAX_HOMES = 40
MAX_KEPT_BLOBS = 400


@dataclass(frozen=True, slots=True)
class NewGeneration:
    """``known``: by place, what the catalog says of the blobs that are kept."""

    content: EncodedState
    known: Mapping[int, Identity]


@dataclass(slots=True)
class _Candidate:
    blob: StoredBytes
    places: dict[Parts, StoredBytes] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        return sum(place.size_bytes for place in self.places.values())


def new_generation(tree: Tree) -> NewGeneration:
    """The blobs of a generation with these files."""
    kept = _few_homes(_kept(tree))
    contents = {parts: node.content for parts, node in tree.items() if node.content is not None}
    content = encode_entries(
        entries_of(tree),
        lambda entry: contents[entry.parts],
        [
            KeptBlob(
                one.blob,
                one.blob.data_start,
                {parts: place.start - place.data_start for parts, place in one.places.items()},
            )
            for one in kept
        ],
        # What is packed with the index is stored with every write.
        first_pack_bytes=LEAST_BYTES,
    )
    return NewGeneration(content, {place: one.blob.identity for place, one in enumerate(kept, 1)})


def _kept(tree: Tree) -> list[_Candidate]:
    found: dict[int, _Candidate] = {}
    seen: set[StoredBytes] = set()
    for parts, node in tree.items():
        place = node.content
        # A copy within the step gets bytes of its own, as the index asks for; other ranks' blobs cannot be referred to.
        if not isinstance(place, StoredBytes) or not place.size_bytes or place.rank or place in seen:
            continue
        seen.add(place)
        found.setdefault(place.blob, _Candidate(place.whole)).places[parts] = place
    return [one for ordinal, one in sorted(found.items()) if _is_worth_keeping(ordinal, one)]


def _is_worth_keeping(ordinal: int, one: _Candidate) -> bool:
    _, blake3 = one.blob.identity
    return can_refer(ordinal, one.blob.size_bytes) and bool(blake3) and 2 * one.used_bytes >= one.blob.size_bytes


def _few_homes(kept: list[_Candidate]) -> list[_Candidate]:
    """Those of the saves that hold most of it."""
    if len(kept) > MAX_KEPT_BLOBS:
        return []
    bytes_of: Counter[SaveId] = Counter()
    for one in kept:
        bytes_of[one.blob.home] += one.blob.size_bytes
    homes = {save_id for save_id, _ in bytes_of.most_common(MAX_HOMES)}
    return [one for one in kept if one.blob.home in homes]
