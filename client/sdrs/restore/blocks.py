"""I5: no unverified byte reaches a user. Here is where they are verified."""

from __future__ import annotations

from sdrs.transfer import Summary
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES, DIGEST_BYTES, blob_hash, block_count, digest, table_entry
from sdrs_core.errors import CorruptDataError


class BlockTable:
    """The checksums of a blob's blocks, themselves checked against the blob's record in the catalog."""

    def __init__(self, blob: Blob, summary: Summary) -> None:
        if summary.size_bytes != blob.size_bytes:
            raise CorruptDataError(f"it has {summary.size_bytes} bytes instead of {blob.size_bytes}")
        if len(summary.table) != block_count(blob.size_bytes) * DIGEST_BYTES:
            raise CorruptDataError("its table of checksums has the wrong size")
        if blob_hash(blob.size_bytes, summary.table) != blob.hash:
            raise CorruptDataError("its table of checksums does not match the catalog")
        self._table = summary.table

    def check(self, start: int, block: memoryview) -> None:
        """``block`` is what was read at ``start``, which is where a block starts."""
        index = start // BLOCK_BYTES
        if digest(block) != table_entry(self._table, index):
            raise CorruptDataError(f"block {index} does not match its checksum")
