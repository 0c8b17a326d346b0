"""Which jobs start now, and where; who makes room; why the others wait."""

from __future__ import annotations

from sdrs_scheduler.policy.capacity import Capacity, Shape, shape_of
from sdrs_scheduler.policy.placement import place
from sdrs_scheduler.policy.priority import aging_points, importance_of
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Decisions, Pending, Start, View, Wait


def decide(view: View, settings: PolicySettings = PolicySettings()) -> Decisions:  # noqa: B008
    importance = importance_of(settings)
    now = view.now_unix
    capacity = Capacity(view.nodes, view.running)

    def key(job: Pending) -> tuple[float, float, str]:
        points = importance(job.ask, now)
        if settings.order == "priority":
            points += aging_points(job, now, settings)
        return (-points, job.ask.submitted_unix, job.ask.id)

    starts: list[Start] = []
    waits: dict[str, Wait] = {}
    full: set[Shape] = set()
    for job in sorted(view.pending, key=key):
        if job.waits_for:
            waits[job.ask.id] = Wait("dependency", f"waits for {', '.join(job.waits_for)}")
        elif job.eligible_unix > now:
            waits[job.ask.id] = Wait("backoff", f"starts again in {job.eligible_unix - now:.0f} s")
        else:
            shape = shape_of(job.ask)
            chosen = None if shape in full else place(capacity, shape)
            if chosen is None:
                full.add(shape)
                waits[job.ask.id] = Wait("capacity", f"needs {shape.nodes} nodes with {shape.gpus_per_node} free GPUs")
            else:
                starts.append(Start(job.ask.id, capacity.take(job.ask, chosen)))
    return Decisions(starts=tuple(starts), waits=waits if settings.explain else {})
