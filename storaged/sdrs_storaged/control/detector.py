"""Who is alive: heartbeats come in, a broken stream is looked at at once, silence counts after a while (P20).

What is judged here is availability only: a node that is taken for dead and is not, is fenced by its epoch (I3, I8).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from sdrs_core.cluster import Disk, Node, Staging
from sdrs_core.detection import (
    Heard,
    effective_suspect_after,
    heartbeat_interval_seconds,
    is_flapping,
    is_silence_telling,
    judge,
)
from sdrs_core.failover import Liveness
from sdrs_core.ids import GroupId, NodeId
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.logs import get_log

log = get_log("detector")

_KEPT_DOWNS = 16
# The kernel may close the streams of a killed process a moment before its port.
_LOOK_AGAIN_SECONDS = (0.03, 0.1, 0.3, 0.6)


class Probe(Protocol):
    """The other side is ``rpc.node_client``."""

    async def is_refused(self, node: Node) -> bool:
        """Whether the node's port is closed: the process behind it is gone."""


@dataclass(slots=True)
class _Pulse:
    disks: tuple[Disk, ...] = ()
    staging: Staging | None = None
    seen_seconds: float | None = None
    seen_unix_ms: int = 0
    stream: object | None = None
    refused: bool = False
    epochs: dict[GroupId, int] = field(default_factory=dict)
    # When the first sign of trouble came, for the duration that the history tells.
    broke_seconds: float | None = None


@dataclass(slots=True)
class _Verdict:
    liveness: Liveness = Liveness.UNKNOWN
    since_seconds: float = 0.0
    downs: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_DOWNS))


@dataclass(frozen=True, slots=True)
class Change:
    node_id: NodeId
    before: Liveness
    after: Liveness
    # From the last sign of life, or the first of trouble, to the verdict.
    after_seconds: float


