"""What will be free, and when: reservations for those who are blocked, which nobody behind them may delay.

A job that nobody knows the length of runs for ever here: what it holds comes free at a time after all known ones, but
before the end of any such job that would be started now. So a job that waits for one of them keeps its reservation
against all that would still be there later, and lets through what ends in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sdrs_scheduler.policy.capacity import Capacity, Shape, taken_units
from sdrs_scheduler.policy.placement import Usable
from sdrs_scheduler.policy.priority import FOREVER_SECONDS
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Ask, Running

# A job that should be over already still holds what it has, for this long at least.
_OVERDUE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Reservation:
    job_id: str
    job_name: str
    start_unix: float
    nodes: tuple[int, ...]

    @property
    def is_known(self) -> bool:
        return self.start_unix < FOREVER_SECONDS


@dataclass(frozen=True, slots=True)
class _Hold:
    start: float
    end: float
    units: int


class Timeline:
    """Node by node: what is free now, what comes free when, and what is reserved from when to when."""

    def __init__(
        self, capacity: Capacity, running: Iterable[Running], now_unix: float, settings: PolicySettings
    ) -> None:
        self._capacity = capacity
        self._now = now_unix
        self._settings = settings
        self._releases: list[list[tuple[float, int]]] = [[] for _ in capacity.nodes]
        self._holds: dict[int, list[_Hold]] = {}
        self.reservations: list[Reservation] = []
        for job in running:
            end = end_of_running(job.ask, job.is_leaving, now_unix, settings)
            for i, units in self._held_by(job):
                self._releases[i].append((end, units))
        for releases in self._releases:
            if len(releases) > 1:
                releases.sort()

    def started(self, ask: Ask, nodes: Iterable[int]) -> None:
        end = self._now + length_seconds(ask)
        for i in nodes:
            self._releases[i].append((end, taken_units(ask, self._capacity.nodes[i], ask.gpus_per_node)))
            self._releases[i].sort()

    def leaves(self, job: Running) -> None:
        """It was warned just now: what it has comes free soon, and no longer at its end."""
        before = end_of_running(job.ask, False, self._now, self._settings)
        after = end_of_running(job.ask, True, self._now, self._settings)
        for i, units in self._held_by(job):
            self._releases[i].remove((before, units))
            self._releases[i].append((after, units))
            self._releases[i].sort()

    def usable(self, ask: Ask) -> Usable | None:
        """What ``ask`` may have of a node if it starts now; None: all that is free, for nothing is reserved."""
        if not self._holds:
            return None
        now, end = self._now, self._now + length_seconds(ask)
        free = self._capacity.free_units
        holds = self._holds
        return lambda i: self.least_free(i, now, end) if i in holds else free[i]

    def holders(self, shape: Shape) -> list[Reservation]:
        """Whose nodes a job of that shape could use."""
        suitable = set(self._capacity.suitable(shape))
        return [reservation for reservation in self.reservations if not suitable.isdisjoint(reservation.nodes)]

    def least_free(self, i: int, start: float, end: float) -> int:
        """The least that is free on node ``i`` at any time between: right then, or where something reserved begins."""
        free = self._free_at(i, start)
        for hold in self._holds.get(i, ()):
            if start < hold.start < end:
                free = min(free, self._free_at(i, hold.start))
        return free

    def reserve(self, ask: Ask, shape: Shape, is_overdue: bool = False) -> Reservation:
        """As early as all that is reserved already allows, on nodes that are open; there must be enough of them.

        Of the nodes that are ready in time it takes those that are ready first, and of these the emptiest: the choice
        stays the same while they drain, so the job gets there.

        An overdue job that nobody knows a time for gets its nodes drained from now on. Else jobs that tell their length
        could go on being let through there, each in time for the end of the world.
        """
        length = length_seconds(ask)
        ready: list[tuple[float, int, int]] = []
        for i in self._capacity.suitable(shape):
            at = self._ready(i, self._capacity.need_units(shape, i), self._now, length)
            ready.append((at, -self._capacity.free_units[i], i))
        while True:
            ready.sort()
            start = ready[shape.nodes - 1][0]
            # A node that was ready earlier may be reserved for somebody by then: it is ready only later.
            late = [
                at
                for at, entry in enumerate(ready)
                if entry[0] < start
                and entry[2] in self._holds
                and self.least_free(entry[2], start, start + length) < self._capacity.need_units(shape, entry[2])
            ]
            if not late:
                break
            for at in late:
                _, free, i = ready[at]
                ready[at] = (self._ready(i, self._capacity.need_units(shape, i), start, length), free, i)
        nodes = tuple(i for _, _, i in ready[: shape.nodes])
        from_unix = self._now if is_overdue and start >= FOREVER_SECONDS else start
        for i in nodes:
            hold = _Hold(from_unix, start + length, self._capacity.need_units(shape, i))
            self._holds.setdefault(i, []).append(hold)
        reservation = Reservation(ask.id, ask.name, start, nodes)
        self.reservations.append(reservation)
        return reservation

    def _ready(self, i: int, need: int, after: float, length: float) -> float:
        """From when on node ``i`` has ``need`` for so long."""
        if i not in self._holds:
            free = self._capacity.free_units[i]
            at = after
            for end, units in self._releases[i]:
                if free >= need:
                    break
                free += units
                at = max(after, end)
            return at if free >= need else 2 * FOREVER_SECONDS
        points = {after}
        points.update(end for end, _ in self._releases[i] if end > after)
        points.update(hold.end for hold in self._holds[i] if hold.end > after)
        for at in sorted(points):
            if self.least_free(i, at, at + length) >= need:
                return at
        return 2 * FOREVER_SECONDS

    def _free_at(self, i: int, at: float) -> int:
        free = self._capacity.free_units[i]
        for end, units in self._releases[i]:
            if end > at:
                break
            free += units
        for hold in self._holds.get(i, ()):
            if hold.start <= at < hold.end:
                free -= hold.units
        return free

    def _held_by(self, job: Running) -> Sequence[tuple[int, int]]:
        index, nodes = self._capacity.index, self._capacity.nodes
        return [
            (index[name], taken_units(job.ask, nodes[index[name]], len(gpus)))
            for name, gpus in job.placement.items()
            if name in index
        ]


def end_of_running(ask: Ask, is_leaving: bool, now_unix: float, settings: PolicySettings) -> float:
    if is_leaving:
        return now_unix + min(settings.leaving_seconds, length_seconds(ask))
    # Absolute: before the end of any job of unknown length that starts now.
    return FOREVER_SECONDS if ask.left_seconds is None else now_unix + length_seconds(ask)


def length_seconds(ask: Ask) -> float:
    return FOREVER_SECONDS if ask.left_seconds is None else max(_OVERDUE_SECONDS, ask.left_seconds)
