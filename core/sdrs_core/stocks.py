"""Nodes as repair sees them, and which of them may get a fragment. No clock, socket or disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import xxhash

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.codes import parse_code
from sdrs_core.failover import Liveness
from sdrs_core.ids import BlobId, DiskId, NodeId
from sdrs_core.redundancy import Form, share_of

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
    # An operator's word: what these hold moves elsewhere; and those that will not come back.
    draining_disks: frozenset[DiskId] = frozenset()
    retired_disks: frozenset[DiskId] = frozenset()
    takes_writes: bool = True
    cordoned: bool = False
    draining: bool = False
    flapping: bool = False
    room_bytes: int = 0
    used_fraction: float = 0.0
    # What the catalog has on it: nodes that share a file system are all as full, and yet hold different amounts.
    held_bytes: int = 0
    capacity_bytes: int = 0
    down_for_seconds: float = 0.0

    @property
    def fill(self) -> float:
        return self.held_bytes / max(1, self.capacity_bytes)

    @property
    def takes_copies(self) -> bool:
        return self.liveness is Liveness.UP and self.takes_writes and not self.cordoned and not self.draining


def fragment_bytes(blob: Blob, index: int) -> int:
    code = parse_code(blob.code)
    return code.fragment_bytes(blob.size_bytes, index) if code else blob.size_bytes


def draw(blob_id: BlobId, stock: Stock) -> int:
    """The same for the same blob and node always, and different from blob to blob."""
    return xxhash.xxh3_64_intdigest(f"{blob_id}:{stock.id}".encode())


def fill_step(stock: Stock) -> int:
    return int(stock.used_fraction / _FILL_STEP)


def crowds(form: Form, holders: Iterable[Holder], stocks: Mapping[NodeId, Stock]) -> Counter[str]:
    """How many shares each domain has."""
    shares = {(stocks[h.node_id].domain, share_of(h, form.code)) for h in holders if h.node_id in stocks}
    return Counter(domain for domain, _ in shares)


class Targets:
    """Who gets the next fragments of one blob; each choice counts for those after it.

    ``settled``: who keeps what it has. ``taken``: fragments that a node has or is busy with, and cannot get (again).
    """

    def __init__(
        self,
        blob: Blob,
        form: Form,
        stocks: Mapping[NodeId, Stock],
        eligible: Set[NodeId],
        settled: Iterable[Holder],
        taken: Set[tuple[NodeId, int]],
    ) -> None:
        self._blob = blob
        self._stocks = stocks
        self._fit = [stock for node_id, stock in stocks.items() if node_id in eligible and stock.takes_copies]
        settled = tuple(settled)
        self.domains = crowds(form, settled, stocks)
        self._nodes = Counter(holder.node_id for holder in settled)
        self._taken = set(taken)
        self._given_bytes = Counter[NodeId]()
        # P10: with more in one domain, its loss would be that of the blob.
        self._limit = max(1, form.spare) if form.spread else form.total

    def choose(
        self,
        index: int,
        *,
        leaving: Holder | None = None,
        most: int | None = None,
        last: Set[NodeId] = frozenset(),
        preferred: NodeId | None = None,
    ) -> NodeId | None:
        """The node for this fragment. ``leaving``: who has it now and will let it go, so that its place is free.
        ``most``: how many of the blob's shares its domain may have already. ``last``: to be avoided among equals.
        """
        if leaving is not None and leaving.node_id in self._stocks:
            self.domains[self._stocks[leaving.node_id].domain] -= 1
        most = self._limit - 1 if most is None else most
        size_bytes = fragment_bytes(self._blob, index)
        fit = [
            stock
            for stock in self._fit
            if self.domains[stock.domain] <= most
            and (stock.id, index) not in self._taken
            and stock.room_bytes - self._given_bytes[stock.id] >= size_bytes
        ]
        if not fit:
            if leaving is not None and leaving.node_id in self._stocks:
                self.domains[self._stocks[leaving.node_id].domain] += 1
            return None
        best = min(
            fit,
            key=lambda stock: (
                self.domains[stock.domain],
                self._nodes[stock.id],
                stock.id in last,
                stock.flapping,
                stock.id != preferred,
                fill_step(stock),
                draw(self._blob.id, stock),
                stock.id,
            ),
        )
        self._taken.add((best.id, index))
        self._given_bytes[best.id] += size_bytes
        self._nodes[best.id] += 1
        self.domains[best.domain] += 1
        return best.id
