"""What there is to do about one blob as things stand: its own repair, its form, its mirror in another pool."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.cluster import Pool
from sdrs_core.ids import NodeId, SaveId
from sdrs_core.mirroring import twin_of
from sdrs_core.redundancy import Standing, form_of
from sdrs_core.remedies import Action, Decision, Urgency
from sdrs_core.repair import Patience, decide_repair
from sdrs_core.reshaping import Make, plan_make
from sdrs_core.whereabouts import readable_holders
from sdrs_storaged.control.claims import Claims
from sdrs_storaged.control.jobs import Order
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.mirrors import Drop, Mirrors
from sdrs_storaged.control.stocks import Stocks, View, Wish


@dataclass(frozen=True, slots=True)
class Prospect:
    """``pool``: whose nodes the blob is on, or will be: the checkpoint's own, or the one that mirrors that."""

    pool: Pool
    wish: Wish
    decision: Decision
    action: Action | Drop | None
    urgency: Order

    @property
    def size_bytes(self) -> int:
        """What will be written for it."""
        if isinstance(self.action, Make):
            return self.action.size_bytes
        return sum(copy.size_bytes for copy in self.decision.copies)

    @property
    def is_as_wanted(self) -> bool:
        return self.decision.standing is Standing.FULL and self.wish.form.code == self.wish.wanted.code


class Prospects:
    def __init__(
        self,
        members: Members,
        stocks: Stocks,
        claims: Claims,
        mirrors: Mirrors,
        *,
        patience: Patience,
        pinned: Callable[[], Set[SaveId]],
    ) -> None:
        self._members = members
        self._stocks = stocks
        self._claims = claims
        self._mirrors = mirrors
        self._patience = patience
        self._pinned = pinned

    def of(
        self, save: Save, shard: Shard, blob: Blob, view: View, *, preferred: NodeId | None = None
    ) -> Prospect | None:
        """None if nothing can be said about it: of a mirror that should be in a pool that does not exist."""
        pool = self._members.pool(save.pool)
        own = next((known for known in shard.blobs if known.ordinal == blob.ordinal), None)
        if own is None:
            return None
        prospect = self._decide(save, shard, own, pool, view, preferred)
        if own.id != blob.id:
            return self._of_mirror(save, shard, blob, view, prospect.decision, preferred)
        if isinstance(prospect.action, Make) and save.save_id in self._pinned():
            # Who restores it reads the blobs that it was told of.
            prospect = replace(prospect, action=None)
        if twin_of(shard, own) is None and self._mirrors.wants(save):
            return self._with_mirror(save, own, view, prospect)
        return prospect

    def _decide(
        self, save: Save, shard: Shard, blob: Blob, pool: Pool, view: View, preferred: NodeId | None
    ) -> Prospect:
        wish = self._stocks.wish(save, blob, pool)
        decision = decide_repair(
            blob,
            view.nodes,
            form=wish.form,
            wanted=wish.wanted,
            eligible=view.eligible(pool),
            patience=self._patience,
            twin=twin_of(shard, blob),
            barred=self._claims.of(blob.id),
            preferred=preferred,
        )
        return Prospect(pool, wish, decision, decision.action, decision.urgency)

    def _of_mirror(
        self, save: Save, shard: Shard, mirror: Blob, view: View, own: Decision, preferred: NodeId | None
    ) -> Prospect | None:
        pool = self._mirrors.pool_for(save) or self._members.pool(save.pool)
        prospect = self._decide(save, shard, mirror, pool, view, preferred)
        drop = self._mirrors.to_drop(save, mirror, own, view.nodes)
        if drop or not self._mirrors.wants(save):
            return replace(prospect, action=drop, urgency=(Urgency.TRIM, 0.0, 0))
        if self._mirrors.pool_for(save) is None:
            return None
        kind, left, missing = prospect.urgency
        if kind == Urgency.REBUILD and own.standing is not Standing.LOST:
            # It comes on top of the checkpoint, so what the checkpoints themselves lack comes first.
            return replace(prospect, urgency=(Urgency.MIRROR, left, missing))
        return prospect

    def _with_mirror(self, save: Save, own: Blob, view: View, prospect: Prospect) -> Prospect:
        """It has none yet, and should: after what it lacks itself, before what only saves room."""
        pool, sources = self._mirrors.pool_for(save), readable_holders(own, view.nodes)
        if pool is None or not sources or (prospect.action and prospect.urgency[0] < Urgency.MIRROR):
            return prospect
        form = form_of(pool, own.size_bytes)
        make = plan_make(own, form, own, sources, view.nodes, view.eligible(pool), is_mirror=True)
        if make is None:
            return prospect
        return replace(prospect, pool=pool, action=make, urgency=(Urgency.MIRROR, 0.0, 0))
