"""Where the holders of a blob stand: who has it now, who may return, who is to let it go. No clock, socket or disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from enum import Enum

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import parse_code
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId
from sdrs_core.redundancy import share_of
from sdrs_core.stocks import Stock


class State(Enum):
    LIVE = "live"
    LEAVING = "leaving"  # counted on, but its disk or node is drained, or not of this pool: it is to move
    FAILING = "failing"  # its disk failed: readable, not counted on
    DETACHED = "detached"  # its node is up without its disk, which may come back
    AWAY = "away"  # its node is waited for
    GONE = "gone"  # its node is not waited for any more
    RETIRED = "retired"  # its disk will not come back
    DROPPING = "dropping"  # P14


READABLE = (State.LIVE, State.LEAVING, State.FAILING)


def state_of(holder: Holder, stocks: Mapping[NodeId, Stock], eligible: Set[NodeId]) -> State:
    stock = stocks.get(holder.node_id)
    if stock is not None and holder.disk_id in stock.retired_disks:
        return State.RETIRED
    if holder.dropping:
        return State.DROPPING
    if stock is None:
        return State.GONE
    if stock.liveness is not Liveness.UP:
        return State.AWAY
    if holder.disk_id not in stock.disks:
        return State.DETACHED
    if holder.disk_id in stock.failed_disks:
        return State.FAILING
    is_leaving = stock.draining or holder.disk_id in stock.draining_disks or stock.id not in eligible
    return State.LEAVING if is_leaving else State.LIVE


def in_order(readable: Iterable[Holder], stocks: Mapping[NodeId, Stock]) -> tuple[Holder, ...]:
    """Sound disks of steady nodes first."""

    def rank(holder: Holder) -> tuple[bool, bool]:
        stock = stocks[holder.node_id]
        return (holder.disk_id in stock.failed_disks, stock.flapping)

    return tuple(sorted(readable, key=rank))


def readable_holders(blob: Blob, stocks: Mapping[NodeId, Stock]) -> tuple[Holder, ...]:
    """Those whose fragment can be got at now, sound disks of steady nodes first; none if they are too few to bring the
    blob back.
    """
    code = parse_code(blob.code)
    needed = code.data if code else 1
    found = [holder for holder in blob.holders if state_of(holder, stocks, stocks.keys()) in READABLE]
    return in_order(found, stocks) if len(shares(found, blob.code)) >= needed else ()


def is_unheard(blob: Blob, stocks: Mapping[NodeId, Stock]) -> bool:
    """Whether some of its holders may be there or not, for all that this controller has heard."""
    return any(
        stocks[holder.node_id].liveness is Liveness.UNKNOWN
        for holder in blob.holders
        if not holder.dropping and holder.node_id in stocks
    )


def domains_of(blob: Blob, stocks: Mapping[NodeId, Stock]) -> dict[NodeId, str]:
    """Of its holders, as far as they are known: thousands of others do not matter to it."""
    return {h.node_id: stocks[h.node_id].domain for h in blob.holders if h.node_id in stocks}


def shares(holders: Iterable[Holder], code: str) -> set[Hashable]:
    return {share_of(holder, code) for holder in holders}


def only_there(holders: Sequence[Holder], domains: Mapping[NodeId, str], code: str) -> list[Holder]:
    """Those of shares that no other domain has."""
    places: dict[Hashable, set[str]] = {}
    for holder in holders:
        places.setdefault(share_of(holder, code), set()).add(domains[holder.node_id])
    return [holder for holder in holders if len(places[share_of(holder, code)]) == 1]


def most_huddled(holders: Sequence[Holder], domains: Mapping[NodeId, str], code: str) -> int:
    """The index of a fragment that only one domain has: the one of all that has most such."""
    alone = {(domains[holder.node_id], holder.fragment_index) for holder in only_there(holders, domains, code)}
    crowds = Counter(domain for domain, _ in alone)
    return max(alone, key=lambda place: (crowds[place[0]], place))[1]
