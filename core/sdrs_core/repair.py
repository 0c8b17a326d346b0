"""What each blob should have against what live nodes hold: copies to make, copies to let go. No clock, socket or disk.

One decision for one blob at a time, so that a loop may scan any number of them in bounded memory and act on the most
urgent first. Holders are told apart by fragment index already, which mirrors all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum

import xxhash

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.failover import Liveness
from sdrs_core.ids import DiskId, NodeId

# Nodes whose fill differs by less than this are alike, and blobs are spread over them evenly.
_FILL_STEP = 0.05


@dataclass(frozen=True, slots=True)
class Stock:
    """What repair knows of a node. ``disks`` are those it reports; a failed one can be read, but is not counted on
    (I9).
    """

    id: NodeId
    domain: str
    liveness: Liveness
    disks: frozenset[DiskId] = frozenset()
    failed_disks: frozenset[DiskId] = frozenset()
    takes_writes: bool = True
    cordoned: bool = False
    flapping: bool = False
    room_bytes: int = 0
    used_fraction: float = 0.0
    down_for_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node that went down is waited for before its copies are made elsewhere: a reboot moves no data."""

    seconds: float = 60.0
    # When only one live copy is left.
    last_copy_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Copy:
    blob: Blob
    fragment_index: int
    sources: tuple[NodeId, ...]
    target: NodeId


@dataclass(frozen=True, slots=True)
class Trim:
    """Let a copy go. One whose holder is already dropping was begun before, and only has to be finished (P14)."""

    blob: Blob
    holder: Holder


@dataclass(frozen=True, slots=True)
class Decision:
    wanted: int
    live: tuple[Holder, ...]
    # Live ones, and those on failed disks: whatever a reader can still get at.
    readable: tuple[Holder, ...]
    copies: tuple[Copy, ...]
    trims: tuple[Trim, ...]
    # Some holder's node was not heard yet by this controller.
    undecided: bool
    # Until a copy that is waited for is no longer waited for.
    wait_seconds: float | None

    @property
    def is_degraded(self) -> bool:
        return len(self.live) < self.wanted

    @property
    def is_awaited(self) -> bool:
        """Whether nothing is done now about too few copies, because a node that has one may return."""
        return self.is_degraded and not self.copies and (self.undecided or self.wait_seconds is not None)

    @property
    def is_unavailable(self) -> bool:
        return not self.readable and not self.undecided

    @property
    def action(self) -> Copy | Trim | None:
        """What to do first; then the blob is looked at again."""
        actions: tuple[Copy | Trim, ...] = (*self.copies, *self.trims)
        return actions[0] if actions else None

    @property
    def urgency(self) -> tuple[int, int]:
        """Lower comes first: the fewest live copies, and whatever only saves room last."""
        return (0 if self.copies else 1, len(self.live))


class _Standing(Enum):
    LIVE = "live"
    FAILING = "failing"  # its disk failed: readable, not counted on
    DETACHED = "detached"  # its node is up without its disk, which may come back
    AWAY = "away"  # its node is waited for
    GONE = "gone"  # its node is not waited for any more
    DROPPING = "dropping"  # P14


def decide_repair(
    blob: Blob,
    stocks: Mapping[NodeId, Stock],
    *,
    wanted: int,
    eligible: Set[NodeId],
    patience: Patience,
    barred: Set[NodeId] = frozenset(),
    preferred: NodeId | None = None,
) -> Decision:
    """``eligible``: the pool's nodes. ``barred``: where this very blob is being worked on. ``preferred``: a node that
    lost its copy, and is as good as any other to get it again.
    """
    standings = _standings(blob, stocks, patience)

    def those(*kinds: _Standing) -> tuple[Holder, ...]:
        return tuple(holder for holder in blob.holders if standings[holder] in kinds)

    live, away = those(_Standing.LIVE), those(_Standing.AWAY)
    readable = (*live, *those(_Standing.FAILING))
    sources = _sources(readable, stocks)
    # A node without the disk that held the copy may get it on another disk; all others on record keep theirs.
    detached = {holder.node_id for holder in those(_Standing.DETACHED)}
    taken = {holder.node_id for holder in blob.holders} - detached
    copies: list[Copy] = []
    domains = Counter(stocks[holder.node_id].domain for holder in (*live, *away) if holder.node_id in stocks)
    candidates = [
        stock
        for node_id, stock in stocks.items()
        if node_id in eligible and node_id not in taken | barred and _has_room(stock, blob)
    ]
    missing = wanted - len(live) - len(away) if readable else 0
    while len(copies) < missing and candidates:
        target = min(
            candidates,
            key=lambda stock: (
                domains[stock.domain],
                stock.id in detached,
                stock.flapping,
                stock.id != preferred,
                int(stock.used_fraction / _FILL_STEP),
                _draw(blob, stock),
                stock.id,
            ),
        )
        candidates.remove(target)
        domains[target.domain] += 1
        copies.append(Copy(blob, readable[0].fragment_index, sources, target.id))
    # I7: what it was dispensable for may be gone since. Then it is the last one, and stays where it is.
    begun = tuple(Trim(blob, holder) for holder in those(_Standing.DROPPING) if live and _is_up(holder, stocks))
    return Decision(
        wanted=wanted,
        live=live,
        readable=readable,
        copies=tuple(copies),
        trims=(*begun, *(Trim(blob, holder) for holder in _surplus(live, stocks, wanted))),
        undecided=any(_liveness(holder, stocks) is Liveness.UNKNOWN for holder in blob.holders if not holder.dropping),
        wait_seconds=_wait_seconds(away, stocks, _patience_seconds(live, patience)) if readable else None,
    )


