"""One open file: read by verified ranges through fsspec's caches, or written into a spool and committed when closed."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fsspec.core import OpenFile
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

    def close(self) -> None:
        # ``fsspec.open`` closes its files at the end of a block that failed as of any other, without a word.
        if not self.closed and _is_in_failed_block(self):
            self.discard()
        else:
            super().close()

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


def _is_in_failed_block(file: WriteFile) -> bool:
    """Whether ``file`` is closed by a ``with fsspec.open(...)`` that an exception ends. Only the frame of its
    ``__exit__`` knows: an exception that is being handled may as well be one of which the file is to tell.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is OpenFile.__exit__.__code__ and file in frame.f_locals["self"].fobjects:
            return frame.f_locals["args"][0] is not None
    return False
