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
    # Node by node, what would come free.
    units: dict[int, int]
    cost: float
    importance: float


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
        choice = _Choice(missing, shape.nodes, missing_gpus, ask.queue)
        if choice.fits():
            return []
        allowed = self._allowed(ask)
        if missing_gpus > 0:
            # The queue's own limit: only its own jobs can make room below it.
            for victim in allowed:
                if choice.missing_gpus() > 0 and victim.job.ask.queue == ask.queue:
                    choice.add(victim)
        self._free_nodes(ask, allowed, choice)
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

    def _allowed(self, ask: Ask) -> list[Victim]:
        """Those whom ``ask`` may preempt, the cheapest first."""
        may_reclaim = self._may_reclaim(ask)
        below = self._order.importance(ask, self._now) - self._settings.preemption_margin
        allowed = []
        for victim in self._victims:
            is_other = victim.job.ask.queue != ask.queue
            may = (self._settings.preemption and victim.importance <= below) or (may_reclaim and is_other)
            if may and victim.job.ask.id not in self._gone and (not is_other or self._gives_back(ask, victim, 0)):
                allowed.append(victim)
        return allowed

    def _gives_back(self, ask: Ask, victim: Victim, given_gpus: int) -> bool:
        """Whether another queue has borrowed what the victim holds, beyond what it gives back already.

        What is its own it would take back. So would it, if a job that only is more important took more from it than it
        has borrowed; a queue that is owed something may do that: nobody can take it back from there.
        """
        borrowed = self._quotas.lent_to(victim.job.ask.queue) - given_gpus
        return borrowed >= (1 if self._may_reclaim(ask) else max(1, gpus_of(victim.job.ask)))

    def _free_nodes(self, ask: Ask, allowed: Sequence[Victim], choice: _Choice) -> None:
        """Nodes by what it costs to clear them; each is looked at again when its turn comes, for what was chosen for
        one node may have cleared another, and what a queue has borrowed is given back only once."""
        by_node: dict[int, list[Victim]] = {}
        for victim in allowed:
            for i in victim.units:
                by_node.setdefault(i, []).append(victim)
        costs = []
        for i, missing in choice.missing.items():
            cleared = self._clear(i, ask, by_node.get(i, ()), choice) if missing > 0 else []
            if cleared is not None:
                costs.append((sum(victim.cost for victim in cleared), len(cleared), i))
        costs.sort()
        for _, _, i in costs:
            if choice.nodes_fit():
                return
            for victim in self._clear(i, ask, by_node.get(i, ()), choice) or ():
                choice.add(victim)

    def _clear(self, i: int, ask: Ask, there: Sequence[Victim], choice: _Choice) -> list[Victim] | None:
        """The cheapest who make room on node ``i``, beyond those chosen already; None: there are not enough."""
        missing = choice.missing_on(i)
        cleared: list[Victim] = []
        given_back: dict[str, int] = {}
        for victim in there:
            if missing <= 0:
                break
            if choice.has(victim):
                continue
            queue = victim.job.ask.queue
            if queue != ask.queue:
                given = given_back.get(queue, 0)
                if not self._gives_back(ask, victim, choice.gpus_from(queue) + given):
                    continue
                given_back[queue] = given + gpus_of(victim.job.ask)
            cleared.append(victim)
            missing -= victim.units[i]
        return cleared if missing <= 0 else None

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
            victims.append(Victim(job, units, self._order.cost(job), importance))
        # Among equals the least important, then who began last.
        victims.sort(key=lambda v: (v.cost, v.importance, -v.job.started_unix, v.job.ask.id))
        return victims


class _Choice:
    """Victims for one job, and what is missing yet with them gone."""

    def __init__(self, missing: dict[int, int], nodes: int, missing_gpus: int, queue: str) -> None:
        self.missing = missing
        self.victims: list[Victim] = []
        self._nodes = nodes
        self._missing_gpus = missing_gpus
        self._queue = queue

    def has(self, victim: Victim) -> bool:
        return victim in self.victims

    def add(self, victim: Victim) -> None:
        self.victims.append(victim)

    def missing_on(self, i: int) -> int:
        return self.missing[i] - sum(victim.units.get(i, 0) for victim in self.victims)

    def gpus_from(self, queue: str) -> int:
        return sum(gpus_of(victim.job.ask) for victim in self.victims if victim.job.ask.queue == queue)

    def missing_gpus(self) -> int:
        return self._missing_gpus - self.gpus_from(self._queue)

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
