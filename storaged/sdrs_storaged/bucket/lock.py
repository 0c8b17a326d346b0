"""Who works under a prefix now, and until when."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sdrs_core.backup import layout
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError, UnsupportedError
from sdrs_storaged.bucket.bucket import Bucket
from sdrs_storaged.bucket.failures import where

_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Lock:
    holder: str
    cluster_id: str
    term: int
    until_unix_ms: int


class PrefixLock:
    """Keeps two histories of one cluster (a restored catalog, say) from working at once.

    Safety never depends on it (I8): the catalog's term orders what one history does, and names in the bucket are never
    used twice. ``clock`` is the wall clock, in seconds.
    """

    def __init__(
        self, bucket: Bucket, cluster_id: str, holder: str, clock: Callable[[], float], lease_seconds: float = 120.0
    ) -> None:
        self._bucket = bucket
        self._cluster_id = cluster_id
        self._holder = holder
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._term = 0

    def acquire(self, term: int = 0) -> None:
        """RefusedError names who has it and until when. One that expired, or is this holder's own, is taken."""
        self._term = term
        found = self._read()
        if found and not self._is_mine(found) and found.until_unix_ms > self._now_ms():
            raise self._refusal(found)
        self._write(only_if_absent=found is None)
        self._check_mine()

    def renew(self) -> None:
        """For another lease. RefusedError if somebody else took it meanwhile: stop working."""
        self._check_mine()
        self._write(only_if_absent=False)

    def release(self) -> None:
        """If it is still this holder's."""
        found = self._read()
        if found and self._is_mine(found):
            self._bucket.store.delete([layout.LOCK])

    def _check_mine(self) -> None:
        found = self._read()
        if found is None or not self._is_mine(found):
            raise self._refusal(found)

    def _is_mine(self, found: _Lock) -> bool:
        return (found.holder, found.cluster_id) == (self._holder, self._cluster_id)

    def _refusal(self, found: _Lock | None) -> RefusedError:
        if found is None:
            return RefusedError(f"{where(self._bucket.target)}: somebody released its lock: begin again")
        until = datetime.fromtimestamp(found.until_unix_ms / 1000, UTC).isoformat(timespec="seconds")
        return RefusedError(
            f"{where(self._bucket.target)} is being worked on by {found.holder} of cluster {found.cluster_id} until "
            f"{until}: if that one is gone, wait until then",
            holder=found.holder,
            until_unix_ms=found.until_unix_ms,
        )

    def _read(self) -> _Lock | None:
        try:
            values = json.loads(self._bucket.store.get(layout.LOCK, _MAX_BYTES))
            return _Lock(
                str(values["holder"]), str(values["cluster"]), int(values["term"]), int(values["until_unix_ms"])
            )
        except NotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            # Half a lock is nobody's: nothing depends on it but order.
            return _Lock("unknown", "unknown", 0, 0)

    def _write(self, *, only_if_absent: bool) -> None:
        values = {
            "holder": self._holder,
            "cluster": self._cluster_id,
            "term": self._term,
            "until_unix_ms": self._now_ms() + int(self._lease_seconds * 1000),
        }
        data, store = json.dumps(values, indent=1).encode(), self._bucket.store
        try:
            self._bucket.patience.persist(lambda: store.put(layout.LOCK, data, only_if_absent=only_if_absent))
        except AlreadyExistsError:
            # Somebody was faster, or this was and did not hear of it: reading it again tells.
            return
        except UnsupportedError:
            self._bucket.patience.persist(lambda: store.put(layout.LOCK, data))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
