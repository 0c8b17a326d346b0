"""One range of a blob through its tries: each goes on where the last one ended.

``stripe_reader`` makes one try. Here is what comes around that: memory of this host that may have it (``staged``),
which is read before any disk; the mirror in another pool that is asked when the own one cannot serve, tries that are
repeated, the backup from which the checkpoint is brought back when nobody can serve, and what the user is told in the
end. The record of who holds what is a moment old and may be wrong: it is asked for again before a blob is given up.
"""

from __future__ import annotations

import threading

from sdrs.restore.decoding import Scratch
from sdrs.restore.recalls import with_backup
from sdrs.restore.record import code_of
from sdrs.restore.sources import Key, Sources, key_of, shares
from sdrs.restore.stripe_reader import OutOfFragmentsError, StoppedError, StripeReader
from sdrs.restore.stripes import Range
from sdrs.restore.targets import ByteCount, Target
from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.errors import CorruptDataError, DeadlineExceededError, ProtocolError, SdrsError, UnavailableError
from sdrs_proto.limits import STALL_SECONDS, transfer_seconds

# Holders that were out of reach are tried again after these pauses.
PAUSES_SECONDS = (0.0, 0.2, 1.0)
# In each of these rounds a holder that sends nothing for so long is taken for gone. Those without which nothing can be
# read get the last.
STALLS_SECONDS = (1.0, 5.0, float(STALL_SECONDS))

_OUT_OF_REACH = (UnavailableError, DeadlineExceededError, ProtocolError)


class RangeReading:
    def __init__(
        self,
        sources: Sources,
        part: Range,
        target: Target,
        count: ByteCount,
        stop: threading.Event,
        scratch: Scratch,
    ) -> None:
        self._sources = sources
        self._part = part
        self._target = target
        self._count = count
        self._stop = stop
        self._scratch = scratch
        self._position = part.start
        # Why holders could not serve, apart from what is damaged.
        self._failures: dict[Key, SdrsError] = {}

    def read(self) -> None:
        if not self._part.blob.packing:  # what is staged is not compressed: ``shard_reader`` has looked there
            self._sources.staged.read(
                self._part.blob, self._position, self._part.end, self._window, self._accept, self._stop
            )
        if self._position == self._part.end or self._read():
            return
        error = self._unreadable()
        not_recalled = self._sources.recall(self._count.tell)
        if not_recalled:
            raise with_backup(error, not_recalled, self._sources.save)
        if not self._read():
            raise self._unreadable()

    def _read(self) -> bool:
        for pause_seconds, stall_seconds in zip(PAUSES_SECONDS, STALLS_SECONDS, strict=True):
            if self._stop.wait(pause_seconds):
                raise StoppedError
            if self._try_all(stall_seconds):
                return True
            self._sources.refresh()
            if not self._has_hope():
                break
        return False

    def _try_all(self, stall_seconds: float) -> bool:
        """From the blob's own pool, and if that cannot serve from the mirror of it."""
        record = self._sources.record
        forms = record.forms(self._part.blob)
        # What is known to fail need not be found out by each range again.
        for blob in sorted(forms, key=lambda blob: not self._sources.looks_well(blob, self._stripe_number(blob))):
            # What nothing can be read without gets all the time there is.
            has_spare = len(forms) > 1 or shares(blob, self._usable(blob)) > code_of(blob).data
            if record.is_mirror(blob):
                self._sources.note_mirror(blob)
            if self._try(blob, stall_seconds if has_spare else STALLS_SECONDS[-1]):
                return True
        return False

    def _has_hope(self) -> bool:
        """Whether another try may succeed: one that is out of reach may be back, unless it is said to be down."""
        record = self._sources.record
        for blob in record.forms(self._part.blob):
            hopeful = [
                holder
                for holder in self._usable(blob)
                if holder.node_id in record.up or key_of(blob, holder) not in self._failures
            ]
            if shares(blob, hopeful) >= code_of(blob).data:
                return True
        return False

    def _unreadable(self) -> SdrsError:
        blob, sources = self._part.blob, self._sources
        title = f"{sources.save.title}, rank {sources.rank}"
        damaged = sources.damaged([blob, *sources.record.forms(blob)])
        others = {key: error for key, error in self._failures.items() if key not in damaged}
        for error in others.values():
            if not isinstance(error, _OUT_OF_REACH):
                return error
        facts = {"job": sources.save.job, "step": sources.save.step, "rank": sources.rank, "blob_id": blob.id}
        reasons = "; ".join(map(str, [*damaged.values(), *others.values()]))
        if others or not damaged:
            # A copy on a node that is out of reach may be good: that counts as unavailable, not as lost.
            what = f"is out of reach: {reasons}" if reasons else "is on record with too few holders to be read"
            return UnavailableError(f"{title}: blob {blob.id} {what}", **facts)
        # Who catches this finds the checkpoint marked.
        sources.wait_until_told([*damaged], transfer_seconds(blob.size_bytes))
        return next(iter(damaged.values())) if len(damaged) == 1 else CorruptDataError(reasons, **facts)

    def _try(self, blob: Blob, stall_seconds: float) -> bool:
        reader = StripeReader(
            self._sources,
            blob,
            code_of(blob),
            stall_seconds=stall_seconds,
            stop=self._stop,
            scratch=self._scratch,
            failures=self._failures,
        )
        try:
            reader.read(self._position, self._part.end, self._window, self._accept)
        except OutOfFragmentsError:
            return False
        return True

    def _window(self, start: int, end: int) -> memoryview:
        return self._target.window(self._part.blob, start, end)

    def _accept(self, start: int, verified: memoryview) -> None:
        self._target.accept(self._part.blob, start, verified)
        self._position = start + len(verified)
        self._count.add(len(verified))

    def _usable(self, blob: Blob) -> list[Holder]:
        return self._sources.usable(blob, self._stripe_number(blob))

    def _stripe_number(self, blob: Blob) -> int:
        return self._position // code_of(blob).stripe_bytes
