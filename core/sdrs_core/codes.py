"""Erasure codes, and how a blob is cut into fragments by one. Arithmetic on sizes only; ``erasure`` has the bytes.

A blob is a row of plain blocks. A stripe is ``data`` of them in a row: block 0 of each stripe goes to fragment 0, block
1 to fragment 1, and so on, and each stripe has one more block in every parity fragment. So a data fragment holds plain
blocks as they are, with the checksums that their source gave them, and a range is read from whoever has its blocks.

In the last stripe blocks may be short or absent; for the arithmetic they count as filled up with zeros, and parity
blocks are as long as the longest of them, which is the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import InvalidArgumentError

MIRROR = "mirror"
MAX_FRAGMENTS = 255

_TEXT = re.compile(r"([0-9]{1,3})\+([0-9]{1,3})\Z")


@dataclass(frozen=True, slots=True)
class Code:
    """``data`` fragments of which any ``data`` bring the blob back, ``parity`` of them to spare."""

    data: int
    parity: int

    def __str__(self) -> str:
        return f"{self.data}+{self.parity}"

    @property
    def total(self) -> int:
        return self.data + self.parity

    @property
    def stripe_bytes(self) -> int:
        return self.data * BLOCK_BYTES

    def stripe_count(self, blob_bytes: int) -> int:
        return -(-blob_bytes // self.stripe_bytes)

    def fragment_bytes(self, blob_bytes: int, index: int) -> int:
        """The size of one fragment of a blob."""
        stripes, rest = divmod(blob_bytes, self.stripe_bytes)
        return stripes * BLOCK_BYTES + self._block_bytes(rest, index)

    def block_bytes(self, blob_bytes: int, stripe: int, index: int) -> int:
        """The size of the block that a stripe has in one fragment; 0 if it has none."""
        return self._block_bytes(min(blob_bytes - stripe * self.stripe_bytes, self.stripe_bytes), index)

    def _block_bytes(self, stripe_bytes: int, index: int) -> int:
        before = index * BLOCK_BYTES if index < self.data else 0
        return max(0, min(BLOCK_BYTES, stripe_bytes - before))

    def place_of(self, block: int) -> tuple[int, int]:
        """(stripe, fragment) of a plain block; the stripe is also its block's number within the fragment."""
        return divmod(block, self.data)


def check_code(data: int, parity: int) -> Code:
    if data < 1 or parity < 1 or data + parity > MAX_FRAGMENTS:
        raise InvalidArgumentError(
            f"{data}+{parity} is not an erasure code: it has at least 1 data and 1 parity fragment, at most "
            f"{MAX_FRAGMENTS} in all; use 4+2 for example"
        )
    return Code(data, parity)


@lru_cache(maxsize=1024)
def parse_code(text: str) -> Code | None:
    """What a blob's record says: None for whole copies."""
    if text == MIRROR:
        return None
    match = _TEXT.match(text)
    if match is None:
        raise InvalidArgumentError(f"{text[:80]!r} is not an erasure code: data+parity is expected, 4+2 for example")
    return check_code(int(match[1]), int(match[2]))