class Detector:
    def __init__(self, clock: Clock, probe: Probe, *, suspect_after_seconds: float, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._probe = probe
        self._suspect_after_seconds = suspect_after_seconds
        self._wake = wake
        self._leading_since = clock.monotonic_seconds()
        self._deaf_until = -inf
        self._pulses: dict[NodeId, _Pulse] = {}
        self._verdicts: dict[NodeId, _Verdict] = {}
        self._changes: list[Change] = []
        # One for each node at a time, and who asked for another meanwhile (I10).
        self._probes: dict[NodeId, asyncio.Task[None]] = {}
        self._asked_again: set[NodeId] = set()
        self._is_closed = False

    def now_seconds(self) -> float:
        return self._clock.monotonic_seconds()

    # What comes in

    def beat(
        self,
        node_id: NodeId,
        disks: tuple[Disk, ...],
        stream: object,
        epochs: Mapping[GroupId, int] | None = None,
        staging: Staging | None = None,
    ) -> None:
        pulse = self._pulses.setdefault(node_id, _Pulse())
        is_news = pulse.seen_seconds is None or pulse.stream is None or _writability(pulse.disks) != _writability(disks)
        pulse.disks, pulse.staging = disks, staging
        pulse.seen_seconds = self._clock.monotonic_seconds()
        pulse.seen_unix_ms = self._clock.unix_ms()
        pulse.stream = stream
        pulse.refused = False
        pulse.broke_seconds = None
        if epochs is not None:
            pulse.epochs = dict(epochs)
        if is_news or self.liveness(node_id) is not Liveness.UP:
            self._pass(node_id, Liveness.UP)
            self._wake()

    def stream_ended(self, node: Node, stream: object) -> None:
        """Only the newest stream speaks for its node: an old one may end after the node came back."""
        pulse = self._pulses.get(node.id)
        if pulse and pulse.stream is stream:
            pulse.stream = None
            pulse.broke_seconds = self._clock.monotonic_seconds()
            self.look_at(node)

    def look_at(self, node: Node) -> None:
        """Probe now: a broken stream, or a peer that says it cannot reach the node."""
        if node.id in self._probes:
            self._asked_again.add(node.id)
        elif not self._is_closed:
            self._probes[node.id] = asyncio.ensure_future(self._look_until_told(node))

    async def _look_until_told(self, node: Node) -> None:
        try:
            await self._look_at(node)
            while node.id in self._asked_again:
                self._asked_again.discard(node.id)
                await self._look_at(node)
        finally:
            del self._probes[node.id]

    async def close(self) -> None:
        """The term is over: nobody is looked at any more."""
        self._is_closed = True
        probes = list(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    async def _look_at(self, node: Node) -> None:
        pulse = self._pulses.setdefault(node.id, _Pulse())
        seen_before = pulse.seen_seconds
        for pause_seconds in (0.0, *_LOOK_AGAIN_SECONDS):
            await asyncio.sleep(pause_seconds)
            is_refused = await self._probe.is_refused(node)
            if pulse.seen_seconds != seen_before:
                return  # it spoke meanwhile
            if is_refused:
                # P20: a refused connection counts at once.
                pulse.refused = True
                pulse.stream = None
                pulse.broke_seconds = pulse.broke_seconds or self._clock.monotonic_seconds()
                self._wake()
                return
            if pulse.stream is not None:
                return  # linked: only a peer has its doubts

    def forget(self, node_id: NodeId) -> None:
        """It belongs to the cluster no more: one that comes under its name is a new one."""
        self._pulses.pop(node_id, None)
        self._verdicts.pop(node_id, None)
        self._changes = [change for change in self._changes if change.node_id != node_id]

    def restart_timers(self) -> None:
        """P20: this process stood still. What its nodes sent meanwhile is still on its way to us, and those that gave
        up on us meanwhile are about to link again.
        """
        now = self._clock.monotonic_seconds()
        self._leading_since = now
        for node_id, pulse in self._pulses.items():
            if pulse.stream is not None or self.liveness(node_id) is Liveness.UP:
                pulse.seen_seconds = now

    # What is made of it

    def judge(self, node_ids: Iterable[NodeId]) -> list[Change]:
        """Judge all nodes anew; whose state changed."""
        now = self._clock.monotonic_seconds()
        known = {node_id: self._pulses.get(node_id, _Pulse()) for node_id in node_ids}
        heard = {n: Heard(p.seen_seconds, p.stream is not None, p.refused) for n, p in known.items()}
        patience_seconds = effective_suspect_after(len(known), self._suspect_after_seconds)
        if not is_silence_telling(
            heard, now=now, leading_since=self._leading_since, suspect_after_seconds=patience_seconds
        ):
            self._deaf_until = now
        verdicts = judge(
            heard,
            now=now,
            leading_since=self._leading_since,
            suspect_after_seconds=patience_seconds,
            deaf_until=self._deaf_until,
        )
        for node_id, liveness in verdicts.items():
            self._pass(node_id, liveness)
        changes, self._changes = self._changes, []
        return changes

    def _pass(self, node_id: NodeId, liveness: Liveness) -> None:
        now = self._clock.monotonic_seconds()
        verdict = self._verdicts.setdefault(node_id, _Verdict(since_seconds=now))
        if verdict.liveness is liveness:
            return
        pulse = self._pulses.get(node_id, _Pulse())
        sign = now if liveness is Liveness.UP else pulse.broke_seconds or pulse.seen_seconds or now
        self._changes.append(Change(node_id, verdict.liveness, liveness, now - sign))
        verdict.liveness, verdict.since_seconds = liveness, now
        if liveness is Liveness.DOWN:
            verdict.downs.append(now)

    def liveness(self, node_id: NodeId) -> Liveness:
        verdict = self._verdicts.get(node_id)
        return verdict.liveness if verdict else Liveness.UNKNOWN

    def is_up(self, node_id: NodeId) -> bool:
        """Whether the node can be asked now: one that has just fallen silent is not worth the wait."""
        pulse = self._pulses.get(node_id)
        if pulse is None or pulse.seen_seconds is None or self.liveness(node_id) is not Liveness.UP:
            return False
        return self._clock.monotonic_seconds() - pulse.seen_seconds <= self._patience_seconds()

    def _patience_seconds(self) -> float:
        return effective_suspect_after(len(self._pulses), self._suspect_after_seconds)

    def state_seconds(self, node_id: NodeId) -> float:
        """For how long the node has been what it is."""
        verdict = self._verdicts.get(node_id)
        return self._clock.monotonic_seconds() - verdict.since_seconds if verdict else 0.0

    def trouble_seconds(self, node_id: NodeId) -> float:
        """How long ago the first sign of trouble was; 0 for a node that is fine."""
        pulse = self._pulses.get(node_id, _Pulse())
        sign = pulse.broke_seconds or pulse.seen_seconds
        if sign is None or self.is_up(node_id):
            return 0.0
        return self._clock.monotonic_seconds() - sign

    def down_for_seconds(self, node_id: NodeId) -> float | None:
        """Since its last sign of life, for a node that is down."""
        if self.liveness(node_id) is not Liveness.DOWN:
            return None
        return max(self.trouble_seconds(node_id), self.state_seconds(node_id))

    def is_flapping(self, node_id: NodeId) -> bool:
        verdict = self._verdicts.get(node_id)
        return verdict is not None and is_flapping(tuple(verdict.downs), self._clock.monotonic_seconds())

    def disks(self, node_id: NodeId) -> tuple[Disk, ...]:
        pulse = self._pulses.get(node_id)
        return pulse.disks if pulse else ()

    def staging(self, node_id: NodeId) -> Staging | None:
        pulse = self._pulses.get(node_id)
        return pulse.staging if pulse else None

    def last_seen_unix_ms(self, node_id: NodeId) -> int:
        pulse = self._pulses.get(node_id)
        return pulse.seen_unix_ms if pulse else 0

    def epoch_of(self, node_id: NodeId, group_id: GroupId) -> int:
        """What the node is known to have persisted; 0 if it never told."""
        pulse = self._pulses.get(node_id)
        return pulse.epochs.get(group_id, 0) if pulse else 0

    def interval_seconds(self, node_count: int) -> float:
        """How often a node should beat."""
        return heartbeat_interval_seconds(node_count, self._suspect_after_seconds)


def _writability(disks: tuple[Disk, ...]) -> tuple[bool, ...]:
    return tuple(disk.state.takes_writes for disk in disks)
