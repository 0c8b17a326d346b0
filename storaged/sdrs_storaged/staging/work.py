"""One sealed shard on its way: what it is, how far it is, and who wants to know."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from sdrs_core.errors import SdrsError, UnavailableError
from sdrs_proto.status import to_status
from sdrs_proto.v1 import staging_pb2 as pb
from sdrs_storaged.staging.segment import Segment

# Acknowledgements of a save, on its way: not more often than this, and not many in all (I10).
_NEWS_BYTES = 2 << 20
_NEWS_COUNT = 64
# A process that is gone cannot save again: what it left is tried for longer.
ORPHAN_SECONDS = 600.0


class DaemonStopsError(UnavailableError):
    """The shard stays sealed, for the next start."""


class Listener(Protocol):
    def tell(self, event: pb.StageEvent) -> None: ...


class Work:
    """Sent by threads, carried by a task, followed by its process; ``listener`` is None once that is gone."""

    def __init__(
        self, shard: pb.StagedShard, segment: Segment | None, listener: Listener | None, clock: Callable[[], float]
    ) -> None:
        self.shard = shard
        self.segment = segment
        # An earlier run of this daemon may have sent some of it.
        self.is_recovered = listener is None
        self.total_bytes = sum(blob.size_bytes for blob in shard.blobs)
        # The checksums of blocks as they were sent, by ordinal, for those who read from the segment later.
        self.tables: dict[int, bytes] = {}
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._listener = listener
        self._alone_since = clock() if listener is None else None
        self._phase = pb.STAGE_PHASE_SENDING
        self._save_id = shard.registered_save_id
        self._sent_bytes = 0
        self._told_bytes = 0
        self._stop: SdrsError | None = None

    @property
    def title(self) -> str:
        order = self.shard.order
        rank = f", rank {order.rank} of {order.world_size}" if order.world_size > 1 else ""
        return f'step {order.step} of job "{order.job}"{rank}'

    @property
    def patience_seconds(self) -> float:
        """For a controller that is out of reach, or a pool that takes no saves."""
        given_seconds = self.shard.patience_ms / 1000
        return given_seconds if self._listener is not None else max(given_seconds, ORPHAN_SECONDS)

    @property
    def age_seconds(self) -> float:
        """Since it was sealed, or found by this run of the daemon."""
        return self._clock() - self._began

    @property
    def alone_seconds(self) -> float:
        """How long its process is gone."""
        with self._lock:
            return 0.0 if self._alone_since is None else self._clock() - self._alone_since

    # Of its process

    def follow(self, listener: Listener) -> None:
        with self._lock:
            self._listener, self._alone_since = listener, None
            listener.tell(self._event())

    def leave(self, listener: Listener) -> None:
        with self._lock:
            if self._listener is listener:
                self._listener, self._alone_since = None, self._clock()

    def is_followed_by(self, listener: Listener) -> bool:
        with self._lock:
            return self._listener is listener

    # Of whoever carries it out

    def begun(self, save_id: str) -> None:
        with self._lock:
            self._save_id = save_id
            self._tell()

    def restart(self) -> None:
        with self._lock:
            self._sent_bytes = self._told_bytes = 0
            self._tell()

    def passed(self, size_bytes: int) -> None:
        """So much more was sent; raises if the rest is not to be."""
        with self._lock:
            if self._stop is not None:
                raise self._stop
            self._sent_bytes += size_bytes
            step_bytes = max(_NEWS_BYTES, self.total_bytes // _NEWS_COUNT)
            if self._sent_bytes >= self.total_bytes or self._sent_bytes - self._told_bytes >= step_bytes:
                self._told_bytes = self._sent_bytes
                self._tell()

    def beat(self) -> None:
        """Nothing new, and somebody is at it."""
        with self._lock:
            self._tell()

    def stop(self, why: SdrsError) -> None:
        with self._lock:
            self._stop = self._stop or why

    def check_wanted(self) -> None:
        if self._stop is not None:
            raise self._stop

    def end(self, error: SdrsError | None) -> None:
        """In, or failed. The segment must be its owner's again when this is told."""
        with self._lock:
            self._phase = pb.STAGE_PHASE_IN if error is None else pb.STAGE_PHASE_FAILED
            event = self._event()
            if error is not None:
                event.status = to_status(error).SerializeToString()
            if self._listener is not None:
                self._listener.tell(event)

    def _tell(self) -> None:
        if self._listener is not None:
            self._listener.tell(self._event())

    def _event(self) -> pb.StageEvent:
        return pb.StageEvent(
            staged_id=self.shard.id,
            phase=self._phase,
            save_id=self._save_id,
            sent_bytes=self._sent_bytes,
            segment_id=self.shard.segment_id,
        )
