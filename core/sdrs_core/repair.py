"""What each blob should have against what live nodes hold: fragments to make, to move, to let go. No clock, socket or
disk.

One decision for one blob at a time, for mirrors and codes alike, so that a loop may scan any number of them in bounded
memory and act on the most urgent first. What it asks for is done one action at a time, and then it is asked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import MIRROR
from sdrs_core.failover import Liveness
from sdrs_core.ids import DiskId, NodeId
from sdrs_core.redundancy import Form, Standing, is_weaker, standing
from sdrs_core.remedies import Copy, Decision, Forget, Trim, Urgency
from sdrs_core.reshaping import plan_make
from sdrs_core.stocks import Stock, Targets, crowds
from sdrs_core.whereabouts import (
    READABLE,
    State,
    domains_of,
    in_order,
    is_unheard,
    most_huddled,
    only_there,
    readable_holders,
    shares,
    state_of,
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node that went down is waited for before its fragments are made elsewhere: a reboot moves no data."""

    seconds: float = 60.0
    # When nothing more may be lost.
    last_copy_seconds: float = 30.0


def decide_repair(
    blob: Blob,
    stocks: Mapping[NodeId, Stock],
    *,
    form: Form,
    eligible: Set[NodeId],
    patience: Patience,
    wanted: Form | None = None,
    twin: Blob | None = None,
    barred: Set[tuple[NodeId, int]] = frozenset(),
    preferred: NodeId | None = None,
) -> Decision:
    """``form``: how the blob is to be kept as long as it has its code. ``wanted``: how its pool wants it, if that is
    another code. ``eligible``: the pool's nodes. ``twin``: the same content in another pool. ``barred``: where which
    fragment is being worked on. ``preferred``: a node that lost its fragment, and is as good as any other to get it
    again.
    """
    return _Case(blob, stocks, form, eligible, patience, twin).decide(wanted, barred, preferred)


