"""Which jobs start now, and where; who makes room; why the others wait.

One walk along the line of those who could start. Each job starts if it fits, as a whole, without delaying anybody
ahead of it; if not, it looks for others to preempt, gets a reservation, and the walk goes on behind it. Nothing is ever
held for a job but by reservations, which are made anew in each decision: two gangs cannot hold half of each other's
nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from sdrs_scheduler.policy import waits
from sdrs_scheduler.policy.backfill import Reservation, Timeline, end_of_running, length_seconds
from sdrs_scheduler.policy.capacity import Capacity, Shape, shape_of
from sdrs_scheduler.policy.line import in_order
from sdrs_scheduler.policy.placement import place
from sdrs_scheduler.policy.preemption import Preemption
from sdrs_scheduler.policy.priority import is_overdue, order_of
from sdrs_scheduler.policy.quotas import LimitHold, Quotas, gpus_of
from sdrs_scheduler.policy.settings import DEFAULTS, PolicySettings
from sdrs_scheduler.policy.view import Ask, Decisions, Pending, Preempt, Running, Start, View, Wait


def decide(view: View, settings: PolicySettings = DEFAULTS) -> Decisions:
    return _Round(view, settings).decide()


class _Round:
    def __init__(self, view: View, settings: PolicySettings) -> None:
        self._view = view
        self._settings = settings
        self._now = view.now_unix
        self._order = order_of(settings)
        self._capacity = Capacity(view.nodes, view.running)
        self._quotas = Quotas(view, settings)
        self._preemption = Preemption(view, self._capacity, self._quotas, self._order, settings)
        # Those who have been warned, before or now.
        self._leaving = {job.ask.id: job for job in view.running if job.is_leaving}
        self._started: list[Ask] = []
        self._starts: list[Start] = []
        self._preempts: list[Preempt] = []
        self._waits: dict[str, Wait] = {}
        # Made when somebody could be in the way of a job that is blocked: many decisions need none. Until then those
        # who are to get a reservation are noted here.
        self._timeline: Timeline | None = None
        self._unreserved: list[tuple[Pending, Shape]] = []
        self._limit_holds: dict[str, LimitHold] = {}
        self._is_fixed_job_waiting = False
        # Shapes that fit nowhere now: what is free only shrinks during the walk.
        self._full: set[Shape] = set()
        self._ahead: list[Ask] = []
        self._looked_behind = 0
        self._searches = 0

    def decide(self) -> Decisions:
        eligible = [job for job in self._view.pending if self._is_eligible(job)]
        needs_gpus = all(job.ask.gpus_per_node for job in eligible)
        if self._is_over(needs_gpus):
            return Decisions()  # before they are sorted
        for job in in_order(eligible, self._now, self._order, self._quotas, self._settings):
            if not self._is_over(needs_gpus):
                self._consider(job)
            elif self._settings.explain:
                self._waits[job.ask.id] = waits.behind(self._ahead)
            else:
                break
        return Decisions(tuple(self._starts), tuple(self._preempts), self._waits)

    def _is_eligible(self, job: Pending) -> bool:
        if job.waits_for:
            wait = waits.dependency
        elif job.eligible_unix > self._now:
            wait = waits.backoff
        elif not self._quotas.queue(job.ask.queue).is_open:
            wait = waits.queue_closed
        else:
            return True
        if self._settings.explain:
            self._waits[job.ask.id] = wait(job, self._now)
        return False

    def _is_over(self, needs_gpus: bool) -> bool:
        """Whether looking further along the line is in vain, or too much."""
        if self._ahead and self._looked_behind >= self._settings.backfill_depth:
            return True
        # To explain, all within the depth are looked at: what is missing is better to know than who is ahead.
        if self._settings.explain or self._capacity.free_gpus or not needs_gpus:
            return False
        return self._searches >= self._settings.preemption_depth or self._preemption.is_vain

    def _consider(self, job: Pending) -> None:
        ask = job.ask
        if self._ahead:
            self._looked_behind += 1
        if self._quotas.missing_below_limit(ask):
            self._block_below_limit(job)
            return
        hold = self._limit_holds.get(ask.queue)
        end_unix = self._now + length_seconds(ask)
        if hold is not None and not hold.lets(ask, end_unix):
            self._explain(ask, lambda: waits.behind_in_queue(ask, hold.first))
            return
        if not self._quotas.may_be_lent(ask) or (self._is_fixed_job_waiting and self._borrows_for_good(ask)):
            self._is_fixed_job_waiting = True
            self._explain(ask, lambda: waits.not_lent(ask, self._quotas))
            return
        shape = shape_of(ask)
        chosen = None if shape in self._full else place(self._capacity, shape)
        if chosen is None:
            self._full.add(shape)
        elif self._timeline or self._unreserved:
            chosen = place(self._capacity, shape, self._timeline_now().usable(ask))
        if chosen is None:
            self._block(job, shape)
            return
        self._starts.append(Start(ask.id, self._capacity.take(ask, chosen)))
        self._started.append(ask)
        self._quotas.start(ask)
        if self._timeline:
            self._timeline.started(ask, chosen)
        if hold is not None:
            hold.started(ask, end_unix)

    def _borrows_for_good(self, ask: Ask) -> bool:
        return not ask.preemptible and not self._quotas.is_within(ask)

    def _block(self, job: Pending, shape: Shape) -> None:
        ask = job.ask
        if len(self._capacity.suitable(shape)) < shape.nodes:
            # It waits for nodes to be opened or added, so it holds up nobody.
            self._explain(ask, lambda: waits.no_such_nodes(shape, self._capacity))
            return
        holders = self._timeline_now().holders(shape) if self._settings.explain else []
        is_making_room = self._make_room(job, shape)
        reservation = self._reserve(job, shape, is_forced=is_making_room)
        if reservation is not None:
            self._keep_below_limit(ask, reservation)
        leaving = self._leaving_from(reservation)
        if leaving and (is_making_room or job.is_promised):
            self._explain(ask, lambda: waits.preempting(leaving, reservation, self._now))
        elif shape in self._full:
            ahead = tuple(self._ahead)
            self._explain(ask, lambda: waits.capacity_short(shape, self._capacity, ahead, reservation, self._now))
        else:
            self._explain(ask, lambda: waits.reserved(ask, shape, holders, reservation, self._now))
        self._ahead.append(ask)

    def _block_below_limit(self, job: Pending) -> None:
        ask, queue = job.ask, self._quotas.queue(job.ask.queue)
        if queue.max_gpus is not None and gpus_of(ask) > queue.max_gpus:
            self._explain(ask, lambda: waits.beyond_limit(ask, queue))
            return
        shape = shape_of(ask)
        wait = waits.limit(ask, self._quotas) if self._settings.explain else None
        if len(self._capacity.suitable(shape)) >= shape.nodes and self._make_room(job, shape):
            reservation = self._reserve(job, shape, is_forced=True)
            leaving = self._leaving_from(reservation)
            if leaving:
                wait = waits.preempting(leaving, reservation, self._now)
        if ask.queue not in self._limit_holds:
            self._limit_holds[ask.queue] = self._quotas.hold_below_limit(ask, self._ends_in(ask.queue))
        if wait is not None:
            self._explain(ask, lambda: wait)

    def _keep_below_limit(self, ask: Ask, reservation: Reservation) -> None:
        """Nodes that are reserved are of no use if others of the queue use up what it may have."""
        limit = self._quotas.queue(ask.queue).max_gpus
        hold = self._limit_holds.get(ask.queue)
        if hold is not None:
            hold.started(ask, reservation.start_unix + length_seconds(ask))
        elif limit is not None:
            spare_gpus = limit - self._quotas.used(ask.queue) - gpus_of(ask)
            self._limit_holds[ask.queue] = LimitHold(ask, reservation.start_unix, spare_gpus)

    def _make_room(self, job: Pending, shape: Shape) -> bool:
        """Warns others if that helps; whether room is made now, by them or by those who leave already."""
        ask = job.ask
        if self._searches >= self._settings.preemption_depth or not self._preemption.could_help(ask, shape):
            return job.is_promised
        self._searches += 1
        timeline = self._timeline_now()
        victims = self._preemption.find(ask, shape, timeline)
        if victims is None:
            return False
        for victim in victims:
            self._preempts.append(Preempt(victim.ask.id, ask.id, self._preemption.because(ask, victim)))
        for victim in victims:
            timeline.leaves(victim)
            self._quotas.leave(victim.ask)
            self._leaving[victim.ask.id] = victim
        return True

    def _reserve(self, job: Pending, shape: Shape, is_forced: bool) -> Reservation | None:
        """None: it gets none, or nobody needs to know of it yet."""
        made = len(self._timeline.reservations) if self._timeline else 0
        if not is_forced and made + len(self._unreserved) >= self._settings.reservations_max:
            return None
        if is_forced or self._settings.explain or self._quotas.queue(job.ask.queue).max_gpus is not None:
            return self._timeline_now().reserve(job.ask, shape, is_overdue(job, self._now, self._settings))
        self._unreserved.append((job, shape))
        return None

    def _leaving_from(self, reservation: Reservation | None) -> list[Running]:
        """Who is on its way out of the nodes that are reserved."""
        if reservation is None:
            return []
        names = {self._capacity.nodes[i].name for i in reservation.nodes}
        return [job for job in self._leaving.values() if not names.isdisjoint(job.placement)]

    def _ends_in(self, queue: str) -> list[tuple[float, int]]:
        ends = [
            (end_of_running(job.ask, job.ask.id in self._leaving, self._now, self._settings), gpus_of(job.ask))
            for job in self._view.running
            if job.ask.queue == queue
        ]
        ends += [(self._now + length_seconds(ask), gpus_of(ask)) for ask in self._started if ask.queue == queue]
        return ends

    def _timeline_now(self) -> Timeline:
        if self._timeline is None:
            self._timeline = Timeline(self._capacity, self._view.running, self._now, self._settings)
            for ask, start in zip(self._started, self._starts, strict=True):
                self._timeline.started(ask, [self._capacity.index[name] for name in start.placement])
        for job, shape in self._unreserved:
            self._timeline.reserve(job.ask, shape, is_overdue(job, self._now, self._settings))
        self._unreserved.clear()
        return self._timeline

    def _explain(self, ask: Ask, wait: Callable[[], Wait]) -> None:
        if self._settings.explain:
            self._waits[ask.id] = wait()
