"""One holder's fragment on its way in, block after block.

It is opened in a thread of its own: several are opened at once, and a node that hangs holds up nobody but that thread,
which ends with its deadline. After that the reader's thread takes block after block, each within a time that it says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sdrs.memory import allocate
from sdrs.restore.blocks import BlockTable, ParityTable
from sdrs.restore.stripes import Stripe
from sdrs.transfer import OpenRange
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import Code


class Lane:
    """``early_bytes``: the size of its first block, if that is to be read by the opening thread too."""

    def __init__(
        self,
        blob: Blob,
        code: Code,
        holder: Holder,
        stripe: Stripe,
        open_stream: Callable[[], OpenRange],
        *,
        early_bytes: int = 0,
    ) -> None:
        self.holder = holder
        self.index = holder.fragment_index
        # The stripe whose block comes next.
        self.next_stripe = stripe.number
        self.started = time.monotonic()
        self.opening_seconds = 0.0
        self.read_bytes = 0
        self.read_seconds = 0.0
        self.plain: BlockTable | None = None
        self._parity: ParityTable | None = None
        self._blob = blob
        self._code = code
        self._news = threading.Condition()
        self._is_busy = True
        self._is_closed = False
        self._stream: OpenRange | None = None
        self._failure: BaseException | None = None
        self._early: memoryview | None = None
        thread = threading.Thread(target=self._open, args=(open_stream, early_bytes), name="sdrs-open", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread to be had: it is opened here then
            self._open(open_stream, early_bytes)

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    @property
    def is_ready(self) -> bool:
        """Its first block is here."""
        return self._early is not None and not self._is_busy

    @property
    def last_heard(self) -> float:
        return self._stream.last_heard if self._stream is not None else 0.0

    @property
    def failure(self) -> BaseException | None:
        return None if self._is_busy else self._failure

    def read(self, into: memoryview, size_bytes: int, within_seconds: float) -> bool:
        """Its next block; False if that takes longer. Raises why it cannot be had."""
        before = time.monotonic()
        with self._news:
            if not self._news.wait_for(lambda: not self._is_busy, within_seconds):
                return False
        if self._failure is not None:
            raise self._failure
        assert self._stream is not None
        if self._early is not None:
            into[:size_bytes] = self._early[:size_bytes]
            self._early = None
        else:
            opened = time.monotonic()
            if not self._stream.read_into(into, size_bytes, max(0.0, within_seconds - (opened - before))):
                self.read_seconds += time.monotonic() - opened
                return False
            self.read_seconds += time.monotonic() - opened
        self.read_bytes += size_bytes
        self.next_stripe += 1
        return True

    def check(self, stripe: Stripe, block: memoryview) -> None:
        """I5: a plain block against the blob's table, a parity block against its own."""
        if self._parity is not None:
            self._parity.check(stripe.number, block)
        else:
            assert self.plain is not None
            self.plain.check(stripe.start_of(self.index), block)

    def close(self) -> None:
        with self._news:
            # While the thread is inside, the thread closes it: a file's number may be another's by then.
            is_mine = not self._is_busy and not self._is_closed
            self._is_closed = True
        if is_mine and self._stream is not None:
            self._stream.close()

    def _open(self, open_stream: Callable[[], OpenRange], early_bytes: int) -> None:
        try:
            self._stream = open_stream()
            self.opening_seconds = time.monotonic() - self.started
            # One after the other: only a fragment that fits the record is `open`, for what fails later.
            plain = BlockTable(self._blob, self._stream.summary)
            if self.index >= self._code.data:
                self._parity = ParityTable(self._blob, self._code, self.holder, self._stream.summary)
            self.plain = plain
            if early_bytes:
                early = allocate(early_bytes)
                self._stream.read_into(early, early_bytes)
                self._early = early
        except BaseException as error:  # raised where it is waited for
            self._failure = error
        finally:
            with self._news:
                self._is_busy = False
                is_mine = self._is_closed
                self._news.notify_all()
            if is_mine and self._stream is not None:
                self._stream.close()
