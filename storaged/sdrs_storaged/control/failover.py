"""Failover: the loop that judges who is alive, decides, and re-forms groups. The decisions are ``sdrs_core``'s."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from sdrs_core.cluster import NodeState
from sdrs_core.errors import SdrsError, StaleTermError
from sdrs_core.failover import Liveness, decide_failover
from sdrs_core.ids import GroupId, NodeId
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.cluster_map import ClusterMap
from sdrs_storaged.control.detector import Change, Detector
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.groups import Groups
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records
from sdrs_storaged.logs import get_log

log = get_log("failover")

_TICKS_PER_SUSPICION = 8
_MAX_LAG_SECONDS = 1.0
_DECIDE_SECONDS = 1.0
_MAX_UNTOLD = 1000  # I10


class Failover:
    def __init__(
        self,
        records: Records,
        members: Members,
        detector: Detector,
        groups: Groups,
        events: Events,
        clock: Clock,
        cluster_map: ClusterMap,
        *,
        suspect_after_seconds: float,
        settle_seconds: float,
        on_lag: Callable[[], None],
        on_change: Callable[[list[Change]], None],
    ) -> None:
        self._records = records
        self._members = members
        self._detector = detector
        self._groups = groups
        self._events = events
        self._clock = clock
        self._map = cluster_map
        self._tick_seconds = suspect_after_seconds / _TICKS_PER_SUSPICION
        self._settle_seconds = settle_seconds
        self._on_lag = on_lag
        self._on_change = on_change
        self._woken = asyncio.Event()
        self._decided_seconds, self._decided_number = 0.0, 0
        # What the history does not tell yet: while the store is out of reach, it waits.
        self._untold: deque[Change] = deque(maxlen=_MAX_UNTOLD)

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        while True:
            slept_from = self._clock.monotonic_seconds()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick_seconds):
                    await self._woken.wait()
            if self._clock.monotonic_seconds() - slept_from > self._tick_seconds + _MAX_LAG_SECONDS:
                # P20: this process stood still. Nobody is judged by what could not be heard meanwhile.
                self._detector.restart_timers()
                self._on_lag()
            try:
                await self._tick()
            except StaleTermError:
                raise
            except SdrsError as error:
                # The next round tries again: while the MetaStore is out of reach, nobody is demoted.
                log.warning("failover_interrupted", why=error.message)

    async def _tick(self) -> None:
        """Judging is cheap, deciding looks at every group: that waits for news, or for its time."""
        is_due = self._clock.monotonic_seconds() - self._decided_seconds >= _DECIDE_SECONDS
        if is_due or self._woken.is_set() or self._decided_number != self._map.number:
            await self.pass_once()
        else:
            await self._act_on(self._detector.judge(self._members.node_ids()))

    async def pass_once(self) -> None:
        """Judge, decide, carry out."""
        self._woken.clear()
        await self._act_on(self._detector.judge(self._members.node_ids()), is_due=True)

    async def _act_on(self, changes: list[Change], *, is_due: bool = False) -> None:
        if not changes and not is_due:
            return
        self._untold += changes
        if changes:
            self._map.raise_number()
            self._on_change(changes)
        for change in changes:
            if change.after is Liveness.DOWN:
                self._groups.forgive(change.node_id)
        reforms = decide_failover(self._members.view(), settle_seconds=self._settle_seconds)
        if reforms:
            await self._groups.reform(reforms, self._detector.trouble_seconds)
        self._decided_seconds, self._decided_number = self._clock.monotonic_seconds(), self._map.number
        while self._untold:
            await self._tell(self._untold.popleft())

    async def _tell(self, change: Change) -> None:
        """After the groups are in order again: the history can wait, saves cannot."""
        node_id = change.node_id
        if change.after is Liveness.DOWN:
            log.warning("node_lost", node=node_id, elapsed_ms=int(1000 * change.after_seconds))
            text = f"node {node_id} does not answer any more"
            kind = "node_lost"
        elif change.after is Liveness.UP and change.before is Liveness.DOWN:
            log.info("node_returned", node=node_id)
            text = f"node {node_id} is back: what it still holds counts again"
            kind = "node_returned"
        elif change.after is Liveness.UP:
            log.info("node_heard", node=node_id)
            return
        else:
            log.warning("node_silent", node=node_id)
            return
        if self._detector.is_flapping(node_id):
            text += "; it went away several times of late, so it is used last until it has been up for a while"
        await self._events.record(kind, text, node_id=node_id, duration_ms=int(1000 * change.after_seconds))

    def report(self, reporter: NodeId, group_id: GroupId, epoch: int, member: NodeId, *, slow: bool, why: str) -> None:
        """A primary says that a member of its group fails or lags. Its word is looked into, or taken for its own
        group alone: it costs the member a place in this group for a while, nothing else.
        """
        group = self._members.group(group_id)
        if group.primary != reporter or group.epoch != epoch or member not in group.members or member == reporter:
            return  # about a group that has moved on
        node = self._members.node(member)
        log.warning("member_reported", group=group_id, member=member, by=reporter, slow=slow, why=why)
        if slow or node.state is NodeState.UP:
            self._groups.shun(group_id, member, reporter)
        self._detector.look_at(node)
        self.wake()
