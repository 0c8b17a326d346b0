"""I5: no unverified byte reaches a user. Here is where they are verified."""

from __future__ import annotations

from sdrs.transfer import Summary
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.checksums import BLOCK_BYTES, DIGEST_BYTES, blob_hash, block_count, digest, table_entry
from sdrs_core.codes import Code
from sdrs_core.errors import CorruptDataError


class BlockTable:
    """The checksums of a blob's plain blocks, themselves checked against the blob's record in the catalog.

    Every fragment has them (P9): what is decoded is checked as what is read.
    """

    def __init__(self, blob: Blob, summary: Summary) -> None:
        if summary.source_size_bytes != blob.size_bytes:
            raise CorruptDataError(f"it is of a blob of {summary.source_size_bytes} bytes instead of {blob.size_bytes}")
        _check_table("the blob's", blob.size_bytes, summary.source_table, blob.hash)
        self._table = summary.source_table

    def matches(self, start: int, block: memoryview) -> bool:
        """``block`` is what was read or decoded for ``start``, which is where a block starts."""
        return digest(block) == table_entry(self._table, start // BLOCK_BYTES)

    def check(self, start: int, block: memoryview) -> None:
        if not self.matches(start, block):
            raise CorruptDataError(f"block {start // BLOCK_BYTES} does not match its checksum")


class ParityTable:
    """The checksums of a parity fragment's own blocks, checked against what the record says of this holder."""

    def __init__(self, blob: Blob, code: Code, holder: Holder, summary: Summary) -> None:
        size_bytes = code.fragment_bytes(blob.size_bytes, holder.fragment_index)
        if summary.size_bytes != size_bytes:
            raise CorruptDataError(f"it has {summary.size_bytes} bytes instead of {size_bytes}")
        _check_table("its", size_bytes, summary.table, holder.fragment_hash)
        self._table = summary.table

    def matches(self, number: int, block: memoryview) -> bool:
        """``number``: the block's within the fragment."""
        return digest(block) == table_entry(self._table, number)

    def check(self, number: int, block: memoryview) -> None:
        if not self.matches(number, block):
            raise CorruptDataError(f"parity block {number} does not match its checksum")


def _check_table(whose: str, size_bytes: int, table: bytes, expected_hash: str) -> None:
    if len(table) != block_count(size_bytes) * DIGEST_BYTES:
        raise CorruptDataError(f"{whose} table of checksums has the wrong size")
    if blob_hash(size_bytes, table) != expected_hash:
        raise CorruptDataError(f"{whose} table of checksums does not match the catalog")
