"""Buckets that a node reads from and writes to, kept open for a while: to open one costs more than a small object."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from sdrs_core.backup.manifests import ObjectPlace
from sdrs_core.backup.targets import Target
from sdrs_storaged.bucket.transfer_memory import TransferMemory

if TYPE_CHECKING:
    from sdrs_storaged.bucket.bucket import Bucket
    from sdrs_storaged.bucket.downloading import ObjectReader

# Credentials and keys are looked for again after so long: somebody may have put others there.
_KEPT_SECONDS = 60.0
_MAX_OPEN = 8


class OpenBuckets:
    """Safe for use by several threads. Whoever reads from one that is replaced reads on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[Target, tuple[Bucket, float]] = {}
        self._memory = TransferMemory()

    def open(self, target: Target, place: ObjectPlace, offset: int) -> ObjectReader:
        # Only where there is a target: what speaks with buckets takes long to load.
        from sdrs_storaged.bucket.downloading import open_object

        return open_object(self.get(target), place, offset)

    def get(self, target: Target) -> Bucket:
        from sdrs_storaged.bucket.opening import open_bucket

        with self._lock:
            bucket, until_seconds = self._open.get(target, (None, 0.0))
        if bucket is not None and time.monotonic() < until_seconds:
            return bucket
        bucket = open_bucket(target, memory=self._memory)
        with self._lock:
            self._open.pop(target, None)
            self._open[target] = bucket, time.monotonic() + _KEPT_SECONDS
            while len(self._open) > _MAX_OPEN:
                del self._open[next(iter(self._open))]
        return bucket

    def forget(self, target: Target) -> None:
        """After a refusal: perhaps somebody has put the right credentials there by the next time."""
        with self._lock:
            self._open.pop(target, None)
