"""Exactly one scheduler decides. Every change that it makes compares ``schedule/term``, so that one that was frozen and
wakes up changes nothing; the lease only tells others when to take over, by their own clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdrs_core.errors import StaleTermError
from sdrs_scheduler import keys
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.entries import Lease, Stored, Term
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.logs import get_log

log = get_log("leading")

_RENEWALS_PER_LEASE = 3


class Leader:
    def __init__(
        self, ledger: Ledger, holder: str, lease_seconds: float, clock: Clock, *, is_alone: bool = False
    ) -> None:
        """``is_alone``: whoever had the lease under the same name is known to be dead (this one has its lock)."""
        self._ledger = ledger
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._is_alone = is_alone
        self._term: Stored[Term] | None = None
        self._lease_revision = 0
        self._renewed = 0.0
        # The revision of another one's lease, and since when it is the same.
        self._seen = (-1, 0.0)

    @property
    def term(self) -> int:
        """0 while another one decides."""
        return self._term.value.number if self._term else 0

    def lead(self) -> bool:
        """Renew, or take over if that is due. Whether this one decides."""
        if self._term is None:
            return self._try_to_take_over()
        now = self._clock.monotonic()
        if now - self._renewed < self._lease_seconds / _RENEWALS_PER_LEASE:
            return True
        compare = {keys.TERM: self._term.revision, keys.LEASE: self._lease_revision}
        revision = self._ledger.change(compare, {keys.LEASE: self._lease(self._term.value.number)})
        if revision is None:
            self._check()
            # The lease itself moved, the term did not: a renewal of ours whose answer was lost.
            lease = self._ledger.lease()
            self._lease_revision = lease.revision if lease else 0
            return True
        self._lease_revision, self._renewed = revision, now
        return True

    def commit(self, compare: Mapping[str, int], put: Mapping[str, object], delete: Sequence[str] = ()) -> int | None:
        """Change records as the one that decides; None if one of them moved. StaleTermError if another one decides."""
        if self._term is None:
            raise StaleTermError("this scheduler does not decide")
        revision = self._ledger.change({**compare, keys.TERM: self._term.revision}, put, delete)
        if revision is None:
            self._check()
        return revision

    def still_leads(self) -> bool:
        """Asked once more, right before something that cannot be taken back. From any thread."""
        term = self._term
        found = self._ledger.term()
        return term is not None and found is not None and found.revision == term.revision

    def resign(self) -> None:
        """Let another one take over at once."""
        if self._term is None:
            return
        compare = {keys.TERM: self._term.revision, keys.LEASE: self._lease_revision}
        self._ledger.change(compare, {}, [keys.LEASE])
        self._term = None

    def _check(self) -> None:
        if not self.still_leads():
            log.warning("another_scheduler_decides", term=self.term)
            self._term = None
            raise StaleTermError("another scheduler took over")

    def _try_to_take_over(self) -> bool:
        lease, term, now = self._ledger.lease(), self._ledger.term(), self._clock.monotonic()
        if lease is not None and not (self._is_alone and lease.value.holder == self._holder):
            if lease.revision != self._seen[0]:
                self._seen = (lease.revision, now)
            if now - self._seen[1] < lease.value.seconds:
                return False
        number = (term.value.number if term else 0) + 1
        taken = Term(number, self._holder, self._clock.unix_ms())
        compare = {keys.TERM: term.revision if term else 0, keys.LEASE: lease.revision if lease else 0}
        revision = self._ledger.change(compare, {keys.TERM: taken, keys.LEASE: self._lease(number)})
        if revision is None:
            return False
        self._term, self._lease_revision, self._renewed = Stored(keys.TERM, taken, revision), revision, now
        log.info("this_scheduler_decides", term=number, holder=self._holder)
        return True

    def _lease(self, term: int) -> Lease:
        return Lease(term, self._holder, self._clock.unix_ms(), self._lease_seconds)
