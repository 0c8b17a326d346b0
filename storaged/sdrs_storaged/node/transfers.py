"""Transfers: slots that bound how many run at once (P21), and the tickets that admit a socket to one."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sdrs_core.errors import PermissionDeniedError, UnavailableError
from sdrs_core.ids import BlobId, GroupId, NodeId
from sdrs_proto.channel import TICKET_CHARS
from sdrs_proto.limits import TICKET_SECONDS
from sdrs_storaged.store.fragment import FragmentOrigin


@dataclass(frozen=True, slots=True)
class WriteIntent:
    origin: FragmentOrigin
    size_bytes: int
    group_id: GroupId
    epoch: int
    # From the group's primary, which passes on what it receives: to be stored here, and sent to nobody else.
    relayed: bool = False
    # Not the first try: what the group has of it from the last one counts (P11).
    resent: bool = False
    # Found there by the primary, before more of it is taken: which member has which share.
    held: tuple[tuple[int, NodeId], ...] = ()
    # Of the blob that these are shares of.
    held_hash: str = ""


@dataclass(frozen=True, slots=True)
class ReadIntent:
    blob_id: BlobId
    fragment_index: int
    offset: int
    length: int  # 0: to the end
    # Not for a client who waits: it goes on only as clients' own transfers allow.
    for_repair: bool = False


Intent = WriteIntent | ReadIntent


class Admission(Protocol):
    """What a transfer has taken, to be given back at its end."""

    def give(self) -> None: ...


class Slots:
    """A bounded number of transfers of one kind. A transfer holds its slot from its ticket to its end; a heavy one
    holds several.

    Taken on the event loop, given back from any thread. Who waits holds no thread: those inside need them to finish.
    """

    def __init__(self, name: str, count: int) -> None:
        self.count = count
        self._name = name
        self._taken = 0
        self._change = threading.Condition()
        self._waiting: deque[tuple[asyncio.Future[bool], int]] = deque()
        self._closed = False

    @property
    def taken(self) -> int:
        return self._taken

    async def take(self, timeout_seconds: float, weight: int = 1) -> None:
        """In the order of coming; UnavailableError if none is free in time. At most ``count`` can be taken at all."""
        with self._change:
            if not self._closed and not self._waiting and self._taken + weight <= self.count:
                self._taken += weight
                return
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, weight))
            if self._closed:
                self._wake_all()
        try:
            async with asyncio.timeout(timeout_seconds):
                is_mine = await turn
        except TimeoutError:
            is_mine = self._leave_queue(turn, weight)
        except asyncio.CancelledError:
            if self._leave_queue(turn, weight):
                self.give(weight)
            raise
        if not is_mine:
            why = "it is shutting down" if self._closed else f"all its {self.count} {self._name} slots are busy"
            # The fact tells a primary that the node is merely busy.
            raise UnavailableError(f"the node takes no {self._name} transfer now: {why}", slots=self._name)

    def _leave_queue(self, turn: asyncio.Future[bool], weight: int) -> bool:
        """True if the slot was handed over all the same."""
        turn.cancel()
        with self._change, suppress(ValueError):
            self._waiting.remove((turn, weight))
            self._admit_waiting()  # who comes next may need less
        return turn.done() and not turn.cancelled() and turn.result()

    def give(self, weight: int = 1) -> None:
        with self._change:
            self._taken -= weight
            self._admit_waiting()
            self._change.notify_all()

    def _admit_waiting(self) -> None:
        while self._waiting and not self._closed and self._taken + self._waiting[0][1] <= self.count:
            turn, weight = self._waiting.popleft()
            self._taken += weight
            turn.get_loop().call_soon_threadsafe(self._hand_over, turn, weight)

    def _hand_over(self, turn: asyncio.Future[bool], weight: int) -> None:
        if turn.done():
            self.give(weight)  # it did not wait so long
        else:
            turn.set_result(True)

    def drain(self, timeout_seconds: float) -> bool:
        """Admit nobody new, wait for those inside; False if some are still there."""
        with self._change:
            self._closed = True
            self._wake_all()
            return self._change.wait_for(lambda: self._taken == 0, timeout_seconds)

    def _wake_all(self) -> None:
        while self._waiting:
            turn, _ = self._waiting.popleft()
            turn.get_loop().call_soon_threadsafe(_send_away, turn)


def _send_away(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


@dataclass(frozen=True, slots=True)
class HeavySlot:
    """Several of them, held by one transfer."""

    slots: Slots
    weight: int

    def give(self) -> None:
        self.slots.give(self.weight)


class Tickets:
    """Single-use and expiring: whoever holds one may open exactly one transfer, soon."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Intent, Admission, float]] = {}

    def issue(self, intent: Intent, slots: Admission) -> str:
        """The caller has taken a slot; it goes with the ticket."""
        self.expire()
        ticket = secrets.token_hex(TICKET_CHARS // 2)
        with self._lock:
            self._open[ticket] = (intent, slots, self._clock() + TICKET_SECONDS)
        return ticket

    def redeem(self, ticket: str) -> tuple[Intent, Admission]:
        self.expire()
        with self._lock:
            found = self._open.pop(ticket, None)
        if found is None:
            raise PermissionDeniedError("this ticket is unknown, used or expired: ask for a new one")
        return found[0], found[1]

    def expire(self) -> None:
        """Also called by whoever needs a slot: those of tickets that nobody used must not be lost."""
        now = self._clock()
        with self._lock:
            late = [ticket for ticket, (_, _, deadline) in self._open.items() if deadline < now]
            ended = [self._open.pop(ticket)[1] for ticket in late]
        for slots in ended:
            slots.give()
