"""A fragment on its way out: header and footer are checked when it is opened, each block when it is read (I5)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from sdrs_core import checksums
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, NotFoundError, SdrsError, UnavailableError
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_storaged.store.buffers import BUFFER_BYTES
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.fragment import (
    UNREADABLE_ERRNOS,
    FragmentKey,
    StoredFragment,
    read_contents,
)


class FragmentReader:
    """Holds one open file; safe to use from several threads, since every read names its offset."""

    payload_offset = PAYLOAD_OFFSET

    def __init__(self, disk: Disk, key: FragmentKey) -> None:
        self.key = key
        self.path = disk.fragment_path(key)
        self._disk = disk
        self._fd = -1
        try:
            with self._explained("header and footer"):
                self._fd = os.open(self.path, os.O_RDONLY)
                self._contents = read_contents(self._fd)
            self.meta = self._contents.meta
            if self.meta.key != key:
                found = f"fragment {self.meta.fragment_index} of blob {self.meta.blob_id}"
                raise self._damaged("header", f"the file holds {found}, under a wrong name")
        except BaseException:
            self.close()
            raise
        self.size_bytes = self._contents.size_bytes
        self.blob_hash = self._contents.blob_hash
        self.table = self._contents.table

    @property
    def stored(self) -> StoredFragment:
        return self._contents.stored_on(self._disk.disk_id)

    def fileno(self) -> int:
        """For sendfile and for handing over; whoever reads through it checks the blocks against ``table``."""
        return self._fd

    def reopen_direct(self) -> int:
        """A descriptor of its own, past the page cache where the disk allows it; the caller closes it."""
        flags = os.O_RDONLY | (os.O_DIRECT if self._disk.direct_io else 0)
        with self._explained("payload"):
            return os.open(f"/proc/self/fd/{self._fd}", flags)

    def read_block(self, index: int, into: bytearray | memoryview) -> int:
        """Read one block to the beginning of ``into``, checked; returns its size."""
        start = index * BLOCK_BYTES
        if not 0 <= start < self.size_bytes:
            raise InvalidArgumentError(f"blob {self.key.blob_id} has no block {index}")
        view = memoryview(into)[: min(BLOCK_BYTES, self.size_bytes - start)]
        with self._explained(f"block {index}"):
            self._read_fully(self._fd, view, PAYLOAD_OFFSET + start)
        self._check_block(index, view)
        return len(view)

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Check every block as it is on the disk; ``progress`` is told the bytes checked so far."""
        # What the page cache remembers is not what is to be checked, and a scrub must not wipe it.
        fd = self.reopen_direct()
        buffer = self._disk.buffers.take()
        try:
            for start in range(0, self.size_bytes, BUFFER_BYTES):
                # Whole buffers, as O_DIRECT wants it; at the end the footer comes along or the read is short.
                with self._explained(f"block {start // BLOCK_BYTES}"):
                    got = os.preadv(fd, [buffer], PAYLOAD_OFFSET + start)
                end = min(start + BUFFER_BYTES, self.size_bytes)
                if got < end - start:
                    raise self._damaged(f"block {start // BLOCK_BYTES}", "it ends too early")
                payload = memoryview(buffer)[: end - start]
                for offset in range(0, len(payload), BLOCK_BYTES):
                    self._check_block((start + offset) // BLOCK_BYTES, payload[offset : offset + BLOCK_BYTES])
                if progress is not None:
                    progress(end)
        finally:
            os.close(fd)
            self._disk.buffers.give(buffer)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FragmentReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_fully(self, fd: int, view: memoryview, offset: int) -> None:
        while view:
            got = os.preadv(fd, [view], offset)
            if not got:
                raise CorruptDataError("it ends too early")
            view, offset = view[got:], offset + got

    def _check_block(self, index: int, block: memoryview) -> None:
        if checksums.digest(block) != checksums.table_entry(self.table, index):
            raise self._damaged(f"block {index}", "it does not match its checksum")

    @contextmanager
    def _explained(self, part: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(
                f"disk {self._disk.disk_id} has no fragment {self.key.fragment_index} of blob {self.key.blob_id}",
                blob_id=self.key.blob_id,
            ) from error
        except CorruptDataError as error:
            raise self._damaged(part, error.message) from error
        except SdrsError:  # before OSError: some of ours are both
            raise
        except OSError as error:
            if error.errno in UNREADABLE_ERRNOS:
                raise self._damaged(part, f"it cannot be read ({error.strerror})") from error
            raise UnavailableError(f"{self.path} cannot be read now: {error}", blob_id=self.key.blob_id) from error

    def _damaged(self, part: str, what: str) -> CorruptDataError:
        return CorruptDataError(
            f"{part} of fragment {self.key.fragment_index} of blob {self.key.blob_id} is damaged: {what} "
            f"(disk {self._disk.disk_id}, {self.path}); another copy has to serve, and repair this one",
            blob_id=self.key.blob_id,
            disk_id=self._disk.disk_id,
            path=self.path,
            part=part,
        )
