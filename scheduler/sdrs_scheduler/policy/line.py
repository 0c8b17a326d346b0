"""The line in which jobs wait: who is next, also after those before have been started."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from sdrs_scheduler.policy.priority import Order, aging_points, is_overdue
from sdrs_scheduler.policy.quotas import Quotas
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Pending

_WITHIN_QUOTA, _BORROWING = range(2)

# Points (less is first), since when, id: unique, so that the job itself is never compared.
_Entry = tuple[float, float, str, Pending]
_Flow = tuple[str, str, str, bool]


def in_order(
    jobs: Iterable[Pending], now_unix: float, order: Order, quotas: Quotas, settings: PolicySettings
) -> Iterator[Pending]:
    """Yields the next job each time; shares and quotas are those at that moment.

    Jobs of the same queue, user and tenant lose the same points for shares, so they are sorted once, and only the
    heads of such flows compete. Points are only ever lost while a decision is made (see Quotas): a head that still
    has what it was put into the heap with is the first of all.
    """
    if not order.is_fair:
        yield from _unfair(jobs, now_unix, order)
        return
    promised: list[_Entry] = []
    flows: dict[_Flow, list[_Entry]] = {}
    importance = order.importance
    for job in jobs:
        ask = job.ask
        points = importance(ask, now_unix) + aging_points(job, now_unix, settings)
        entry = (-points, ask.submitted_unix, ask.id, job)
        if job.is_promised:
            promised.append(entry)
        else:
            # Who fits into the quota does not stand behind one of its queue who does not.
            flow = (ask.queue, ask.user, ask.tenant, quotas.is_within(ask))
            flows.setdefault(flow, []).append(entry)
    for entry in sorted(promised):
        yield entry[3]

    def standing(flow: _Flow, entry: _Entry) -> tuple[int, float, float, str]:
        job = entry[3]
        is_first = quotas.is_within(job.ask) or is_overdue(job, now_unix, settings)
        tier = _WITHIN_QUOTA if is_first else _BORROWING
        return (tier, entry[0] + quotas.share_points(*flow[:3]), entry[1], entry[2])

    heap: list[tuple[tuple[int, float, float, str], _Flow]] = []
    for flow, entries in flows.items():
        entries.sort(reverse=True)  # the first is popped from the end
        heap.append((standing(flow, entries[-1]), flow))
    heapq.heapify(heap)
    while heap:
        stood, flow = heap[0]
        entries = flows[flow]
        stands = standing(flow, entries[-1])
        if stands > stood:
            heapq.heapreplace(heap, (stands, flow))
            continue
        job = entries.pop()[3]
        yield job
        if entries:
            heapq.heapreplace(heap, (standing(flow, entries[-1]), flow))
        else:
            heapq.heappop(heap)


def _unfair(jobs: Iterable[Pending], now_unix: float, order: Order) -> Iterator[Pending]:
    importance = order.importance
    entries = [
        (not job.is_promised, -importance(job.ask, now_unix), job.ask.submitted_unix, job.ask.id, job) for job in jobs
    ]
    entries.sort()
    for entry in entries:
        yield entry[4]
