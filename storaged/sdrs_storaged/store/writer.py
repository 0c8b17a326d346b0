"""A fragment on its way in: blocks checked as they come, the whole checked at the end, then published.

The order of calls: ``next_block`` (fill it) and ``commit_block``, or ``append``, any number of times; ``finish`` once.
Leaving the ``with`` block without ``finish`` aborts. One caller at a time, except that ``abort`` may come from another
thread and then waits for the call under way.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from sdrs_core import checksums
from sdrs_core.checksums import BLOCK_BYTES, Buffer
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, RefusedError
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_storaged.fault_points import reach
from sdrs_storaged.store.buffers import BUFFER_BYTES
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.fragment import (
    PAGE_BYTES,
    FragmentMeta,
    StoredFragment,
    check_tables,
    encode_coded_footer,
    encode_footer,
    encode_header,
    file_bytes,
)
from sdrs_storaged.store.shelf import Shelf
from sdrs_storaged.store.temp_file import TempFile


class FragmentWriter:
    def __init__(self, disk: Disk, shelf: Shelf, meta: FragmentMeta, size_hint: int | None) -> None:
        self.meta = meta
        self._disk = disk
        self._shelf = shelf
        self._header = encode_header(meta)
        self._lock = threading.RLock()
        self._open = True
        self._size_bytes = 0
        self._table = bytearray()
        self._buffer: mmap.mmap | None = None
        self._filled_bytes = 0  # of the buffer
        self._handed_out: memoryview | None = None
        expected_bytes = PAYLOAD_OFFSET if size_hint is None else file_bytes(size_hint, meta.source_size_bytes)
        self._file = TempFile(disk, meta.key, self._header, expected_bytes)

    @property
    def size_bytes(self) -> int:
        """What was committed so far."""
        return self._size_bytes

    def next_block(self) -> memoryview:
        """Page-aligned room for one block, to be received into; it is valid until the next call of this writer."""
        with self._lock:
            self._check_open()
            if self._size_bytes % BLOCK_BYTES:
                raise InvalidArgumentError(f"blob {self.meta.blob_id}: a block follows a short one, which is the last")
            if self._handed_out is None:
                if self._buffer is None:
                    self._buffer = self._file.take_buffer()
                    self._filled_bytes = 0
                self._handed_out = memoryview(self._buffer)[self._filled_bytes : self._filled_bytes + BLOCK_BYTES]
            return self._handed_out

    def commit_block(self, size_bytes: int, digest: bytes | None) -> bytes:
        """Take the first bytes of the block that ``next_block`` gave, if they match the sender's digest, where there is
        one; the digest of them.

        After CorruptDataError nothing was taken, and the block may be sent again.
        """
        with self._lock:
            self._check_open()
            block = self._handed_out
            if block is None or not 0 < size_bytes <= BLOCK_BYTES:
                raise InvalidArgumentError(f"blob {self.meta.blob_id}: no block of {size_bytes} bytes can be committed")
            found = checksums.digest(block[:size_bytes])
            if digest is not None and found != digest:
                raise CorruptDataError(
                    f"block {self._size_bytes // BLOCK_BYTES} of blob {self.meta.blob_id} does not match the checksum "
                    "that came with it: it was damaged on the way, send it again",
                    blob_id=self.meta.blob_id,
                )
            self._take_back()
            self._table += found
            self._size_bytes += size_bytes
            self._filled_bytes += size_bytes
            if self._filled_bytes == BUFFER_BYTES:
                self._flush(BUFFER_BYTES)
                self._buffer = None
            return found

    def append(self, block: Buffer, digest: bytes) -> None:
        """The same for bytes that are already in memory."""
        size_bytes = len(block)
        if size_bytes > BLOCK_BYTES:
            raise InvalidArgumentError(
                f"blob {self.meta.blob_id}: a block has at most {BLOCK_BYTES} bytes, not {size_bytes}"
            )
        with self._lock:
            self.next_block()[:size_bytes] = block
            self.commit_block(size_bytes, digest)

    def finish(
        self,
        size_bytes: int,
        fragment_hash: str,
        permit: Callable[[], None] | None = None,
        source_table: bytes = b"",
    ) -> StoredFragment:
        """Durable and in place when this returns (I1), or an error and nothing left behind.

        ``permit`` is asked at the last moment before the fragment gets its name, and raises if it must not (P8).
        ``source_table``: of a fragment of a code, the checksums of the whole blob's plain blocks (P9).
        """
        with self._lock:
            self._check_open()
            try:
                self._take_back()
                self.check_whole(size_bytes, fragment_hash)
                source_size_bytes, source_hash = self._check_source(size_bytes, fragment_hash, source_table)
                self._seal(source_table)
                if permit is not None:
                    permit()
                stored = StoredFragment(
                    self.meta.blob_id,
                    self.meta.fragment_index,
                    self.meta.save_id,
                    self._disk.disk_id,
                    size_bytes,
                    fragment_hash,
                    self.meta.created_unix_seconds,
                    self.meta.code,
                    source_size_bytes,
                    source_hash,
                )
                stored = self._shelf.publish(self._disk, self._file.path, stored)
                with self._disk.explained("acknowledge"):
                    reach("fragment.done")
                return stored
            finally:
                self.abort()

    def abort(self) -> None:
        """Remove the temporary file and give back its space; nothing happens after ``finish`` or a first ``abort``."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            if self._buffer is not None and self._handed_out is not None:
                # A receive that was cancelled may still be running: its late bytes must not land in another fragment.
                self._file.forget_buffer(self._buffer)
            self._file.discard()

    def __enter__(self) -> FragmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _check_open(self) -> None:
        if not self._open:
            raise RefusedError(f"the write of blob {self.meta.blob_id} is over: it was finished or aborted")

    def _take_back(self) -> None:
        """A view that is used later raises, instead of changing bytes that were already compared."""
        if self._handed_out is not None:
            with suppress(BufferError):  # somebody made an array of it; they know what they do
                self._handed_out.release()
            self._handed_out = None

    def _check_source(self, size_bytes: int, fragment_hash: str, source_table: bytes) -> tuple[int, str]:
        """Size and hash of the blob."""
        if not self.meta.is_coded:
            return size_bytes, fragment_hash
        check_tables(self.meta, size_bytes, bytes(self._table), source_table)
        source_size_bytes = self.meta.source_size_bytes
        return source_size_bytes, checksums.blob_hash(source_size_bytes, source_table)

    def check_whole(self, size_bytes: int, fragment_hash: str) -> None:
        """Whether all that was announced is there; ``finish`` looks again."""
        if size_bytes != self._size_bytes:
            raise CorruptDataError(
                f"blob {self.meta.blob_id} should have {size_bytes} bytes, {self._size_bytes} came: send it again",
                blob_id=self.meta.blob_id,
            )
        if fragment_hash != checksums.blob_hash(size_bytes, self._table):
            raise CorruptDataError(
                f"blob {self.meta.blob_id} does not match the hash that came with it: send it again",
                blob_id=self.meta.blob_id,
            )

    def _flush(self, length: int) -> None:
        assert self._buffer is not None
        start = PAYLOAD_OFFSET + self._size_bytes - self._filled_bytes
        self._file.write_behind(self._buffer, length, start)

    def _seal(self, source_table: bytes) -> None:
        tail = b""
        if self._buffer is not None:
            whole_pages = self._filled_bytes - self._filled_bytes % PAGE_BYTES
            tail = self._buffer[whole_pages : self._filled_bytes]
            if whole_pages:
                self._flush(whole_pages)
        table = bytes(self._table)
        if self.meta.is_coded:
            source_size_bytes = self.meta.source_size_bytes
            footer = encode_coded_footer(self._header, self._size_bytes, table, source_size_bytes, source_table)
        else:
            footer = encode_footer(self._header, self._size_bytes, table)
        self._file.seal(tail + footer, PAYLOAD_OFFSET + self._size_bytes - len(tail))
