"""What queues may have, what they lend to each other, and what users and tenants have had."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Ask, Queue, View


def gpus_of(ask: Ask) -> int:
    """What a job is charged. A node for itself costs what was asked for, not what the node has."""
    return ask.nodes * ask.gpus_per_node


@dataclass(slots=True)
class LimitHold:
    """Room below a queue's ``max_gpus``, kept for the first of its jobs that waits for it."""

    first: Ask
    start_unix: float
    spare_gpus: int

    def lets(self, ask: Ask, end_unix: float) -> bool:
        return end_unix <= self.start_unix or gpus_of(ask) <= self.spare_gpus

    def started(self, ask: Ask, end_unix: float) -> None:
        if end_unix > self.start_unix:
            self.spare_gpus -= gpus_of(ask)


class Quotas:
    """Who holds how much, counted once from the view, then kept as jobs are started and warned.

    While a decision is made holdings only grow: whoever was beyond a limit stays beyond it.
    """

    def __init__(self, view: View, settings: PolicySettings) -> None:
        self._settings = settings
        self._queues = dict(view.queues)
        self._used: dict[str, int] = defaultdict(int)
        self._leaving: dict[str, int] = defaultdict(int)
        # Of jobs that nobody can preempt.
        self._fixed: dict[str, int] = defaultdict(int)
        self._users: dict[str, int] = defaultdict(int)
        self._tenants: dict[str, int] = defaultdict(int)
        for job in view.running:
            self.start(job.ask)
            if job.is_leaving:
                self.leave(job.ask)
        self.gpus = sum(node.gpus for node in view.nodes)
        promised = sum(queue.gpus or 0 for queue in self._queues.values() if queue.reclaims)
        self._unpromised = max(0, self.gpus - promised)
        horizon_gpu_seconds = self.gpus * settings.share_horizon_seconds
        self._user_total = (sum(view.user_usage.values()) + horizon_gpu_seconds) or 1.0
        self._tenant_total = (sum(view.tenant_usage.values()) + horizon_gpu_seconds) or 1.0
        self._user_usage = view.user_usage
        self._tenant_usage = view.tenant_usage

    def queue(self, name: str) -> Queue:
        found = self._queues.get(name)
        if found is None:
            # A queue that was removed while its jobs wait, or one that nobody made: it lives on what is idle.
            found = self._queues[name] = Queue(name)
        return found

    def used(self, queue: str) -> int:
        return self._used.get(queue, 0)

    def quota(self, queue: str) -> int:
        return self.queue(queue).gpus or 0

    def start(self, ask: Ask) -> None:
        gpus = gpus_of(ask)
        self._used[ask.queue] += gpus
        if not ask.preemptible:
            self._fixed[ask.queue] += gpus
        self._users[ask.user] += gpus
        self._tenants[ask.tenant] += gpus

    def leave(self, ask: Ask) -> None:
        """It was warned: it still holds what it has, but no longer counts as somebody who could give it back."""
        self._leaving[ask.queue] += gpus_of(ask)

    def is_within(self, ask: Ask) -> bool:
        """Whether its queue stays within its quota with it: then it borrows nothing."""
        quota = self.queue(ask.queue).gpus
        return quota is not None and self.used(ask.queue) + gpus_of(ask) <= quota

    def lent_to(self, queue: str) -> int:
        """What it has beyond its quota, and is not about to give back already."""
        return self.used(queue) - self._leaving.get(queue, 0) - self.quota(queue)

    def leaving_of(self, queue: str) -> int:
        return self._leaving.get(queue, 0)

    def missing_below_limit(self, ask: Ask) -> int:
        """How many GPUs its queue must give up first, to stay within its ``max_gpus``."""
        limit = self.queue(ask.queue).max_gpus
        return 0 if limit is None else max(0, self.used(ask.queue) + gpus_of(ask) - limit)

    def may_be_lent(self, ask: Ask) -> bool:
        """A job that nobody can preempt never gets what some queue could want back."""
        if ask.preemptible or self.is_within(ask):
            return True
        fixed = dict(self._fixed)
        fixed[ask.queue] = fixed.get(ask.queue, 0) + gpus_of(ask)
        return self._beyond_quotas(fixed) <= self._unpromised

    def hold_below_limit(self, ask: Ask, ends: Iterable[tuple[float, int]]) -> LimitHold:
        """``ends``: when what its queue holds comes free, and how much. Only for a job with something missing."""
        missing = self.missing_below_limit(ask)
        for start_unix, group in groupby(sorted(ends), key=itemgetter(0)):
            missing -= sum(gpus for _, gpus in group)
            if missing <= 0:
                return LimitHold(ask, start_unix, -missing)
        raise AssertionError("a job that fits below the limit at all fits when all others have ended")

    @property
    def unpromised(self) -> int:
        return self._unpromised

    def share_points(self, queue: str, user: str, tenant: str) -> float:
        """What jobs of these lose because of what their queue has borrowed and what their owners had and have."""
        settings = self._settings
        points = 0.0
        if settings.queue_share_points and self.gpus:
            borrowed = max(0, self.used(queue) - self.quota(queue))
            points += settings.queue_share_points * borrowed / (max(self.queue(queue).weight, 1e-6) * self.gpus)
        horizon = settings.share_horizon_seconds
        user_had = self._user_usage.get(user, 0.0) + self._users.get(user, 0) * horizon
        tenant_had = self._tenant_usage.get(tenant, 0.0) + self._tenants.get(tenant, 0) * horizon
        points += settings.user_share_points * user_had / self._user_total
        points += settings.tenant_share_points * tenant_had / self._tenant_total
        return points

    def _beyond_quotas(self, held: Mapping[str, int]) -> int:
        return sum(max(0, gpus - self.quota(queue)) for queue, gpus in held.items())
