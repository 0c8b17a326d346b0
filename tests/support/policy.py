"""Views to decide on, what must hold of every decision, and a tiny cluster that carries decisions out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.priority import idle_points, order_of
from sdrs_scheduler.policy.settings import DEFAULTS, PolicySettings
from sdrs_scheduler.policy.view import (
    Ask,
    Decisions,
    Gpus,
    Pending,
    Placement,
    PolicyNode,
    Queue,
    Running,
    View,
)

NOW = 1_000_000.0


def an_ask(name: str, gpus: int = 1, nodes: int = 1, **facts: Any) -> Ask:
    given: dict[str, Any] = {
        "queue": "default",
        "user": "ada",
        "tenant": "",
        "priority": 50,
        "submitted_unix": NOW - 100,
    } | facts
    return Ask(id=f"{name}-id", name=name, nodes=nodes, gpus_per_node=gpus, **given)


def waiting(name: str, gpus: int = 1, nodes: int = 1, *, since: float = 100.0, **facts: Any) -> Pending:
    """``since``: so many seconds ago."""
    own = {key: facts.pop(key) for key in ("eligible_unix", "waits_for", "is_promised") if key in facts}
    facts.setdefault("submitted_unix", NOW - since)
    return Pending(an_ask(name, gpus, nodes, **facts), waiting_since_unix=NOW - since, **own)


def running(name: str, placement: Placement, *, ago: float = 1000.0, **facts: Any) -> Running:
    own = {key: facts.pop(key) for key in ("unsaved_seconds", "is_leaving", "utilization") if key in facts}
    gpus = len(next(iter(placement.values())))
    return Running(an_ask(name, gpus, len(placement), **facts), placement, NOW - ago, **own)


def some_nodes(count: int, gpus: int = 8, **facts: Any) -> list[PolicyNode]:
    return [PolicyNode(f"n{number}", gpus, **facts) for number in range(1, count + 1)]


def a_view(
    nodes: Sequence[PolicyNode],
    pending: Sequence[Pending] = (),
    running: Sequence[Running] = (),
    queues: Sequence[Queue] = (),
    **facts: Any,
) -> View:
    return View(NOW, nodes, pending, running, {queue.name: queue for queue in queues}, **facts)


def all_of(gpus: int = 8) -> Gpus:
    return tuple(range(gpus))


def started(decisions: Decisions) -> list[str]:
    return [start.job_id.removesuffix("-id") for start in decisions.starts]


def preempted(decisions: Decisions) -> list[str]:
    return [preempt.job_id.removesuffix("-id") for preempt in decisions.preempts]


def where(decisions: Decisions, name: str) -> Placement:
    return next(start.placement for start in decisions.starts if start.job_id == f"{name}-id")


def why(decisions: Decisions, name: str) -> tuple[str, str]:
    wait = decisions.waits[f"{name}-id"]
    return wait.reason, wait.sentence


def is_suitable(ask: Ask, node: PolicyNode) -> bool:
    return (
        node.executor == ask.executor
        and node.gpus >= ask.gpus_per_node
        and (not ask.gpu_type or ask.gpu_type == node.gpu_type)
        and (not ask.node_group or ask.node_group in node.groups)
        and node.name not in ask.excluded_nodes
    )


def nodes_with_room(ask: Ask, nodes: Iterable[PolicyNode], held: Iterable[tuple[Ask, Placement]]) -> list[PolicyNode]:
    """Said again, the long way: where a worker of ``ask`` fits next to those who hold something."""
    there: dict[str, list[tuple[Ask, Gpus]]] = defaultdict(list)
    for other, placement in held:
        for name, gpus in placement.items():
            there[name].append((other, gpus))
    found = []
    for node in nodes:
        guests = there[node.name]
        free = node.gpus - sum(len(gpus) for _, gpus in guests)
        shares = not guests if ask.exclusive else not any(other.exclusive for other, _ in guests)
        if node.is_open and is_suitable(ask, node) and shares and free >= ask.gpus_per_node:
            found.append(node)
    return found


def check(view: View, decisions: Decisions, settings: PolicySettings = DEFAULTS) -> None:
    """What holds of every decision whatsoever."""
    _check_starts(view, decisions)
    _check_limits(view, decisions)
    _check_preempts(view, decisions, settings)
    if settings.explain:
        ids = Counter([start.job_id for start in decisions.starts] + list(decisions.waits))
        assert ids == Counter(job.ask.id for job in view.pending), "each either starts, or is told why not"
        assert all(wait.sentence.endswith(".") for wait in decisions.waits.values())


def _check_starts(view: View, decisions: Decisions) -> None:
    nodes = {node.name: node for node in view.nodes}
    pending = {job.ask.id: job for job in view.pending}
    held = [(job.ask, job.placement) for job in view.running]
    for start in decisions.starts:
        job = pending.pop(start.job_id)
        ask = job.ask
        queue = view.queues.get(ask.queue, Queue(ask.queue))
        assert not job.waits_for
        assert job.eligible_unix <= view.now_unix
        assert queue.is_open
        assert len(start.placement) == ask.nodes, "a gang is placed whole"
        room = nodes_with_room(ask, view.nodes, held)
        for name, gpus in start.placement.items():
            assert nodes[name] in room, f"{ask} does not fit on {name}"
            taken = {gpu for _, placement in held for gpu in placement.get(name, ())}
            assert len(set(gpus)) == len(gpus) == ask.gpus_per_node
            assert not taken & set(gpus)
            assert set(gpus) <= set(range(nodes[name].gpus))
        held.append((ask, start.placement))


def held_gpus(asks: Iterable[Ask]) -> Counter[str]:
    held: Counter[str] = Counter()
    for ask in asks:
        held[ask.queue] += ask.nodes * ask.gpus_per_node
    return held


def _check_limits(view: View, decisions: Decisions) -> None:
    ids = {start.job_id for start in decisions.starts}
    fresh = [job.ask for job in view.pending if job.ask.id in ids]
    before = [job.ask for job in view.running]
    held = held_gpus([*before, *fresh])
    for name in {ask.queue for ask in fresh if ask.gpus_per_node}:
        limit = view.queues[name].max_gpus if name in view.queues else None
        assert limit is None or held[name] <= limit, f"queue {name} is beyond its max_gpus"
    quotas = {queue.name: queue.gpus or 0 for queue in view.queues.values()}
    fixed_before = held_gpus(ask for ask in before if not ask.preemptible)
    fixed = held_gpus(ask for ask in [*before, *fresh] if not ask.preemptible)
    promised = sum(queue.gpus or 0 for queue in view.queues.values() if queue.reclaims)
    unpromised = max(0, sum(node.gpus for node in view.nodes) - promised)
    borrowed_before = sum(max(0, gpus - quotas.get(name, 0)) for name, gpus in fixed_before.items())
    borrowed = sum(max(0, gpus - quotas.get(name, 0)) for name, gpus in fixed.items())
    assert borrowed <= max(unpromised, borrowed_before), "what a queue may want back went to who never gives it back"


def _check_preempts(view: View, decisions: Decisions, settings: PolicySettings) -> None:
    order = order_of(settings)
    victims = {job.ask.id: job for job in view.running}
    asks = {job.ask.id: job.ask for job in view.pending}
    ids = {start.job_id for start in decisions.starts}
    fresh = [ask for ask in asks.values() if ask.id in ids]
    staying = held_gpus([*(job.ask for job in view.running if not job.is_leaving), *fresh])
    before = held_gpus(job.ask for job in view.running)
    for preempt in decisions.preempts:
        victim = victims.pop(preempt.job_id)
        ask = asks[preempt.for_job_id]
        assert preempt.for_job_id not in ids, "who starts needs nobody to leave"
        assert victim.ask.preemptible
        assert not victim.is_leaving
        assert view.now_unix - victim.started_unix >= settings.hysteresis_seconds
        theirs = order.importance(victim.ask, view.now_unix)
        if order.is_fair:
            theirs -= idle_points(victim, settings)
        outranks = order.importance(ask, view.now_unix) - theirs >= settings.preemption_margin
        if victim.ask.queue == ask.queue:
            assert outranks
            continue
        own, other = (view.queues.get(name, Queue(name)) for name in (ask.queue, victim.ask.queue))
        gpus = victim.ask.nodes * victim.ask.gpus_per_node
        lent = staying[victim.ask.queue] - (other.gpus or 0)
        staying[victim.ask.queue] -= gpus
        is_within = before[ask.queue] + ask.nodes * ask.gpus_per_node <= (own.gpus or 0)
        if is_within and own.reclaims:
            assert lent > 0, "a queue lost what is its own"
        else:
            assert outranks
            assert lent >= gpus, "a queue lost what is its own"


@dataclass
class TinyCluster:
    """Carries decisions out: jobs start at once; who is warned is gone after ``leave_seconds`` and waits again."""

    nodes: Sequence[PolicyNode]
    queues: Mapping[str, Queue] = field(default_factory=dict)
    settings: PolicySettings = DEFAULTS
    leave_seconds: float = 30.0
    now: float = NOW
    pending: dict[str, Pending] = field(default_factory=dict)
    running: dict[str, Running] = field(default_factory=dict)
    # When each of those that run ends by itself, and how long each runs when it is started.
    ends: dict[str, float] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)
    leaves: dict[str, float] = field(default_factory=dict)
    started_at: dict[str, float] = field(default_factory=dict)
    preempt_count: int = 0

    def submit(self, ask: Ask, length_seconds: float) -> None:
        self.pending[ask.id] = Pending(ask, waiting_since_unix=self.now)
        self.lengths[ask.id] = length_seconds

    def view(self) -> View:
        return View(self.now, self.nodes, tuple(self.pending.values()), tuple(self.running.values()), self.queues)

    def step(self, seconds: float) -> Decisions:
        view = self.view()
        decisions = decide(view, self.settings)
        check(view, decisions, self.settings)
        for start in decisions.starts:
            job = self.pending.pop(start.job_id)
            self.running[start.job_id] = Running(job.ask, start.placement, self.now)
            self.ends[start.job_id] = self.now + self.lengths[start.job_id]
            self.started_at.setdefault(start.job_id, self.now)
        for preempt in decisions.preempts:
            self.preempt_count += 1
            self.running[preempt.job_id] = replace(self.running[preempt.job_id], is_leaving=True)
            self.leaves[preempt.job_id] = self.now + self.leave_seconds
            self.pending[preempt.for_job_id] = replace(self.pending[preempt.for_job_id], is_promised=True)
        self._advance(seconds)
        return decisions

    def _advance(self, seconds: float) -> None:
        self.now += seconds
        for job_id, job in list(self.running.items()):
            if self.ends[job_id] <= self.now:
                del self.running[job_id]
                self.leaves.pop(job_id, None)
            elif job_id in self.leaves and self.leaves[job_id] <= self.now:
                del self.running[job_id], self.leaves[job_id]
                self.pending[job_id] = Pending(job.ask, waiting_since_unix=self.now)
        for job_id, job in self.running.items():
            if job.ask.left_seconds is not None:
                ask = replace(job.ask, left_seconds=max(0.0, self.ends[job_id] - self.now))
                self.running[job_id] = replace(job, ask=ask)


QUEUES = ("default", "research", "prod", "nobody-made-it")


def random_nodes(rng: Random) -> list[PolicyNode]:
    return [
        PolicyNode(
            f"n{number}",
            gpus=rng.choice([2, 4, 4, 8]),
            gpu_type=rng.choice(["A100", "H100"]),
            groups=frozenset(rng.sample(["east", "west"], rng.randint(0, 2))),
            executor=rng.choice(["local", "local", "local", "slurm"]),
            is_open=rng.random() < 0.85,
        )
        for number in range(rng.randint(1, 7))
    ]


def random_queues(rng: Random) -> list[Queue]:
    return [
        Queue(
            name,
            gpus=rng.choice([None, 0, 4, 8, 16]),
            max_gpus=rng.choice([None, None, 6, 12]),
            weight=rng.choice([1.0, 2.0]),
            reclaims=rng.random() < 0.8,
            is_open=rng.random() < 0.9,
        )
        for name in QUEUES[:3]
    ]


def random_ask(rng: Random, number: int, nodes: Sequence[PolicyNode]) -> Ask:
    return Ask(
        id=f"j{number}",
        name=f"job{number}",
        queue=rng.choice(QUEUES),
        user=rng.choice(["ada", "bob"]),
        tenant=rng.choice(["", "lab"]),
        priority=rng.randint(0, 100),
        submitted_unix=NOW - rng.randint(0, 5000),
        nodes=rng.choice([1, 1, 1, 2, 3]),
        gpus_per_node=rng.choice([0, 1, 1, 2, 4, 8]),
        exclusive=rng.random() < 0.15,
        gpu_type=rng.choice(["", "", "", "H100"]),
        node_group=rng.choice(["", "", "", "east"]),
        executor=rng.choice(["local", "local", "local", "slurm"]),
        excluded_nodes=frozenset(node.name for node in nodes if rng.random() < 0.1),
        left_seconds=rng.choice([None, 100.0, 1000.0, 10_000.0]),
        deadline_unix=rng.choice([0.0, 0.0, NOW + 5000.0, NOW + 50_000.0]),
        preemptible=rng.random() < 0.85,
    )


def random_view(rng: Random) -> View:
    nodes = random_nodes(rng)
    held: list[tuple[Ask, Placement]] = []
    runs = []
    for number in range(rng.randint(0, 12)):
        ask = random_ask(rng, number, nodes)
        # Also on nodes that were closed since.
        room = nodes_with_room(ask, [replace(node, is_open=True) for node in nodes], held)
        if len(room) < ask.nodes:
            continue
        placement = {}
        for node in rng.sample(room, ask.nodes):
            taken = {gpu for _, other in held for gpu in other.get(node.name, ())}
            free = [gpu for gpu in range(node.gpus) if gpu not in taken]
            placement[node.name] = tuple(sorted(rng.sample(free, ask.gpus_per_node)))
        held.append((ask, placement))
        runs.append(
            Running(
                ask,
                placement,
                started_unix=NOW - rng.choice([10, 100, 5000]),
                unsaved_seconds=rng.choice([0.0, 60.0, 3000.0]),
                is_leaving=rng.random() < 0.2,
                utilization=rng.choice([None, 0.0, 0.1, 0.9]),
            )
        )
    waits = [
        Pending(
            random_ask(rng, 100 + number, nodes),
            eligible_unix=rng.choice([0.0, 0.0, 0.0, NOW + 60]),
            waits_for=rng.choice([(), (), (), ("prep (running)",)]),
            waiting_since_unix=NOW - rng.randint(0, 200_000),
            is_promised=rng.random() < 0.1,
        )
        for number in range(rng.randint(0, 15))
    ]
    usage = {"ada": rng.choice([0.0, 1e6]), "bob": 1e5}
    return a_view(nodes, waits, runs, random_queues(rng), user_usage=usage, tenant_usage={"lab": 1e5})
