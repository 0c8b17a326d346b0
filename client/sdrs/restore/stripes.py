"""Which blocks of which fragments a range of a blob consists of, and which fragments to read for them. No I/O.

A whole copy is the code with one data fragment and no parity: its stripes are single blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.codes import Code

# Each range costs a call and a connection for each of its fragments, so they are not small, and not more than a few
# dozen for one blob; nor so large that at the end most readers wait for the last.
RANGE_BYTES = 32 << 20
MAX_RANGES_PER_BLOB = 64

# The lower the better; the first number is the tier.
Rank = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a blob: whole blocks, the last of the blob may be short. Of one that is packed: as it is stored, or as
    it was saved.
    """

    blob: Blob
    start: int
    end: int


def cut(blob: Blob, code: Code, start: int, end: int) -> Iterator[Range]:
    """What several workers share, each part about as long; borders are those of stripes where they can be."""
    size_bytes = end - start
    count = min(max(1, round(size_bytes / RANGE_BYTES)), MAX_RANGES_PER_BLOB)
    step = -(-size_bytes // (count * code.stripe_bytes)) * code.stripe_bytes
    while start < end:
        border = min((start // code.stripe_bytes) * code.stripe_bytes + step, end)
        yield Range(blob, start, border)
        start = border


@dataclass(frozen=True, slots=True)
class Stripe:
    """One stripe of a blob, of which the bytes from ``start`` to ``end`` are wanted."""

    code: Code
    blob_bytes: int
    number: int
    start: int
    end: int

    @property
    def wanted(self) -> range:
        """The data fragments that have them."""
        first = self.number * self.code.data
        return range(self.start // BLOCK_BYTES - first, -(-self.end // BLOCK_BYTES) - first)

    def start_of(self, index: int) -> int:
        """Where in the blob a data fragment's block of this stripe is."""
        return (self.number * self.code.data + index) * BLOCK_BYTES

    def bytes_of(self, index: int) -> int:
        """How long a fragment's block of this stripe is; 0 if it has none, which counts as a block of zeros."""
        return self.code.block_bytes(self.blob_bytes, self.number, index)


def stripes(code: Code, blob_bytes: int, start: int, end: int) -> Iterator[Stripe]:
    while start < end:
        number = start // code.stripe_bytes
        border = min((number + 1) * code.stripe_bytes, end)
        yield Stripe(code, blob_bytes, number, start, border)
        start = border


def choose(wanted: Collection[int], needed: int, ranks: Mapping[int, Rank]) -> list[int]:
    """The fragments to read: the ``wanted`` ones, or any ``needed`` ones to compute these from if better ones are among
    those. ``ranks``: what can be had. Nothing, if that is too little.
    """
    best = sorted(ranks, key=ranks.__getitem__)[:needed]
    can_decode = len(best) == needed
    if all(index in ranks for index in wanted) and not (
        can_decode and _worst_tier(best, ranks) < _worst_tier(wanted, ranks)
    ):
        return sorted(wanted)
    return best if can_decode else []


def _worst_tier(indexes: Collection[int], ranks: Mapping[int, Rank]) -> int:
    return max((ranks[index][0] for index in indexes), default=-1)
