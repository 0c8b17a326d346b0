"""What of a shard an earlier save has stored, and need not be sent (P23).

A blob that may be unchanged by its checksum is compared by its BLAKE3. What is sent gets one as well, so that a later
save can recognise it; but what is seen to change from save to save, which is most of a training state, is not even read
for that. Without the package ``blake3`` nothing is recognised, and everything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sdrs_core.checkpoints import Reference
from sdrs_core.checksums import blob_hash, digest
from sdrs_core.references import (
    NewBlob,
    blake3_hasher,
    can_refer,
    decide_references,
    is_changing,
    is_worth_comparing,
    may_be_unchanged,
)

# The checksum and the BLAKE3 of a blob.
Identity = tuple[str, str]


class Unchanged:
    """Of one shard, over all tries to bring it in: each blob is read for it once.

    ``blocks_of`` gives the blocks of a blob by its ordinal; each is valid until the next is asked for. ``known``: what
    the catalog says of blobs that are taken from it as they are, which then need not be read at all.
    """

    def __init__(
        self,
        sizes_bytes: Sequence[int],
        blocks_of: Callable[[int], Iterable[memoryview]],
        known: Mapping[int, Identity] | None = None,
    ) -> None:
        self._sizes_bytes = sizes_bytes
        self._blocks_of = blocks_of
        self._offers: Sequence[Reference] = ()
        self._identities: dict[int, Identity] = dict(known or {})
        self._checksums = {ordinal: whole for ordinal, (whole, _) in self._identities.items()}
        self.is_able = blake3_hasher() is not None

    def refer(self, offers: Sequence[Reference]) -> dict[int, Reference]:
        """By ordinal, what need not be sent."""
        self._offers = offers
        new = []
        for ordinal, size_bytes in enumerate(self._sizes_bytes):
            is_like = can_refer(ordinal, size_bytes) and is_worth_comparing(offers, ordinal, size_bytes)
            if is_like and may_be_unchanged(offers, size_bytes, self._checksum(ordinal)):
                new.append(NewBlob(ordinal, size_bytes, self._identity(ordinal)[1]))
        return decide_references(offers, new)

    def identify(self, ordinal: int, whole: str) -> str:
        """The BLAKE3 of a blob that was sent, and stored with the hash ``whole``; empty if it is not worth to be known,
        or not that of the very bytes that were sent: by it, other saves are told that they have this.
        """
        size_bytes = self._sizes_bytes[ordinal]
        if not self.is_able or not can_refer(ordinal, size_bytes):
            return ""
        if is_changing(self._offers, ordinal, size_bytes, whole):
            return ""
        found, blake3 = self._identity(ordinal)
        return blake3 if found == whole else ""

    def _checksum(self, ordinal: int) -> str:
        if ordinal not in self._checksums:
            table = b"".join(digest(block) for block in self._blocks_of(ordinal))
            self._checksums[ordinal] = blob_hash(self._sizes_bytes[ordinal], table)
        return self._checksums[ordinal]

    def _identity(self, ordinal: int) -> Identity:
        """The checksum and the BLAKE3, in one pass: the bytes may lie in memory that somebody else writes to."""
        if ordinal not in self._identities:
            hasher = blake3_hasher()
            assert hasher is not None
            digests = []
            for block in self._blocks_of(ordinal):
                digests.append(digest(block))
                hasher.update(block)
            whole = blob_hash(self._sizes_bytes[ordinal], b"".join(digests))
            self._identities[ordinal] = (whole, hasher.hexdigest())
        return self._identities[ordinal]
