"""When what failed may be tried again: later and later, so that one bad object never blocks the rest."""

from __future__ import annotations

from collections.abc import Set

from sdrs_core.ids import BlobId
from sdrs_storaged.control.clock import Clock

_FIRST_SECONDS = 5.0
_LONGEST_SECONDS = 600.0
_MAX_BLOBS = 100_000  # I10; the others are tried again without a pause


class Retries:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[BlobId, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, blob_id: BlobId) -> int:
        """How often in a row, this one included."""
        failures = self._failures.get(blob_id, (0, 0.0))[0] + 1
        if blob_id in self._failures or len(self._failures) < _MAX_BLOBS:
            pause_seconds = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(failures - 1, 10))
            self._failures[blob_id] = (failures, self._clock.monotonic_seconds() + pause_seconds)
        return failures

    def succeeded(self, blob_id: BlobId) -> None:
        self._failures.pop(blob_id, None)

    def seconds_left(self, blob_id: BlobId) -> float | None:
        """None if it never failed; zero or less if it may be tried."""
        known = self._failures.get(blob_id)
        return known[1] - self._clock.monotonic_seconds() if known else None

    def forgive(self) -> None:
        """Something changed that may help: whatever failed may be tried at once, and again as often as at first."""
        now_seconds = self._clock.monotonic_seconds()
        self._failures = dict.fromkeys(self._failures, (0, now_seconds))

    def keep_only(self, blob_ids: Set[BlobId]) -> None:
        """Forget the others: they were repaired otherwise, or are no more."""
        self._failures = {blob_id: known for blob_id, known in self._failures.items() if blob_id in blob_ids}