class _Case:
    """One blob, and where each of its holders stands."""

    def __init__(
        self,
        blob: Blob,
        stocks: Mapping[NodeId, Stock],
        form: Form,
        eligible: Set[NodeId],
        patience: Patience,
        twin: Blob | None,
    ) -> None:
        self.blob = blob
        self.stocks = stocks
        self.form = form
        self.eligible = eligible
        self.domains = domains_of(blob, stocks)
        self.states = {holder: state_of(holder, stocks, eligible) for holder in blob.holders}
        self.live = self.those(State.LIVE, State.LEAVING)
        left = len(shares(self.live, form.code))
        self.patience_seconds = patience.last_copy_seconds if left <= form.needed else patience.seconds
        for holder in self.those(State.AWAY):
            stock = stocks[holder.node_id]
            if stock.liveness is Liveness.DOWN and stock.down_for_seconds >= self.patience_seconds:
                self.states[holder] = State.GONE
        self.kept, self.leaving = self.those(State.LIVE), self.those(State.LEAVING)
        self.away = self.those(State.AWAY)
        self.readable = self.those(*READABLE)
        self.source: Blob | None = None
        self.sources: tuple[Holder, ...] = ()
        if len(shares(self.readable, form.code)) >= form.needed:
            self.source, self.sources = blob, in_order(self.readable, stocks)
        elif twin and (others := readable_holders(twin, stocks)):
            self.source, self.sources = twin, others
        self.unheard = is_unheard(blob, stocks) or bool(twin and is_unheard(twin, stocks))

    def those(self, *kinds: State) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.blob.holders if self.states[holder] in kinds)

    def decide(self, wanted: Form | None, barred: Set[tuple[NodeId, int]], preferred: NodeId | None) -> Decision:
        is_kept = wanted is None or wanted.code == self.blob.code
        is_weak = wanted is not None and not is_kept and is_weaker(self.form, wanted)
        surplus = self._surplus() if is_kept else []
        copies = self._copies(barred, preferred) or self._unhuddled(barred)
        if not copies and not surplus and is_kept:
            copies = self._spread(barred)
        make = None
        if not copies and not is_kept and wanted is not None and self.source is not None:
            make = plan_make(self.blob, wanted, self.source, self.sources, self.stocks, self.eligible)
        return Decision(
            form=self.form,
            standing=self._standing(self.live),
            live=self.live,
            readable=self.readable,
            is_readable=self.source is not None,
            copies=copies,
            make=make,
            trims=(*self._begun(), *(Trim(self.blob, holder) for holder in surplus if not copies)),
            forgets=self._forgets(),
            undecided=self.unheard,
            wait_seconds=self._wait_seconds(),
            is_weaker=is_weak,
            is_lacking=is_weak or self._standing((*self.live, *self.away)) < Standing.FULL,
        )

    def _standing(self, holders: Iterable[Holder]) -> Standing:
        return standing(self.form, holders, self.domains)

    def _wait_seconds(self) -> float | None:
        if self.source is None:
            return None
        down = [self.stocks[holder.node_id] for holder in self.away]
        return min(
            (
                max(0.0, self.patience_seconds - stock.down_for_seconds)
                for stock in down
                if stock.liveness is Liveness.DOWN
            ),
            default=None,
        )

    # What is made

    def _copies(self, barred: Set[tuple[NodeId, int]], preferred: NodeId | None) -> tuple[Copy, ...]:
        missing = self._missing()
        if self.source is None or not missing:
            return ()
        settled = (*self.live, *self.away)
        copies = self._made_beside(settled, missing, barred, preferred)
        if copies:
            return copies
        # What two domains have is as safe without either: if such doubles fill all domains, they do not count there.
        alone = only_there(settled, self.domains, self.form.code)
        return self._made_beside(alone, missing, barred, preferred) if len(alone) < len(settled) else ()

    def _made_beside(
        self,
        settled: Sequence[Holder],
        missing: list[tuple[int, Holder | None]],
        barred: Set[tuple[NodeId, int]],
        preferred: NodeId | None,
    ) -> tuple[Copy, ...]:
        targets = self._targets(barred, settled)
        # A node without the disk that held the fragment may get it on another disk, if there is no better one.
        last = {holder.node_id for holder in self.those(State.DETACHED)}
        copies = []
        for index, leaving in missing:
            freed = leaving if leaving in settled else None
            target = targets.choose(index, leaving=freed, last=last, preferred=preferred)
            if target is not None:
                copies.append(self._copy(index, target, Urgency.DRAIN if leaving else Urgency.REBUILD))
        return tuple(copies)

    def _unhuddled(self, barred: Set[tuple[NodeId, int]]) -> tuple[Copy, ...]:
        """I7: some more elsewhere, if there are enough without those that are to move, but so that the loss of one
        domain could lose the blob. Else they would have to stay for as long as they are drained.
        """
        if self.source is None or not self.leaving:
            return ()
        return self._unhuddled_copies(barred) if self.form.code == MIRROR else self._unhuddled_fragments(barred)

    def _unhuddled_copies(self, barred: Set[tuple[NodeId, int]]) -> tuple[Copy, ...]:
        staying = crowds(self.form, (*self.kept, *self.away), self.stocks)
        apart = [holder for holder in self.leaving if self.domains[holder.node_id] not in staying]
        if len(staying) != 1 or self.form.total < 2 or not apart:
            return ()
        target = self._targets(barred).choose(0, leaving=apart[0], most=0)
        return (self._copy(0, target, Urgency.DRAIN),) if target else ()

    def _unhuddled_fragments(self, barred: Set[tuple[NodeId, int]]) -> tuple[Copy, ...]:
        """All that it takes or none: what makes nothing safe would be let go again as one too many."""
        if self.away or self._missing() or self._standing(self.live) < Standing.SAFE:
            return ()
        staying, domains, targets = list(self.kept), dict(self.domains), self._targets(barred, settled=self.kept)
        copies = []
        while standing(self.form, staying, domains) < Standing.SAFE:
            index = most_huddled(staying, domains, self.form.code)
            target = targets.choose(index)
            if target is None:
                return ()
            domains[target] = self.stocks[target].domain
            staying.append(Holder(target, DiskId(""), index, ""))
            copies.append(self._copy(index, target, Urgency.DRAIN))
        return tuple(copies)

    def _copy(self, index: int, target: NodeId, urgency: Urgency) -> Copy:
        assert self.source is not None
        return Copy(self.blob, index, self.source, self.sources, target, urgency)

    def _targets(self, barred: Set[tuple[NodeId, int]], settled: Iterable[Holder] | None = None) -> Targets:
        # P14: where a drop was begun nothing new goes on record, also on another disk, before that is forgotten.
        replaceable = [holder for holder in self.those(State.DETACHED, State.RETIRED) if not holder.dropping]
        taken = {(h.node_id, h.fragment_index) for h in self.blob.holders if h not in replaceable}
        if settled is None:
            settled = (*self.live, *self.away)
        return Targets(self.blob, self.form, self.stocks, self.eligible, settled, taken | barred)

    def _missing(self) -> list[tuple[int, Holder | None]]:
        """Which fragments to make, each with the holder that it moves away from; first what nobody has."""
        if self.form.code == MIRROR:
            count = self.form.total - len(self.kept) - len(self.away)
            lost = max(0, count - len(self.leaving))
            moving: list[tuple[int, Holder | None]] = [(0, holder) for holder in self.leaving[: max(0, count - lost)]]
            return [(0, None)] * lost + moving
        there = {holder.fragment_index for holder in (*self.kept, *self.away)}
        leaving = {holder.fragment_index: holder for holder in self.leaving}
        absent = [index for index in range(self.form.total) if index not in there]
        return sorted(((index, leaving.get(index)) for index in absent), key=lambda one: (one[1] is not None, one[0]))

    def _spread(self, barred: Set[tuple[NodeId, int]]) -> tuple[Copy, ...]:
        """P10: out of a domain with several shares into one that has none, once there is one; out of a domain with more
        than the blob can do without, into any that does not have as many as that yet.
        """
        if not self.form.spread or self.source is None or self.away or self.leaving or not self.kept:
            return ()
        crowded = crowds(self.form, self.kept, self.stocks)
        holder = max(self.kept, key=lambda holder: self._rank(holder, crowded))
        if crowded[self.domains[holder.node_id]] < 2:
            return ()
        targets = self._targets(barred)
        target = targets.choose(holder.fragment_index, most=0)
        if target is None and crowded[self.domains[holder.node_id]] > self.form.spare:
            target = targets.choose(holder.fragment_index)
        return (self._copy(holder.fragment_index, target, Urgency.SPREAD),) if target else ()

    # What is let go

    def _begun(self) -> list[Trim]:
        # I7: what it was dispensable for may be gone since. Then it is one of the last, and stays where it is.
        if len(shares(self.live, self.form.code)) < self.form.needed:
            return []
        return [
            Trim(self.blob, holder)
            for holder in self.those(State.DROPPING)
            if holder.node_id in self.stocks and self.stocks[holder.node_id].liveness is Liveness.UP
        ]

    def _surplus(self) -> list[Holder]:
        """What there is too much of: what is to move and lies elsewhere too, then whatever lies in a crowded domain, on
        an unsteady or on a full node. I7: never what the others do not make up for.
        """
        left, surplus = list(self.live), list[Holder]()
        if len(shares(left, self.form.code)) < self.form.needed:
            return surplus
        while True:
            crowded = crowds(self.form, left, self.stocks)
            dispensable = [holder for holder in left if self._is_dispensable(holder, left)]
            if not dispensable:
                return surplus
            worst = max(dispensable, key=lambda holder: self._rank(holder, crowded))
            left.remove(worst)
            surplus.append(worst)

    def _is_dispensable(self, holder: Holder, left: list[Holder]) -> bool:
        others = [known for known in left if known != holder]
        if self.form.code == MIRROR:
            if len(others) < max(1, self.form.total):
                return False
        elif all(known.fragment_index != holder.fragment_index for known in others if known not in self.leaving):
            return False
        before, after = self._standing(left), self._standing(others)
        # What is drained may end up beside others, as long as any one domain may be lost.
        return after >= (min(before, Standing.SAFE) if holder in self.leaving else before)

    def _rank(self, holder: Holder, crowded: Mapping[str, int]) -> tuple[object, ...]:
        """The highest goes first."""
        stock = self.stocks[holder.node_id]
        fill = (stock.fill, stock.used_fraction)
        return (holder in self.leaving, crowded[stock.domain], stock.flapping, fill, stock.id, holder.disk_id)

    def _forgets(self) -> tuple[Forget, ...]:
        retired = self.those(State.RETIRED)
        # A node that is not known is no reason to forget anything, unless nobody can need it.
        unknown = [holder for holder in self.those(State.GONE) if holder.node_id not in self.stocks]
        gone = [*retired, *(unknown if self._standing(self.kept) is Standing.FULL else [])]
        # I4: while the others do not bring the blob back, each of these may be needed, should it return after all.
        if len(shares(self.live, self.form.code)) < self.form.needed:
            return ()
        return tuple(Forget(self.blob, holder) for holder in gone)
