"""How much a job matters: importance, urgency, aging; and what is lost when one that runs is ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.policy.settings import ORDERS, PolicySettings
from sdrs_scheduler.policy.view import Ask, Pending, Running

# Longer than anything; finite, so that two of them can be compared and subtracted.
FOREVER_SECONDS = 1e12


@dataclass(frozen=True, slots=True)
class Order:
    """All that differs between the orders that the settings can name."""

    # More is first. Also compared when one job would preempt another: so how long a job waits is not in it, or two
    # jobs would preempt each other in turn.
    importance: Callable[[Ask, float], float]
    # Of a running job: what its preemption costs. The cheapest go first.
    cost: Callable[[Running], float]
    # Whether aging and fair shares change who is first.
    is_fair: bool = False


def order_of(settings: PolicySettings) -> Order:
    def lost_gpu_seconds(job: Running) -> float:
        return _lost_gpu_seconds(job, settings)

    match settings.order:
        case "priority":
            return Order(
                lambda ask, now_unix: (
                    ask.priority + urgency_points(ask, now_unix, settings) if ask.deadline_unix else ask.priority
                ),
                lost_gpu_seconds,
                is_fair=True,
            )
        case "fifo":
            return Order(lambda ask, now_unix: 0.0, lost_gpu_seconds)
        case "shortest_left":
            return Order(lambda ask, now_unix: -_left_seconds(ask), lambda job: 1 / (1 + _left_seconds(job.ask)))
        case "least_gpu_seconds_left":
            return Order(
                lambda ask, now_unix: -_left_gpu_seconds(ask), lambda job: 1 / (1 + _left_gpu_seconds(job.ask))
            )
    raise InvalidArgumentError(f'no order is called "{settings.order}": use one of {", ".join(ORDERS)}')


def urgency_points(ask: Ask, now_unix: float, settings: PolicySettings) -> float:
    """None until the last moment to start is a window away, all when it is there; a late job keeps them."""
    if not ask.deadline_unix:
        return 0.0
    slack_seconds = ask.deadline_unix - now_unix - (ask.left_seconds or 0.0)
    nearness = 1.0 - slack_seconds / settings.deadline_window_seconds
    return settings.deadline_points * min(1.0, max(0.0, nearness))


def aging_points(job: Pending, now_unix: float, settings: PolicySettings) -> float:
    return max(0.0, now_unix - job.waiting_since_unix) / settings.aging_seconds_per_point


def is_overdue(job: Pending, now_unix: float, settings: PolicySettings) -> bool:
    return now_unix - job.waiting_since_unix >= settings.patience_seconds


def idle_points(job: Running, settings: PolicySettings) -> float:
    """What a running job loses that leaves its GPUs idle."""
    return settings.idle_points * (1.0 - _usefulness(job, settings))


def _lost_gpu_seconds(job: Running, settings: PolicySettings) -> float:
    # A job without GPUs occupies a place as well: it counts as one GPU.
    gpus = max(1, sum(len(gpus) for gpus in job.placement.values()))
    return gpus * (job.unsaved_seconds + settings.restart_seconds) * _usefulness(job, settings)


def _usefulness(job: Running, settings: PolicySettings) -> float:
    """1, unless it leaves its GPUs idle: then what it computes in them is as much less worth."""
    if job.utilization is None or job.utilization >= settings.idle_utilization:
        return 1.0
    return job.utilization / settings.idle_utilization


def _left_seconds(ask: Ask) -> float:
    return FOREVER_SECONDS if ask.left_seconds is None else ask.left_seconds


def _left_gpu_seconds(ask: Ask) -> float:
    return _left_seconds(ask) * max(1, ask.nodes * ask.gpus_per_node)
