"""Who works under a prefix now."""

from __future__ import annotations

from collections.abc import Callable

from sdrs_storaged.bucket.bucket import Bucket


class PrefixLock:
    """Keeps two histories of one cluster (a restored catalog, say) from working at once.

    Safety never depends on it (I8): the catalog's term orders what one history does, and names in the bucket are never
    used twice. ``clock`` is the wall clock, in seconds.
    """

    def __init__(
        self, bucket: Bucket, cluster_id: str, holder: str, clock: Callable[[], float], lease_seconds: float = 120.0
    ) -> None: ...

    def acquire(self, term: int = 0) -> None:
        """RefusedError names who has it and until when. One that expired, or is this holder's own, is taken."""
        raise NotImplementedError

    def renew(self) -> None:
        """For another lease. RefusedError if somebody else took it meanwhile: stop working."""
        raise NotImplementedError

    def release(self) -> None:
        """If it is still this holder's."""
        raise NotImplementedError
