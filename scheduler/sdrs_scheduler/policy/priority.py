"""Who goes first: importance, urgency, aging, fair shares."""

from __future__ import annotations

from collections.abc import Callable

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.policy.settings import ORDERS, PolicySettings
from sdrs_scheduler.policy.view import Ask, Pending, Running

# How much a job matters, apart from how long it waits: compared when one would preempt another. Higher is more.
Importance = Callable[[Ask, float], float]


def importance_of(settings: PolicySettings) -> Importance:
    """The order that the settings name. Each is a number of the job and of the time; nothing else differs."""
    match settings.order:
        case "priority":
            return lambda ask, now_unix: ask.priority + urgency_points(ask, now_unix, settings)
        case "fifo":
            return lambda ask, now_unix: 0.0
        case "shortest_left":
            return lambda ask, now_unix: -_left_seconds(ask)
        case "least_gpu_seconds_left":
            return lambda ask, now_unix: -_left_seconds(ask) * ask.nodes * ask.gpus_per_node
    raise InvalidArgumentError(f'no order is called "{settings.order}": use one of {", ".join(ORDERS)}')


def urgency_points(ask: Ask, now_unix: float, settings: PolicySettings) -> float:
    """None until the last moment to start is a window away, all when it is there; a late job keeps them."""
    if not ask.deadline_unix:
        return 0.0
    slack_seconds = ask.deadline_unix - now_unix - (ask.left_seconds or 0.0)
    nearness = 1.0 - slack_seconds / settings.deadline_window_seconds
    return settings.deadline_points * min(1.0, max(0.0, nearness))


def aging_points(pending: Pending, now_unix: float, settings: PolicySettings) -> float:
    return max(0.0, now_unix - pending.waiting_since_unix) / settings.aging_seconds_per_point


def idle_points(job: Running, settings: PolicySettings) -> float:
    """What a running job loses that leaves its GPUs idle."""
    if job.utilization is None or job.utilization >= settings.idle_utilization:
        return 0.0
    return settings.idle_points * (1.0 - job.utilization / settings.idle_utilization)


def _left_seconds(ask: Ask) -> float:
    return float("inf") if ask.left_seconds is None else ask.left_seconds
