"""One copy or fragment of a blob on its way to one member while the primary still receives the blob: a thread, and two
blocks at most.

The primary hands each block over and goes on. It waits only while the member is two blocks behind, and not for longer
than a slow member is waited for: then the member loses this copy, and nobody else loses anything (I10).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from sdrs_core.checksums import Buffer
from sdrs_core.cluster import Node
from sdrs_core.errors import CorruptDataError, InternalError, SdrsError, UnavailableError
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.fault_points import reach
from sdrs_storaged.logs import get_log
from sdrs_storaged.rpc.peers import CopyChannel
from sdrs_storaged.rpc.striping import STRIPES_HELD
from sdrs_storaged.store.buffers import BLOCKS_KEPT

log = get_log("relay")

BLOCKS_AHEAD = 2
assert BLOCKS_AHEAD < BLOCKS_KEPT, "a block must be sent before its buffer is filled again"
assert BLOCKS_AHEAD < STRIPES_HELD, "and so must one of a stripe, of which each fragment has one"


class Relay:
    """``put`` for each block, ``end`` once, ``await_unused`` before buffers are used again, ``settle`` for the answer.

    ``give_up`` is safe at any time, from any thread. After it, and after a failure, the other calls do nothing.
    """

    def __init__(
        self,
        member: Node,
        open_copy: Callable[[], CopyChannel | None],
        failed: Callable[[SdrsError], None],
        sent: Callable[[int], None],
        share: int = 0,
    ) -> None:
        """``failed`` and ``sent`` are called by the relay's thread; ``sent`` with the size of each block.

        ``share``: which one of the blob it carries.
        """
        self.member = member
        self.share = share
        self._open_copy = open_copy
        self._failed = failed
        self._sent = sent
        self._change = threading.Condition()
        self._blocks: deque[tuple[bytes, Buffer]] = deque()
        self._summary: pb.BlobSummary | None = None
        self._channel: CopyChannel | None = None
        self._sending = False
        self._over = False
        self._durable = False
        try:
            threading.Thread(target=self._run, name="relay", daemon=True).start()
        except RuntimeError:  # out of threads: the seal fills what is missing
            self._over = True

    @property
    def is_durable(self) -> bool:
        """Whether the member has it, by its own word; after ``settle`` this stays as it is."""
        with self._change:
            return self._durable

    @property
    def is_lost(self) -> bool:
        """Asked for each block, so without the lock: what is durable is noted as that before it is noted as over."""
        return self._over and not self._durable

    def put(self, digest: bytes, block: Buffer) -> None:
        """Hand a block over; its memory must stay as it is until ``BLOCKS_AHEAD`` more were put."""
        with self._change:
            self._change.wait_for(lambda: self._over or len(self._blocks) + self._sending < BLOCKS_AHEAD)
            if not self._over:
                self._blocks.append((digest, block))
                self._change.notify_all()

    def end(self, summary: pb.BlobSummary) -> None:
        with self._change:
            self._summary = summary
            self._change.notify_all()

    def await_unused(self) -> None:
        """Until no block is needed any more."""
        with self._change:
            self._change.wait_for(lambda: not self._sending and (self._over or not self._blocks))

    def settle(self) -> None:
        """Until the member has answered, or was given up."""
        with self._change:
            self._change.wait_for(lambda: self._over)

    def give_up(self) -> None:
        """Quietly: it is nobody's fault. A send that is under way wakes up."""
        with self._change:
            if not self._over:
                self._conclude()
                if self._channel is not None:
                    self._channel.shut()

    def _conclude(self) -> None:
        self._over = True
        self._blocks.clear()
        self._change.notify_all()

    def _run(self) -> None:
        error: SdrsError | None = None
        is_durable = False
        try:
            is_durable = self._copy()
        except SdrsError as failure:
            error = failure
        except OSError as failure:
            error = UnavailableError(f"the copy to node {self.member.id} broke: {failure}")
        except Exception as failure:
            log.error("relay_failed", exc_info=failure)
            error = InternalError(f"the copy to node {self.member.id} failed by a defect of storaged")
        with self._change:
            self._sending = False
            was_over = self._over
            self._durable = is_durable and not was_over
            self._conclude()
        if error is not None and not was_over:
            self._failed(error)

    def _copy(self) -> bool:
        """Whether the member has it then."""
        copy = self._open_copy()
        if copy is None:
            return True
        with copy:
            with self._change:
                if self._over:
                    return False
                self._channel = copy
            reach("relay.opened")
            while (following := self._next()) is not None:
                reach("relay.block")
                copy.send_block(*following)
                self._sent(len(following[1]))
            if self._summary is None or self._over:
                return False
            stored = copy.finish(self._summary)
            if stored.hash != self._summary.hash:
                raise CorruptDataError(f"node {self.member.id} stored blob {stored.blob_id} with another hash")
            reach("relay.finished")
            return True

    def _next(self) -> tuple[bytes, Buffer] | None:
        """The next block to send; None when there are no more."""
        with self._change:
            self._sending = False
            self._change.notify_all()
            self._change.wait_for(lambda: self._over or self._blocks or self._summary is not None)
            if self._over or not self._blocks:
                return None
            self._sending = True
            return self._blocks.popleft()
