"""A fragment made here, block by block: copied, rebuilt from others, or cut anew from a blob in another form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType

from sdrs_core import checksums
from sdrs_core.codes import parse_code
from sdrs_core.erasure import codec
from sdrs_core.errors import InvalidArgumentError, SdrsError
from sdrs_storaged.rpc.rebuild import WHOLE, Rooms, StripeReader
from sdrs_storaged.rpc.sources import AnySource, BlobFacts, OpenSource
from sdrs_storaged.store.buffers import BufferPool

_ROOM_OF_BLOCKS = -1


class FragmentStream(ABC):
    """``fill`` for each of its blocks, or ``blocks``; then ``fragment_hash``. It blocks, and has one caller at a time.

    Raises CorruptDataError if no more than damage or absence keeps the sources from making it, UnavailableError if one
    of them may come back.
    """

    def __init__(self, reader: StripeReader, code: str, index: int, buffers: BufferPool) -> None:
        self.code = parse_code(code) or WHOLE
        if not 0 <= index < self.code.total:
            raise InvalidArgumentError(f"a blob of code {code} has no fragment {index}")
        self.index = index
        self.size_bytes = self.code.fragment_bytes(reader.blob.size_bytes, index)
        self.block_count = checksums.block_count(self.size_bytes)
        self._reader = reader
        self._rooms = Rooms(buffers)
        self._stripe = 0
        self._table = bytearray()

    @property
    def source_table(self) -> bytes:
        """The checksums of the whole blob's plain blocks, whose hash is on record (P9)."""
        return self._reader.plain_table

    @property
    def fragment_hash(self) -> str:
        """Of all of it, once it was made."""
        return checksums.blob_hash(self.size_bytes, self._table)

    @property
    def received_bytes(self) -> int:
        """What was read for it so far."""
        return self._reader.received_bytes

    @property
    def failures(self) -> Mapping[AnySource, SdrsError]:
        """Of the sources that others had to take over from."""
        return self._reader.failures

    def fill(self, into: memoryview) -> tuple[int, bytes]:
        """Size and checksum of the next block, at the beginning of ``into``, which has room for a whole one."""
        size_bytes = self.code.block_bytes(self._reader.blob.size_bytes, self._stripe, self.index)
        self._make(self._stripe, into)
        if self.index < self.code.data:
            digest = checksums.table_entry(self.source_table, self._stripe * self.code.data + self.index)
        else:
            digest = checksums.digest(into[:size_bytes])
        self._table += digest
        self._stripe += 1
        return size_bytes, digest

    def blocks(self) -> Generator[tuple[bytes, memoryview], None, None]:
        """Each with its checksum; valid until the next is asked for."""
        room = self._rooms[_ROOM_OF_BLOCKS]
        for _ in range(self.block_count):
            size_bytes, digest = self.fill(room)
            yield digest, room[:size_bytes]

    def close(self) -> None:
        self._reader.close()
        self._rooms.close()

    def __enter__(self) -> FragmentStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _make(self, stripe: int, into: memoryview) -> None:
        """The block that a stripe has in this fragment."""


class _SameCode(FragmentStream):
    """Copied from whoever has it, or else rebuilt from as many others as the code needs."""

    def _make(self, stripe: int, into: memoryview) -> None:
        self._reader.read(stripe, {self.index: into})


class _Cut(FragmentStream):
    """Cut from the plain blocks of a blob that is stored in another form."""

    def __init__(self, reader: StripeReader, code: str, index: int, buffers: BufferPool) -> None:
        super().__init__(reader, code, index, buffers)
        self._plain_rooms = Rooms(buffers)
        self._plain_stripe = -1
        step, row = self.code.data, reader.code.data
        # Of the other form's fragments, only those that have a block of what is wanted.
        is_parity = index >= step
        self._columns = range(row) if is_parity else sorted({(index + step * turn) % row for turn in range(row)})

    def close(self) -> None:
        super().close()
        self._plain_rooms.close()

    def _make(self, stripe: int, into: memoryview) -> None:
        first, data = stripe * self.code.data, self.code.data
        if self.index < data:
            self._read_plain(first + self.index, into)
            return
        length = self.code.block_bytes(self._reader.blob.size_bytes, stripe, 0)
        blocks = {}
        for index in range(data):
            size_bytes = self.code.block_bytes(self._reader.blob.size_bytes, stripe, index)
            room = self._rooms[index]
            if size_bytes:
                self._read_plain(first + index, room)
            room[size_bytes:length] = bytes(length - size_bytes)
            blocks[index] = room[:length]
        codec(data, self.code.parity).reconstruct(blocks, {self.index: into[:length]})

    def _read_plain(self, block: int, into: memoryview) -> None:
        stripe, column = divmod(block, self._reader.code.data)
        if len(self._columns) == 1:
            self._reader.read(stripe, {column: into})
            return
        if stripe != self._plain_stripe:
            self._reader.read(stripe, {index: self._plain_rooms[index] for index in self._columns})
            self._plain_stripe = stripe
        into[:] = self._plain_rooms[column]


def fragment_stream(
    open_source: OpenSource,
    buffers: BufferPool,
    blob: BlobFacts,
    sources: Sequence[AnySource],
    index: int,
    code: str | None = None,
) -> FragmentStream:
    """Fragment ``index`` of ``blob``, or of the same content in another ``code``; ``sources`` hold ``blob``."""
    reader = StripeReader(open_source, blob, sources, buffers)
    kind = _SameCode if code in (None, blob.code) else _Cut
    return kind(reader, code or blob.code, index, buffers)
