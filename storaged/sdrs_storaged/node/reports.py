"""What a primary tells the controller about members that fail or lag, so that the group is re-formed (I4).

One report for each group, epoch and member at a time. Who was reported is spared further copies for a while: the next
blob would only wait for it again, and what it lacks is filled when the shard is sealed, or pulled by repair.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sdrs_core.cluster import Group
from sdrs_core.errors import AlreadyExistsError, DeadlineExceededError, SdrsError, StaleEpochError
from sdrs_core.ids import GroupId, NodeId
from sdrs_storaged.logs import get_log

log = get_log("reports")

_MAX_WAITING = 1000
_SPARED_SECONDS = 10.0
# Room comes back when something is deleted there.
_FULL_SECONDS = 30.0

_Key = tuple[GroupId, int, NodeId]


@dataclass(frozen=True, slots=True)
class MemberTrouble:
    group_id: GroupId
    epoch: int
    member_id: NodeId
    is_slow: bool  # it answers, but too late; otherwise it cannot be reached, or refuses
    detail: str


class MemberReports:
    def __init__(
        self, send: Callable[[MemberTrouble], Awaitable[None]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """To be made on the event loop that ``run`` runs on."""
        self._send = send
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[MemberTrouble] = asyncio.Queue(_MAX_WAITING)
        self._lock = threading.Lock()
        self._under_way: set[_Key] = set()
        self._spared: dict[_Key, float] = {}
        self._full: dict[NodeId, float] = {}

    def note(self, group: Group, member_id: NodeId, error: SdrsError) -> None:
        """From any thread: ``member_id`` could not be served, because of ``error``."""
        # A member that is ahead of us, has its hands full, or holds on to what it has, is not to blame.
        if isinstance(error, StaleEpochError | AlreadyExistsError) or "slots" in error.facts:
            return
        key = (group.id, group.epoch, member_id)
        now = self._clock()
        with self._lock:
            self._spared = {spared: until for spared, until in self._spared.items() if until > now}
            self._spared[key] = now + _SPARED_SECONDS
            if key in self._under_way or len(self._under_way) == _MAX_WAITING:
                return
            self._under_way.add(key)
        trouble = MemberTrouble(*key, isinstance(error, DeadlineExceededError), error.message)
        log.warning("member_failed", group=group.id, epoch=group.epoch, member=member_id, why=error.message)
        with suppress(RuntimeError):  # the daemon has stopped: nobody is there to report it
            self._loop.call_soon_threadsafe(self._waiting.put_nowait, trouble)

    def is_spared(self, group: Group, member_id: NodeId) -> bool:
        with self._lock:
            return self._spared.get((group.id, group.epoch, member_id), 0.0) > self._clock()

    def note_full(self, member_id: NodeId) -> None:
        """From any thread: it has no room for what it was to store. Where others can take that, it stays a member."""
        with self._lock:
            self._full[member_id] = self._clock() + _FULL_SECONDS

    def is_full(self, member_id: NodeId) -> bool:
        with self._lock:
            return self._full.get(member_id, 0.0) > self._clock()

    async def run(self) -> None:
        while True:
            trouble = await self._waiting.get()
            try:
                await self._send(trouble)
            except SdrsError as error:
                # The next failure of this member reports again.
                log.warning("report_failed", group=trouble.group_id, member=trouble.member_id, why=error.message)
            finally:
                with self._lock:
                    self._under_way.discard((trouble.group_id, trouble.epoch, trouble.member_id))
