"""A fragment on its way out: header and footer are checked when it is opened, each block when it is read (I5)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import wait
from contextlib import closing, contextmanager
from types import TracebackType

from sdrs_core import checksums
from sdrs_core.checksums import BLOCK_BYTES
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, UnavailableError
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_storaged.store.buffers import BUFFER_BYTES
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.fragment import (
    OPEN_FLAGS,
    PAGE_BYTES,
    UNREADABLE_ERRNOS,
    FragmentKey,
    StoredFragment,
    read_contents,
)

_READ_AHEAD = 2  # buffers that are filled while one is sent


class FragmentReader:
    """Holds one open file; safe to use from several threads, since every read names its offset."""

    def __init__(self, disk: Disk, key: FragmentKey) -> None:
        self.key = key
        self.path = disk.fragment_path(key)
        self._disk = disk
        self._fd = -1
        try:
            with self._explained("header and footer"):
                self._fd = os.open(self.path, OPEN_FLAGS)
                self._contents = read_contents(self._fd)
            self.meta = self._contents.meta
            if self.meta.key != key:
                found = f"fragment {self.meta.fragment_index} of blob {self.meta.blob_id}"
                raise self._damaged("header", f"the file holds {found}, under a wrong name")
        except BaseException:
            self.close()
            raise
        self.size_bytes = self._contents.size_bytes
        self.fragment_hash = self._contents.fragment_hash
        self.table = self._contents.table
        # Of the whole blob, which a fragment of a code is a part of (P9).
        self.source_size_bytes = self._contents.source_size_bytes
        self.source_hash = self._contents.source_hash
        self.source_table = self._contents.source_table

    @property
    def stored(self) -> StoredFragment:
        return self._contents.stored_on(self._disk.disk_id)

    def reopen_direct(self) -> int:
        """A descriptor of its own, past the page cache where the disk allows it; the caller closes it."""
        flags = os.O_RDONLY | (os.O_DIRECT if self._disk.direct_io else 0)
        with self._explained("payload"):
            return os.open(f"/proc/self/fd/{self._fd}", flags)

    def pieces(self, start: int, end: int) -> Generator[memoryview, None, None]:
        """The bytes of a range in order, each piece valid until the next is asked for.

        They are read ahead past the page cache, which is faster than sendfile through it and leaves the cache to the
        training job. They are not checked: whoever receives them does that, against ``table`` (I5).
        """
        places = range(start - start % PAGE_BYTES, end, BUFFER_BYTES)
        buffers = [self._disk.buffers.take() for _ in range(_READ_AHEAD + 1)]
        fd = self.reopen_direct()

        def read(index: int) -> memoryview:
            buffer, place = buffers[index % len(buffers)], places[index]
            with self._explained(f"block {place // BLOCK_BYTES}"):
                got = os.preadv(fd, [buffer], PAYLOAD_OFFSET + place)
            wanted = memoryview(buffer)[max(0, start - place) : min(BUFFER_BYTES, end - place)]
            if got < min(BUFFER_BYTES, end - place):
                raise self._damaged(f"block {place // BLOCK_BYTES}", "it ends too early")
            return wanted

        ahead = deque(self._disk.readers.submit(read, index) for index in range(min(_READ_AHEAD, len(places))))
        try:
            for index in range(len(places)):
                piece = ahead.popleft().result()
                if index + _READ_AHEAD < len(places):
                    ahead.append(self._disk.readers.submit(read, index + _READ_AHEAD))
                yield piece
        finally:
            wait(ahead)  # nobody may read into a buffer that is given back
            os.close(fd)
            for buffer in buffers:
                self._disk.buffers.give(buffer)

    def verify(self, progress: Callable[[int], None] | None = None) -> None:
        """Check every block as it is on the disk; ``progress`` is told the bytes checked so far."""
        checked_bytes = 0
        with closing(self.pieces(0, self.size_bytes)) as pieces:
            for piece in pieces:
                for offset in range(0, len(piece), BLOCK_BYTES):
                    index = (checked_bytes + offset) // BLOCK_BYTES
                    self._check_block(index, piece[offset : offset + BLOCK_BYTES])
                checked_bytes += len(piece)
                if progress is not None:
                    progress(checked_bytes)

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

    def _check_block(self, index: int, block: memoryview) -> None:
        if checksums.digest(block) != checksums.table_entry(self.table, index):
            raise self._damaged(f"block {index}", "it does not match its checksum")

    @contextmanager
    def _explained(self, part: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if os.path.islink(self.path):
                raise self._damaged(part, "it is a link to a file that is not there") from error
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
            f"{part} of fragment {self.key.fragment_index} of blob {self.key.blob_id} is damaged: {what} ({self.path})",
            blob_id=self.key.blob_id,
            disk_id=self._disk.disk_id,
            path=self.path,
            part=part,
        )
