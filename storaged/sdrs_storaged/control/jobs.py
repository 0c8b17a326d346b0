"""What a survey finds to do, the most urgent first and not more than fits (I10)."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from sdrs_core.balance import Balance
from sdrs_core.checkpoints import Save
from sdrs_core.ids import BlobId, NodeId, PoolName, SaveId
from sdrs_core.remedies import Copy, Urgency
from sdrs_storaged.control.held import Amount, Held
from sdrs_storaged.control.records import Stored
from sdrs_storaged.control.stocks import View

# The kind of thing to do, and then whatever tells two of a kind apart; lower comes first.
Order = tuple[float, float, int]


@dataclass(frozen=True, slots=True)
class Job:
    """A blob that needs something done; what exactly is decided again when its turn comes."""

    urgency: Order
    save: Stored[Save]
    shard_key: str
    rank: int
    blob_id: BlobId
    size_bytes: int
    preferred: NodeId | None
    target: NodeId | None
    # To even out how full nodes are: which fragment goes where. It is not decided anew, only looked at again.
    move: Copy | None = None

    @property
    def kind(self) -> Urgency:
        return Urgency(int(self.urgency[0]))


@dataclass(slots=True)
class Survey:
    limit: int
    degraded_blobs: int = 0
    # Of those, the ones whose node is waited for before they are made elsewhere.
    awaited_blobs: int = 0
    unavailable_count: int = 0
    unavailable: dict[SaveId, Save] = field(default_factory=dict)
    raised: list[Save] = field(default_factory=list)
    # All jobs, and those beyond the limit: the next survey finds them again.
    kinds: Counter[Urgency] = field(default_factory=Counter)
    left_out: int = 0
    left_out_bytes: int = 0
    # Blobs whose repair failed before, and that still need it.
    failing: set[BlobId] = field(default_factory=set)
    # Until something that is waited for now will be acted on.
    wait_seconds: float | None = None
    held: Held = field(default_factory=Held)
    # Checkpoints that another pool has a whole mirror of, by their own pool.
    mirrored: dict[PoolName, Amount] = field(default_factory=dict)
    # The nodes as seen not long ago.
    view: View = field(default_factory=lambda: View({}))
    pages: int = 0
    balances: dict[PoolName, Balance] = field(default_factory=dict)
    balance_moves: int = 0
    _heap: list[tuple[Order, int, Job]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def add(self, job: Job) -> None:
        self.kinds[job.kind] += 1
        kind, left, missing = job.urgency
        heapq.heappush(self._heap, ((-kind, -left, -missing), -next(self._numbers), job))
        if len(self._heap) > self.limit:
            least = heapq.heappop(self._heap)[-1]
            self.left_out += 1
            self.left_out_bytes += least.size_bytes

    def wait(self, seconds: float | None) -> None:
        if seconds is not None:
            self.wait_seconds = seconds if self.wait_seconds is None else min(self.wait_seconds, seconds)

    def jobs(self) -> list[Job]:
        """The most urgent first."""
        return [entry[-1] for entry in sorted(self._heap, reverse=True)]
