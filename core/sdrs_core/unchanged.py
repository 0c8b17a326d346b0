"""What of a shard an earlier save has stored, and need not be sent (P23).

A blob that may be unchanged by its checksum is compared by its BLAKE3. What is sent gets one as well, so that a later
save can recognise it; but not what is seen to change from save to save, which is most of a training state. Without the
package ``blake3`` nothing is recognised, and everything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sdrs_core.checkpoints import Reference
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.references import (
    NewBlob,
    blake3_hasher,
    can_refer,
    decide_references,
    is_changing,
    may_be_unchanged,
)


@dataclass(frozen=True, slots=True)
class Identity:
    """``hash`` is what the blob is registered with if it is sent with the very bytes that ``blake3`` is of."""

    hash: str
    blake3: str


class Unchanged:
    """Of one shard, over all tries to bring it in: each blob is read for it once.

    ``blocks_of`` gives the blocks of a blob by its ordinal; each is valid until the next is asked for.
    """

    def __init__(self, sizes_bytes: Sequence[int], blocks_of: Callable[[int], Iterable[memoryview]]) -> None:
        self._sizes_bytes = sizes_bytes
        self._blocks_of = blocks_of
        self._offers: Sequence[Reference] = ()
        self._checksums: dict[int, str] = {}
        self._identities: dict[int, Identity] = {}
        self.is_able = blake3_hasher() is not None

    def refer(self, offers: Sequence[Reference]) -> dict[int, Reference]:
        """By ordinal, what need not be sent."""
        self._offers = offers
        new = []
        for ordinal, size_bytes in enumerate(self._sizes_bytes):
            is_like = can_refer(ordinal, size_bytes) and any(offer.size_bytes == size_bytes for offer in offers)
            if is_like and may_be_unchanged(offers, size_bytes, self._checksum(ordinal)):
                new.append(NewBlob(ordinal, size_bytes, self._identity(ordinal).blake3))
        return decide_references(offers, new)

    def identity(self, ordinal: int) -> Identity | None:
        """Of a blob that is about to be sent; None if it is not worth to be known."""
        size_bytes = self._sizes_bytes[ordinal]
        if not self.is_able or not can_refer(ordinal, size_bytes):
            return None
        known = self._checksums.get(ordinal)
        is_other = known is not None and is_changing(self._offers, ordinal, size_bytes, known)
        return None if is_other else self._identity(ordinal)

    def _checksum(self, ordinal: int) -> str:
        if ordinal not in self._checksums:
            table = b"".join(digest(block) for block in self._blocks_of(ordinal))
            self._checksums[ordinal] = blob_hash(self._sizes_bytes[ordinal], table)
        return self._checksums[ordinal]

    def _identity(self, ordinal: int) -> Identity:
        """Both in one pass: the bytes may lie in memory that somebody else writes to meanwhile."""
        if ordinal not in self._identities:
            hasher = blake3_hasher()
            assert hasher is not None
            digests = []
            for block in self._blocks_of(ordinal):
                digests.append(digest(block))
                hasher.update(block)
            whole = blob_hash(self._sizes_bytes[ordinal], b"".join(digests))
            self._identities[ordinal] = Identity(whole, hasher.hexdigest())
        return self._identities[ordinal]
