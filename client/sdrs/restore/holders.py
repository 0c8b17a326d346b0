"""Which of a blob's holders is asked first: the pool's policy over what this process has measured.

``rank_holders`` decides and ``HolderBook`` remembers. Whatever the policy, a holder that just failed or was too slow
comes after those that did not, and one whose node is down comes last: a frozen node costs the first reader a moment,
not every reader of every blob.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sdrs.restore.pace import Pace
from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import ReadPolicy
from sdrs_core.ids import NodeId

# How much a new measurement counts against the old ones.
NEW_SHARE = 0.3
# A holder that failed is asked after the others for so long.
SUSPECT_SECONDS = 10.0
# What was measured longer ago is forgotten, so that one that was slow once gets another chance.
MEASURED_SECONDS = 30.0
# No answer is faster; it keeps the weights finite.
_LEAST_SECONDS = 1e-6
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Choice:
    """What the order of holders depends on, apart from the policy."""

    up: AbstractSet[NodeId]
    suspects: AbstractSet[NodeId]
    # How long each is expected to take; those not in here were not measured of late.
    expected_seconds: Mapping[NodeId, float]
    # Another one for each range that is read, so that consecutive ranges begin with different holders.
    turn: int
    # On this host: no byte of theirs takes the network.
    near: AbstractSet[NodeId] = frozenset()


def rank_holders(
    holders: Sequence[Holder], policy: ReadPolicy, choice: Choice, chance: random.Random
) -> list[tuple[int, Holder]]:
    """All of ``holders`` in the order in which to ask them, each with its tier: 0 is well, 1 suspect, 2 down."""
    tiers: tuple[list[Holder], ...] = ([], [], [])
    for holder in holders:
        tier = 2 if holder.node_id not in choice.up else 1 if holder.node_id in choice.suspects else 0
        tiers[tier].append(holder)
    return [
        (number, holder) for number, tier in enumerate(tiers) for holder in _order_alike(tier, policy, choice, chance)
    ]


def _order_alike(holders: Sequence[Holder], policy: ReadPolicy, choice: Choice, chance: random.Random) -> list[Holder]:
    if not holders:
        return []
    # By name: blobs of one shard may list their holders in different orders, which must not undo the rotation.
    named = sorted(holders, key=lambda holder: (holder.node_id, holder.fragment_index))
    first = choice.turn % len(named)
    rotated = [*named[first:], *named[:first]]
    if policy is ReadPolicy.ROUND_ROBIN:
        return sorted(rotated, key=lambda holder: holder.node_id not in choice.near)
    seconds = choice.expected_seconds
    if policy is ReadPolicy.LEAST_RESPONSE_TIME:
        # One that was not measured goes first: that is how it gets measured.
        return sorted(rotated, key=lambda holder: seconds.get(holder.node_id, 0.0))
    return _draw_weighted(rotated, seconds, chance)


def _draw_weighted(holders: Sequence[Holder], seconds: Mapping[NodeId, float], chance: random.Random) -> list[Holder]:
    """Drawn one after the other, each as likely as it is fast; one that was not measured counts as the fastest."""
    known = [max(seconds[holder.node_id], _LEAST_SECONDS) for holder in holders if holder.node_id in seconds]
    fastest = min(known, default=1.0)
    left = {holder: 1.0 / max(seconds.get(holder.node_id, fastest), _LEAST_SECONDS) for holder in holders}
    drawn = []
    while left:
        (holder,) = chance.choices(list(left), list(left.values()))
        del left[holder]
        drawn.append(holder)
    return drawn


@dataclass(frozen=True, slots=True)
class _Measured:
    first_byte_seconds: float
    per_mib_seconds: float
    at: float


class HolderBook:
    """What this process knows of the nodes that it reads from; used by all its readers at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, chance: random.Random | None = None) -> None:
        self._clock = clock
        self._chance = chance or random.Random()
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._measured: dict[NodeId, _Measured] = {}
        self._suspected: dict[NodeId, float] = {}
        self.pace = Pace()

    def rank(
        self,
        holders: Sequence[Holder],
        policy: ReadPolicy,
        *,
        up: AbstractSet[NodeId],
        size_bytes: int,
        near: AbstractSet[NodeId] = frozenset(),
    ) -> list[tuple[int, Holder]]:
        """``holders`` in the order in which a read of ``size_bytes`` should ask them, with their tiers."""
        with self._lock:
            now = self._clock()
            expected = {}
            for holder in holders:
                measured = self._measured.get(holder.node_id)
                if measured and now - measured.at < MEASURED_SECONDS:
                    per_byte_seconds = measured.per_mib_seconds / _MIB
                    expected[holder.node_id] = measured.first_byte_seconds + per_byte_seconds * size_bytes
            choice = Choice(up, self._suspects(now), expected, next(self._turns), near)
            return rank_holders(holders, policy, choice, self._chance)

    def suspects(self) -> frozenset[NodeId]:
        """Those that failed of late."""
        with self._lock:
            return self._suspects(self._clock())

    def _suspects(self, now: float) -> frozenset[NodeId]:
        return frozenset(node_id for node_id, until in self._suspected.items() if now < until)

    def note_read(self, node_id: NodeId, first_byte_seconds: float, size_bytes: int, read_seconds: float) -> None:
        """It served: ``first_byte_seconds`` until it began, ``read_seconds`` for the bytes that followed."""
        with self._lock:
            self._suspected.pop(node_id, None)
            self._blend(node_id, first_byte_seconds, read_seconds * _MIB / max(size_bytes, 1))

    def note_failure(self, node_id: NodeId, waited_seconds: float) -> None:
        """It failed, or was given up after ``waited_seconds``; what is measured from now on is as slow."""
        with self._lock:
            self._suspected[node_id] = self._clock() + SUSPECT_SECONDS
            known = self._measured.get(node_id)
            self._blend(node_id, waited_seconds, known.per_mib_seconds if known else 0.0)

    def _blend(self, node_id: NodeId, first_byte_seconds: float, per_mib_seconds: float) -> None:
        now = self._clock()
        old = self._measured.get(node_id)
        if old and now - old.at < MEASURED_SECONDS:
            first_byte_seconds = NEW_SHARE * first_byte_seconds + (1 - NEW_SHARE) * old.first_byte_seconds
            per_mib_seconds = NEW_SHARE * per_mib_seconds + (1 - NEW_SHARE) * old.per_mib_seconds
        self._measured[node_id] = _Measured(first_byte_seconds, per_mib_seconds, now)
