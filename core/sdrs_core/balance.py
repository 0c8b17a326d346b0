"""Evening out how full the nodes of a pool are, with little movement: a node that joins gets its part, and no more.

Fill is what the catalog has on a node, by its capacity: what a disk says is also what others put there, and nodes that
share a file system are all as full as that. A single fragment at a time goes from a node above the mean to one below
it. The target stays at or below the mean, and the source does not fall so low that it would become a target itself;
so whatever was moved is not moved on, and no more is moved than the targets lack.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.ids import NodeId
from sdrs_core.redundancy import Form
from sdrs_core.remedies import Copy, Decision, Urgency
from sdrs_core.stocks import Stock, crowds, fragment_bytes

# Of the mean: who has less is given something, and who would then have less gives nothing.
_LOW = 0.85
# Who has more gives to anybody below the mean.
_HIGH = 1.6
# Less of a difference is not worth a move.
LEAST_BYTES = 16 << 20


class Balance:
    """Of one pool's nodes, as they will be once the moves that were asked for are made."""

    def __init__(self, stocks: Mapping[NodeId, Stock], eligible: Set[NodeId], least_bytes: int = LEAST_BYTES) -> None:
        self._stocks = {
            node_id: stock
            for node_id, stock in stocks.items()
            if node_id in eligible and stock.takes_copies and stock.capacity_bytes > 0
        }
        capacity_bytes = sum(stock.capacity_bytes for stock in self._stocks.values())
        self._mean = sum(stock.held_bytes for stock in self._stocks.values()) / max(1, capacity_bytes)
        self._least_bytes = least_bytes
        self._is_uneven = self._look()

    def _look(self) -> bool:
        fills = [stock.fill for stock in self._stocks.values()]
        if len(fills) < 2:
            return False
        return min(fills) < _LOW * self._mean or max(fills) > _HIGH * self._mean

    def move(self, blob: Blob, decision: Decision, taken: Set[tuple[NodeId, int]] = frozenset()) -> Copy | None:
        """The first half of a move of one of the blob's fragments, which counts as made; the second is the trim that
        it makes possible. Only of a blob that needs nothing else. ``taken``: where it is being worked on.
        """
        form = decision.form
        # An only copy stays where its job saved it.
        if not self._is_uneven or decision.action or decision.is_degraded or form.total < 2:
            return None
        holders = [holder for holder in decision.live if holder.node_id in self._stocks]
        for holder in sorted(holders, key=lambda holder: (-self._stocks[holder.node_id].fill, holder.node_id)):
            if self._stocks[holder.node_id].fill <= self._mean:
                return None
            target = self._target(blob, form, holder, decision, taken)
            if target is not None:
                self._book(blob, holder, target)
                return Copy(blob, holder.fragment_index, blob, decision.live, target, Urgency.BALANCE)
        return None

    def _target(
        self, blob: Blob, form: Form, holder: Holder, decision: Decision, taken: Set[tuple[NodeId, int]]
    ) -> NodeId | None:
        source, size_bytes = self._stocks[holder.node_id], fragment_bytes(blob, holder.fragment_index)
        others = [known for known in decision.live if known != holder]
        crowded = crowds(form, others, self._stocks)
        mine = {known.node_id for known in blob.holders}
        fit = [
            stock
            for node_id, stock in self._stocks.items()
            # Never more in one domain than there are now.
            if crowded[stock.domain] <= crowded[source.domain]
            and not stock.flapping
            and node_id not in mine
            and (node_id, holder.fragment_index) not in taken
            and stock.room_bytes >= size_bytes
            and self._is_worth_it(source, stock, size_bytes)
        ]
        return min(fit, key=lambda stock: (stock.fill, stock.id)).id if fit else None

    def _is_worth_it(self, source: Stock, target: Stock, size_bytes: int) -> bool:
        gap_bytes = (source.fill - target.fill) * min(source.capacity_bytes, target.capacity_bytes)
        if gap_bytes < max(self._least_bytes, 2 * size_bytes) or not size_bytes:
            return False
        source_after = (source.held_bytes - size_bytes) / source.capacity_bytes
        target_after = (target.held_bytes + size_bytes) / target.capacity_bytes
        if target_after > self._mean:
            return False
        if target.fill < _LOW * self._mean:
            return source_after >= _LOW * self._mean
        return source.fill > _HIGH * self._mean and source_after >= self._mean

    def _book(self, blob: Blob, holder: Holder, target: NodeId) -> None:
        size_bytes = fragment_bytes(blob, holder.fragment_index)
        for node_id, change in ((holder.node_id, -size_bytes), (target, size_bytes)):
            stock = self._stocks[node_id]
            self._stocks[node_id] = replace(
                stock, held_bytes=stock.held_bytes + change, room_bytes=stock.room_bytes - max(0, change)
            )
        self._is_uneven = self._look()
