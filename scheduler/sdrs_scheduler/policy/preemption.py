"""Who has to make room: as few as possible, the cheapest first, and only if the gang then really fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sdrs_scheduler.policy.backfill import Timeline, length_seconds
from sdrs_scheduler.policy.capacity import Capacity, Shape, taken_units
from sdrs_scheduler.policy.priority import Order, idle_points
from sdrs_scheduler.policy.quotas import Quotas, gpus_of
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Ask, Running, View


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    job: Running
    queue: str
    gpus: int
    # Node by node, what would come free.
    units: dict[int, int]
    cost: float
    importance: float


@dataclass(frozen=True, slots=True)
class _Rights:
    """Whom one job may preempt."""

    queue: str
    # Who is at most as important as this.
    below: float
    # Whether its queue is owed something, and wants it back.
    reclaims: bool
    # Queue by queue, what it has borrowed.
    lent: dict[str, int]

    def allow(self, victim: Victim, given_gpus: int = 0) -> bool:
        """``given_gpus``: what the victim's queue gives back already.

        Another queue gives back only what it has borrowed: what is its own it would take back. It would so, too, if a
        job that only is more important took more than was borrowed. A queue that is owed something may do that: nobody
        can take it back from there.
        """
        if victim.queue == self.queue:
            return victim.importance <= self.below
        borrowed = self.lent[victim.queue] - given_gpus
        if self.reclaims:
            return borrowed > 0
        return victim.importance <= self.below and borrowed >= max(1, victim.gpus)


class Preemption:
    """The running jobs that could be preempted: ranked when first needed, asked for one blocked job at a time."""

    def __init__(self, view: View, capacity: Capacity, quotas: Quotas, order: Order, settings: PolicySettings) -> None:
        self._now = view.now_unix
        self._capacity = capacity
        self._quotas = quotas
        self._order = order
        self._settings = settings
        self._gone: set[str] = set()
        self._running = view.running
        # Whom nobody could help, by what they asked for: importance and length. What could help only gets less.
        self._helpless: dict[tuple[Shape, str], tuple[float, float]] = {}

    @property
    def is_vain(self) -> bool:
        """Whether nobody could be preempted, whoever asks."""
        return len(self._gone) == len(self._victims)

    def could_help(self, ask: Ask, shape: Shape) -> bool:
        """Cheap: whether it is worth looking for somebody whom ``ask`` may preempt."""
        if self.is_vain or not (self._outranks(ask, self._least_importance) or self._may_reclaim(ask)):
            return False
        importance, length = self._helpless.get((shape, ask.queue), (float("-inf"), 0.0))
        return self._order.importance(ask, self._now) > importance or length_seconds(ask) < length

    def find(self, ask: Ask, shape: Shape, timeline: Timeline) -> list[Running] | None:
        """Whom to warn so that ``ask`` fits as a whole; empty: what comes free anyway is enough; None: nobody helps."""
        start = self._now + self._settings.leaving_seconds
        end = start + length_seconds(ask)
        missing = {
            i: self._capacity.need_units(shape, i) - timeline.least_free(i, start, end)
            for i in self._capacity.suitable(shape)
        }
        missing_gpus = self._quotas.missing_below_limit(ask) - self._quotas.leaving_of(ask.queue)
        choice = _Choice(missing, shape.nodes, missing_gpus, self._rights(ask))
        if choice.fits():
            return []
        allowed = [v for v in self._victims if v.job.ask.id not in self._gone and choice.rights.allow(v)]
        if missing_gpus > 0:
            # The queue's own limit: only its own jobs can make room below it.
            for victim in allowed:
                if choice.missing_gpus() > 0 and victim.queue == ask.queue:
                    choice.add(victim)
        _free_nodes(allowed, choice)
        if not choice.fits():
            self._helpless[shape, ask.queue] = (self._order.importance(ask, self._now), length_seconds(ask))
            return None
        choice.drop_needless()
        self._gone.update(victim.job.ask.id for victim in choice.victims)
        return [victim.job for victim in choice.victims]

    def because(self, ask: Ask, victim: Running) -> str:
        """For the story of the victim: complete after "preempted: "."""
        own, gpus = victim.ask, gpus_of(ask)
        if ask.queue != own.queue and self._may_reclaim(ask):
            why = f"queue {ask.queue} takes back what it lent to queue {own.queue}: {ask.name} needs {gpus} GPUs"
        elif not self._order.is_fair:
            why = f"{ask.name} needs {gpus} GPUs and has less left to do"
        elif ask.priority > own.priority:
            why = f"{ask.name} (priority {ask.priority}, this job {own.priority}) needs {gpus} GPUs"
        else:
            why = f"{ask.name} needs {gpus} GPUs and is more urgent"
        if victim.utilization is not None and victim.utilization < self._settings.idle_utilization:
            why += f"; this job uses its GPUs to {victim.utilization:.0%} only"
        return f"{why}; {gpus_of(own) * victim.unsaved_seconds:.0f} GPU-seconds are not saved yet"

    def _rights(self, ask: Ask) -> _Rights:
        below = self._order.importance(ask, self._now) - self._settings.preemption_margin
        return _Rights(
            ask.queue,
            below if self._settings.preemption else float("-inf"),
            self._may_reclaim(ask),
            {queue: self._quotas.lent_to(queue) for queue in {victim.queue for victim in self._victims}},
        )

    def _may_reclaim(self, ask: Ask) -> bool:
        return self._settings.reclaim and self._quotas.queue(ask.queue).reclaims and self._quotas.is_within(ask)

    def _outranks(self, ask: Ask, importance: float) -> bool:
        return (
            self._settings.preemption
            and self._order.importance(ask, self._now) - importance >= self._settings.preemption_margin
        )

    @cached_property
    def _least_importance(self) -> float:
        return min((victim.importance for victim in self._victims), default=float("inf"))

    @cached_property
    def _victims(self) -> list[Victim]:
        settings = self._settings
        if not (settings.preemption or settings.reclaim):
            return []
        index, nodes = self._capacity.index, self._capacity.nodes
        victims = []
        for job in self._running:
            # One that just began is left alone, or jobs would take turns and none would get anywhere.
            is_fresh = self._now - job.started_unix < settings.hysteresis_seconds
            if job.is_leaving or is_fresh or not job.ask.preemptible:
                continue
            units = {
                index[name]: taken_units(job.ask, nodes[index[name]], len(gpus))
                for name, gpus in job.placement.items()
                if name in index
            }
            importance = self._order.importance(job.ask, self._now)
            if self._order.is_fair:
                importance -= idle_points(job, settings)
            victims.append(Victim(job, job.ask.queue, gpus_of(job.ask), units, self._order.cost(job), importance))
        # Among equals the least important, then who began last.
        victims.sort(key=lambda v: (v.cost, v.importance, -v.job.started_unix, v.job.ask.id))
        return victims


class _Choice:
    """Victims for one job, and what is missing yet with them gone."""

    def __init__(self, missing: dict[int, int], nodes: int, missing_gpus: int, rights: _Rights) -> None:
        self.missing = missing
        self.rights = rights
        self.victims: list[Victim] = []
        self._nodes = nodes
        self._missing_gpus = missing_gpus

    def has(self, victim: Victim) -> bool:
        return victim in self.victims

    def add(self, victim: Victim) -> None:
        self.victims.append(victim)

    def missing_on(self, i: int) -> int:
        return self.missing[i] - sum(victim.units.get(i, 0) for victim in self.victims)

    def gpus_from(self, queue: str) -> int:
        return sum(victim.gpus for victim in self.victims if victim.queue == queue)

    def missing_gpus(self) -> int:
        return self._missing_gpus - self.gpus_from(self.rights.queue)

    def nodes_fit(self) -> bool:
        freed: dict[int, int] = defaultdict(int)
        for victim in self.victims:
            for i, units in victim.units.items():
                freed[i] += units
        return sum(missing <= freed.get(i, 0) for i, missing in self.missing.items()) >= self._nodes

    def fits(self) -> bool:
        return self.missing_gpus() <= 0 and self.nodes_fit()

    def drop_needless(self) -> None:
        """The dearest first. What remains is needed to the last."""
        for victim in sorted(self.victims, key=lambda v: (-v.cost, v.job.ask.id)):
            at = self.victims.index(victim)
            self.victims.pop(at)
            if not self.fits():
                self.victims.insert(at, victim)


def _free_nodes(allowed: Sequence[Victim], choice: _Choice) -> None:
    """Nodes by what it costs to clear them; each is looked at again when its turn comes, for what was chosen for one
    node may have cleared another, and what a queue has borrowed is given back only once."""
    by_node: dict[int, list[Victim]] = {}
    for victim in allowed:
        for i in victim.units:
            by_node.setdefault(i, []).append(victim)
    costs = []
    for i, there in by_node.items():
        if choice.missing.get(i, 0) > 0 and (cleared := _clear(i, there, choice)) is not None:
            costs.append((sum(victim.cost for victim in cleared), len(cleared), i))
    costs.sort()
    for _, _, i in costs:
        if choice.nodes_fit():
            return
        for victim in _clear(i, by_node[i], choice) or ():
            choice.add(victim)


def _clear(i: int, there: Sequence[Victim], choice: _Choice) -> list[Victim] | None:
    """The cheapest who make room on node ``i``, beyond those chosen already; None: there are not enough."""
    missing = choice.missing_on(i)
    cleared: list[Victim] = []
    for victim in there:
        if missing <= 0:
            break
        given_gpus = choice.gpus_from(victim.queue) + sum(v.gpus for v in cleared if v.queue == victim.queue)
        if not choice.has(victim) and choice.rights.allow(victim, given_gpus):
            cleared.append(victim)
            missing -= victim.units[i]
    return cleared if missing <= 0 else None
