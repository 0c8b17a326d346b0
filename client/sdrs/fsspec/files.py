"""One open file: read by verified ranges through fsspec's caches, or written into a spool and committed when closed."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractBufferedFile

from sdrs.fsspec.contents import Spool
from sdrs.fsspec.failures import os_errors
from sdrs.fsspec.generations import StoredBytes
from sdrs.fsspec.places import Place
from sdrs.fsspec.trees import Put

if TYPE_CHECKING:
    from sdrs.fsspec.filesystem import SdrsFileSystem


class ReadFile(AbstractBufferedFile):
    """Reads one generation to the end, whatever is written meanwhile."""

    def __init__(self, fs: SdrsFileSystem, path: str, content: StoredBytes, details: dict[str, Any], **options: Any):
        self._content = content
        self._details = details
        super().__init__(fs, path, "rb", size=content.size_bytes, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        with os_errors(self.path):
            return bytes(self._content.read(start, end))


class WriteFile(AbstractBufferedFile):
    def __init__(self, fs: SdrsFileSystem, place: Place, mode: str, before_bytes: int, **options: Any) -> None:
        super().__init__(fs, place.path, mode, **options)
        self._place = place
        self._spool = Spool()
        self.loc = before_bytes

    def _upload_chunk(self, final: bool = False) -> bool:
        self._spool.write(self.buffer.getbuffer())
        if final:
            edit = Put(
                self._place.parts,
                self._spool,
                time.time_ns(),
                exclusive=self.mode == "xb",
                append=self.mode == "ab",
            )
            self.fs.edit(self._place, edit, now=self.autocommit)
        return True

    def discard(self) -> None:
        """Nothing is written."""
        self.closed = True
        self._spool.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Half a file is worse than none: a block that fails commits nothing.
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        # Whoever forgot to close it did not say that it is complete; and nothing is sent from a garbage collector.
        if not self.closed:
            self.discard()
