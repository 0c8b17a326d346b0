"""A blob is cut into the fragments of its code while it comes in: one pass over its bytes, in the memory of three
stripes (I10).

Each plain block goes on at once to whoever stores its fragment. With the last block of a stripe the parity is computed,
over short and absent blocks as if they were filled up with zeros, and goes on in the same way.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Set
from dataclasses import dataclass

from sdrs_core import checksums
from sdrs_core.checksums import BLOCK_BYTES, Buffer
from sdrs_core.codes import Code
from sdrs_core.erasure import codec
from sdrs_core.errors import CorruptDataError, InvalidArgumentError
from sdrs_core.ids import BlobId
from sdrs_storaged.fault_points import reach
from sdrs_storaged.store.buffers import BLOCKS_PER_BUFFER, BufferPool
from sdrs_storaged.store.fragment import plain_rows

# One is filled while the last blocks of two are still on their way: who sends a block on may be so far behind.
STRIPES_HELD = 3

_ZEROS = memoryview(bytes(BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class CutBlob:
    """What a blob became: ``tables`` has one table of checksums for each fragment."""

    code: Code
    size_bytes: int
    table: bytes
    tables: tuple[bytes, ...]

    @property
    def hash(self) -> str:
        return checksums.blob_hash(self.size_bytes, self.table)

    def fragment_bytes(self, index: int) -> int:
        return self.code.fragment_bytes(self.size_bytes, index)

    def fragment_hash(self, index: int) -> str:
        return checksums.blob_hash(self.fragment_bytes(index), self.tables[index])


class Striping:
    """The order of calls: ``next_block`` (fill it) and ``commit_block`` for each block, ``finish`` once, and at last
    ``close``, when nobody uses a block any more.

    ``put`` is given (fragment index, checksum, block). The block's memory stays as it is until ``STRIPES_HELD`` - 1
    more blocks of that fragment were put.
    """

    def __init__(
        self,
        blob_id: BlobId,
        code: Code,
        size_bytes: int,
        buffers: BufferPool,
        put: Callable[[int, bytes, memoryview], None],
        wanted: Set[int],
    ) -> None:
        """``wanted``: the fragments that somebody stores. Parity that nobody wants is not computed."""
        self._blob_id = blob_id
        self._code = code
        self._codec = codec(code.data, code.parity)
        self._announced_bytes = size_bytes
        self._pool = buffers
        self._put = put
        self._wants_parity = any(index >= code.data for index in wanted)
        self._buffers: list[mmap.mmap] = []
        self._stripes: list[list[memoryview]] = []
        self._stripe_number = 0
        self._lengths: list[int] = []  # of the blocks of the stripe that is being filled
        self._size_bytes = 0
        self._table = bytearray()
        self._parity_tables = [bytearray() for _ in range(code.parity)]

    def next_block(self) -> memoryview:
        """Page-aligned room for one block, to be received into."""
        if self._size_bytes % BLOCK_BYTES:
            raise InvalidArgumentError(f"blob {self._blob_id}: a block follows a short one, which is the last")
        return self._stripe()[len(self._lengths)]

    def commit_block(self, size_bytes: int, digest: bytes | None) -> bytes:
        """Take the first bytes of the block that ``next_block`` gave, if they match the sender's digest, where there is
        one; the digest of them.
        """
        if not 0 < size_bytes <= BLOCK_BYTES:
            raise InvalidArgumentError(f"blob {self._blob_id}: no block of {size_bytes} bytes can be committed")
        block = self.next_block()[:size_bytes]
        if self._size_bytes + size_bytes > self._announced_bytes:
            raise self._damaged(f"should have {self._announced_bytes} bytes, more came")
        found = checksums.digest(block)
        if digest is not None and found != digest:
            raise self._damaged(f"has a block ({len(self._table) // len(digest)}) that does not match its checksum")
        index = len(self._lengths)
        self._table += found
        self._size_bytes += size_bytes
        self._lengths.append(size_bytes)
        self._put(index, found, block)
        if len(self._lengths) == self._code.data:
            self._end_stripe()
        return found

    def append(self, block: Buffer, digest: bytes) -> None:
        """The same for bytes that are already in memory."""
        size_bytes = len(block)
        if size_bytes > BLOCK_BYTES:
            raise InvalidArgumentError(
                f"blob {self._blob_id}: a block has at most {BLOCK_BYTES} bytes, not {size_bytes}"
            )
        self.next_block()[:size_bytes] = block
        self.commit_block(size_bytes, digest)

    def finish(self, size_bytes: int, blob_hash: str) -> CutBlob:
        """When all that was announced is there, the last parity goes on."""
        if not size_bytes == self._size_bytes == self._announced_bytes:
            raise self._damaged(f"should have {self._announced_bytes} bytes, {self._size_bytes} came")
        if blob_hash != checksums.blob_hash(size_bytes, self._table):
            raise self._damaged("does not match the hash that came with it")
        if self._lengths:
            self._end_stripe()
        table = bytes(self._table)
        plain = (plain_rows(table, index, self._code.data) for index in range(self._code.data))
        return CutBlob(self._code, size_bytes, table, (*plain, *map(bytes, self._parity_tables)))

    def close(self) -> None:
        while self._buffers:
            self._pool.give(self._buffers.pop())
        self._stripes.clear()

    def _stripe(self) -> list[memoryview]:
        """The blocks of the stripe that is being filled, data first."""
        place = self._stripe_number % STRIPES_HELD
        if place == len(self._stripes):
            self._stripes.append(self._take_stripe())
        return self._stripes[place]

    def _take_stripe(self) -> list[memoryview]:
        blocks: list[memoryview] = []
        for _ in range(-(-self._code.total // BLOCKS_PER_BUFFER)):
            buffer = self._pool.take()
            self._buffers.append(buffer)
            room = memoryview(buffer)
            blocks += [room[start : start + BLOCK_BYTES] for start in range(0, len(room), BLOCK_BYTES)]
        return blocks

    def _end_stripe(self) -> None:
        if self._wants_parity:
            self._put_parity()
        self._lengths.clear()
        self._stripe_number += 1

    def _put_parity(self) -> None:
        stripe, data = self._stripe(), self._code.data
        longest = self._lengths[0]
        for index in range(data):
            length = self._lengths[index] if index < len(self._lengths) else 0
            if length < longest:
                stripe[index][length:longest] = _ZEROS[: longest - length]
        parity = [block[:longest] for block in stripe[data : self._code.total]]
        self._codec.encode([block[:longest] for block in stripe[:data]], parity)
        reach("stripe.encoded")
        for number, block in enumerate(parity):
            digest = checksums.digest(block)
            self._parity_tables[number] += digest
            self._put(data + number, digest, block)

    def _damaged(self, what: str) -> CorruptDataError:
        return CorruptDataError(f"blob {self._blob_id} {what}: send it again", blob_id=self._blob_id)
