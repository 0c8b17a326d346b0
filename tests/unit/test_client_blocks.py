"""I5: what does not match the catalog or its checksum is refused."""

from __future__ import annotations

import os

import pytest

from sdrs.errors import CorruptDataError
from sdrs.restore.blocks import BlockTable
from sdrs.transfer import Summary
from sdrs_core.checkpoints import Blob
from sdrs_core.checksums import BLOCK_BYTES, blob_hash, block_spans, digest
from sdrs_core.ids import BlobId, random_id

CONTENT = os.urandom(2 * BLOCK_BYTES + 100)
TABLE = b"".join(digest(CONTENT[at : at + BLOCK_BYTES]) for at in range(0, len(CONTENT), BLOCK_BYTES))
HASH = blob_hash(len(CONTENT), TABLE)
BLOB = Blob(BlobId(random_id()), 0, len(CONTENT), HASH)


def test_whole_blocks_that_match_pass() -> None:
    table = BlockTable(BLOB, Summary.of_copy(len(CONTENT), HASH, TABLE))
    for start, end in block_spans(0, len(CONTENT)):
        table.check(start, memoryview(CONTENT)[start:end])


def test_a_flipped_bit_in_any_block_is_refused() -> None:
    table = BlockTable(BLOB, Summary.of_copy(len(CONTENT), HASH, TABLE))
    for start, end in block_spans(0, len(CONTENT)):
        flipped = bytearray(CONTENT[start:end])
        flipped[-1] ^= 1
        with pytest.raises(CorruptDataError, match=f"block {start // BLOCK_BYTES}"):
            table.check(start, memoryview(flipped))


def test_a_block_in_the_place_of_another_is_refused() -> None:
    table = BlockTable(BLOB, Summary.of_copy(len(CONTENT), HASH, TABLE))
    with pytest.raises(CorruptDataError):
        table.check(BLOCK_BYTES, memoryview(CONTENT)[:BLOCK_BYTES])


@pytest.mark.parametrize(
    "summary",
    [
        Summary.of_copy(
            len(CONTENT), HASH, TABLE[:-1] + bytes([TABLE[-1] ^ 1])
        ),  # a table that was changed with its blocks
        Summary.of_copy(len(CONTENT) - 1, HASH, TABLE),
        Summary.of_copy(len(CONTENT), HASH, TABLE[:-16]),
        Summary.of_copy(len(CONTENT), HASH, b""),
    ],
)
def test_a_summary_that_does_not_fit_the_catalog_is_refused_whatever_it_claims(summary: Summary) -> None:
    with pytest.raises(CorruptDataError):
        BlockTable(BLOB, summary)