def _standings(blob: Blob, stocks: Mapping[NodeId, Stock], patience: Patience) -> dict[Holder, _Standing]:
    standings = {holder: _standing(holder, stocks) for holder in blob.holders}
    live = [holder for holder, standing in standings.items() if standing is _Standing.LIVE]
    for holder in [holder for holder, standing in standings.items() if standing is _Standing.AWAY]:
        stock = stocks[holder.node_id]
        if stock.liveness is Liveness.DOWN and stock.down_for_seconds >= _patience_seconds(live, patience):
            standings[holder] = _Standing.GONE
    return standings


def _standing(holder: Holder, stocks: Mapping[NodeId, Stock]) -> _Standing:
    if holder.dropping:
        return _Standing.DROPPING
    stock = stocks.get(holder.node_id)
    if stock is None:
        return _Standing.GONE
    if stock.liveness is not Liveness.UP:
        return _Standing.AWAY
    if holder.disk_id not in stock.disks:
        return _Standing.DETACHED
    return _Standing.FAILING if holder.disk_id in stock.failed_disks else _Standing.LIVE


def _patience_seconds(live: tuple[Holder, ...] | list[Holder], patience: Patience) -> float:
    return patience.last_copy_seconds if len(live) <= 1 else patience.seconds


def _wait_seconds(away: tuple[Holder, ...], stocks: Mapping[NodeId, Stock], patience_seconds: float) -> float | None:
    down = [stocks[h.node_id] for h in away if stocks[h.node_id].liveness is Liveness.DOWN]
    return min((max(0.0, patience_seconds - stock.down_for_seconds) for stock in down), default=None)


def _liveness(holder: Holder, stocks: Mapping[NodeId, Stock]) -> Liveness:
    stock = stocks.get(holder.node_id)
    return stock.liveness if stock else Liveness.DOWN


def _is_up(holder: Holder, stocks: Mapping[NodeId, Stock]) -> bool:
    return _liveness(holder, stocks) is Liveness.UP


def _sources(readable: tuple[Holder, ...], stocks: Mapping[NodeId, Stock]) -> tuple[NodeId, ...]:
    """Sound disks of steady nodes first."""

    def rank(holder: Holder) -> tuple[bool, bool]:
        stock = stocks[holder.node_id]
        return (holder.disk_id in stock.failed_disks, stock.flapping)

    return tuple(holder.node_id for holder in sorted(readable, key=rank))


def _has_room(stock: Stock, blob: Blob) -> bool:
    return (
        stock.liveness is Liveness.UP
        and stock.takes_writes
        and not stock.cordoned
        and stock.room_bytes >= blob.size_bytes
    )


def _draw(blob: Blob, stock: Stock) -> int:
    """The same for the same blob and node always, and different from blob to blob."""
    return xxhash.xxh3_64_intdigest(f"{blob.id}:{stock.id}".encode())


def _surplus(live: tuple[Holder, ...], stocks: Mapping[NodeId, Stock], wanted: int) -> list[Holder]:
    """What is beyond ``wanted`` live copies: doubled domains first, then the least steady and the fullest node."""
    kept, surplus = list(live), list[Holder]()
    while len(kept) > max(1, wanted):
        domains = Counter(stocks[holder.node_id].domain for holder in kept)

        def rank(holder: Holder, domains: Counter[str] = domains) -> tuple[int, bool, float, NodeId, DiskId]:
            stock = stocks[holder.node_id]
            return (domains[stock.domain], stock.flapping, stock.used_fraction, stock.id, holder.disk_id)

        worst = max(kept, key=rank)
        kept.remove(worst)
        surplus.append(worst)
    return surplus
