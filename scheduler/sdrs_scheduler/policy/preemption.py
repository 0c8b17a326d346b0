"""Who has to make room: as few as possible, the cheapest first, and only if the gang then really fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sdrs_scheduler.policy.backfill import Timeline, length_seconds
from sdrs_scheduler.policy.capacity import Capacity, Shape, taken_units
from sdrs_scheduler.policy.priority import Order, idle_points
from sdrs_scheduler.policy.quotas import Quotas, gpus_of
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Ask, Running, View


@dataclass(frozen=True, slots=True)
class Victim:
    job: Running
    # Node by node, what would come free.
    units: dict[int, int]
    cost: float
    importance: float


class Preemption:
    """The running jobs that could be preempted at all, ranked once; then asked for one blocked job after another."""

    def __init__(self, view: View, capacity: Capacity, quotas: Quotas, order: Order, settings: PolicySettings) -> None:
        self._now = view.now_unix
        self._capacity = capacity
        self._quotas = quotas
        self._order = order
        self._settings = settings
        self._gone: set[str] = set()
        self._victims = self._rank(view.running)
        self._by_node: dict[int, list[Victim]] = defaultdict(list)
        for victim in self._victims:
            for i in victim.units:
                self._by_node[i].append(victim)
        self._least_importance = min((victim.importance for victim in self._victims), default=float("inf"))

    @property
    def is_vain(self) -> bool:
        """Whether nobody could be preempted, whoever asks."""
        return len(self._gone) == len(self._victims)

    def could_help(self, ask: Ask) -> bool:
        """Cheap: whether there is anybody at all whom ``ask`` may preempt."""
        if self.is_vain:
            return False
        return self._outranks(ask, self._least_importance) or self._may_reclaim(ask)

    def find(self, ask: Ask, shape: Shape, timeline: Timeline) -> list[Running] | None:
        """Whom to warn so that ``ask`` fits as a whole; empty: what comes free anyway is enough; None: nobody helps."""
        start = self._now + self._settings.leaving_seconds
        end = start + length_seconds(ask)
        need = {i: self._capacity.need_units(shape, i) for i in self._capacity.suitable(shape)}
        missing = {i: need[i] - timeline.least_free(i, start, end) for i in need}
        missing_gpus = self._quotas.missing_below_limit(ask) - self._quotas.leaving_of(ask.queue)
        choice = _Choice(missing, shape.nodes, missing_gpus, ask.queue)
        if choice.fits():
            return []
        if missing_gpus > 0:
            # The queue's own limit: only its own jobs can make room below it.
            self._free_below_limit(ask, choice)
        self._free_nodes(ask, choice)
        if not choice.fits():
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

    def _free_below_limit(self, ask: Ask, choice: _Choice) -> None:
        for victim in self._victims:
            if choice.missing_gpus() <= 0:
                return
            if victim.job.ask.queue == ask.queue and self._may_preempt(ask, victim, choice):
                choice.add(victim)

    def _free_nodes(self, ask: Ask, choice: _Choice) -> None:
        """Nodes by what it costs to clear them; each is looked at again when its turn comes, for what was chosen for
        one node may have cleared another, and what a queue has borrowed is given back only once."""
        costs = []
        for i in choice.missing:
            cleared = self._clear(i, ask, choice)
            if cleared is not None:
                costs.append((sum(victim.cost for victim in cleared), len(cleared), i))
        costs.sort()
        for _, _, i in costs:
            if choice.nodes_fit():
                return
            for victim in self._clear(i, ask, choice) or ():
                choice.add(victim)

    def _clear(self, i: int, ask: Ask, choice: _Choice) -> list[Victim] | None:
        """The cheapest who make room on node ``i``, beyond those chosen already; None: there are not enough."""
        missing = choice.missing_on(i)
        trial: list[Victim] = []
        for victim in self._by_node.get(i, ()):
            if missing <= 0:
                break
            if not choice.has(victim) and self._may_preempt(ask, victim, choice, trial):
                trial.append(victim)
                missing -= victim.units[i]
        return trial if missing <= 0 else None

    def _may_preempt(self, ask: Ask, victim: Victim, choice: _Choice, trial: Sequence[Victim] = ()) -> bool:
        if victim.job.ask.id in self._gone:
            return False
        if victim.job.ask.queue == ask.queue:
            return self._outranks(ask, victim.importance)
        # Another queue gives back what it has borrowed, and nothing of what is its own: it would take that back.
        given_back = sum(
            gpus_of(other.job.ask) for other in (*choice.victims, *trial) if other.job.ask.queue == victim.job.ask.queue
        )
        if self._quotas.lent_to(victim.job.ask.queue) - given_back <= 0:
            return False
        return self._may_reclaim(ask) or self._outranks(ask, victim.importance)

    def _may_reclaim(self, ask: Ask) -> bool:
        return self._settings.reclaim and self._quotas.queue(ask.queue).reclaims and self._quotas.is_within(ask)

    def _outranks(self, ask: Ask, importance: float) -> bool:
        return (
            self._settings.preemption
            and self._order.importance(ask, self._now) - importance >= self._settings.preemption_margin
        )

    def _rank(self, running: Iterable[Running]) -> list[Victim]:
        settings = self._settings
        if not (settings.preemption or settings.reclaim):
            return []
        index, nodes = self._capacity.index, self._capacity.nodes
        victims = []
        for job in running:
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
        self._chosen: set[str] = set()

    def has(self, victim: Victim) -> bool:
        return victim.job.ask.id in self._chosen

    def add(self, victim: Victim) -> None:
        self.victims.append(victim)
        self._chosen.add(victim.job.ask.id)

    def missing_on(self, i: int) -> int:
        return self.missing[i] - sum(victim.units.get(i, 0) for victim in self.victims)

    def missing_gpus(self) -> int:
        return self._missing_gpus - sum(
            gpus_of(victim.job.ask) for victim in self.victims if victim.job.ask.queue == self._queue
        )

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
            self.victims.remove(victim)
            if self.fits():
                self._chosen.discard(victim.job.ask.id)
            else:
                self.victims.append(victim)
