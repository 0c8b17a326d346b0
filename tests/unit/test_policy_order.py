"""Who goes first: importance, urgency, aging, fair shares, and the orders that the simulator compares."""

from __future__ import annotations

import pytest

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Queue
from tests.support.policy import NOW, a_view, some_nodes, started, waiting

ONE_NODE = some_nodes(1)
DAY = 86400.0


def test_the_more_important_job_is_first_and_among_equals_who_came_first() -> None:
    pending = [waiting("late", since=10), waiting("early", since=20), waiting("urgent", priority=60, since=5)]
    assert started(decide(a_view(ONE_NODE, pending))) == ["urgent", "early", "late"]


def test_waiting_makes_up_for_less_priority() -> None:
    pending = [waiting("fresh", 8, priority=90, since=0), waiting("old", 8, priority=10, since=81 * 600)]
    assert started(decide(a_view(ONE_NODE, pending))) == ["old"]
    pending[1] = waiting("old", 8, priority=10, since=79 * 600)
    assert started(decide(a_view(ONE_NODE, pending))) == ["fresh"]


def test_urgency_rises_towards_the_last_moment_to_start() -> None:
    relaxed = waiting("relaxed", 8, deadline_unix=NOW + 3 * DAY, left_seconds=3600.0)
    plain = waiting("plain", 8, priority=60)
    assert started(decide(a_view(ONE_NODE, [relaxed, plain]))) == ["plain"]
    # As near a deadline, but much more to do until then.
    pressed = waiting("pressed", 8, deadline_unix=NOW + 3 * DAY, left_seconds=2.9 * DAY)
    assert started(decide(a_view(ONE_NODE, [pressed, plain]))) == ["pressed"]


def test_who_has_used_less_of_late_is_first() -> None:
    pending = [waiting("ada", 8, user="ada", since=20), waiting("bob", 8, user="bob", since=10)]
    usage = {"ada": 9e6, "bob": 1e6}
    assert started(decide(a_view(ONE_NODE, pending, user_usage=usage))) == ["bob"]
    assert started(decide(a_view(ONE_NODE, pending))) == ["ada"]


def test_tenants_share_as_users_do() -> None:
    pending = [waiting("a", 8, tenant="big", since=20), waiting("b", 8, tenant="small", since=10)]
    assert started(decide(a_view(ONE_NODE, pending, tenant_usage={"big": 9e6, "small": 1e6}))) == ["b"]


def test_users_who_come_at_the_same_time_share_an_empty_cluster() -> None:
    pending = [waiting(f"ada{number}", user="ada", since=20) for number in range(20)]
    pending += [waiting(f"bob{number}", user="bob", since=10) for number in range(20)]
    names = started(decide(a_view(ONE_NODE, pending)))
    assert sorted(name[:3] for name in names) == ["ada"] * 4 + ["bob"] * 4


def test_queues_share_what_they_borrow_by_their_weights() -> None:
    pending = [waiting(f"heavy{number}", queue="heavy") for number in range(20)]
    pending += [waiting(f"light{number}", queue="light", since=200) for number in range(20)]
    view = a_view(ONE_NODE, pending, queues=[Queue("heavy", weight=3), Queue("light", weight=1)])
    names = started(decide(view))
    assert sorted(name[:5] for name in names) == ["heavy"] * 6 + ["light"] * 2


PENDING = [
    waiting("first", 4, left_seconds=300.0, since=30, priority=10),
    waiting("shortest", 8, left_seconds=100.0, since=20),
    waiting("least", 2, left_seconds=150.0, since=10),
]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("fifo", ["first", "least"]),
        ("shortest_left", ["shortest"]),
        ("least_gpu_seconds_left", ["least"]),
        ("priority", ["shortest"]),
    ],
)
def test_the_order_is_one_setting(order: str, names: list[str]) -> None:
    assert started(decide(a_view(ONE_NODE, PENDING), PolicySettings(order=order))) == names


def test_an_unknown_order_is_named_with_those_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match='no order is called "random": use one of priority, fifo'):
        decide(a_view(ONE_NODE, PENDING), PolicySettings(order="random"))


def test_a_job_of_unknown_length_is_the_last_of_the_shortest() -> None:
    pending = [waiting("unknown", 8, since=50), waiting("known", 8, left_seconds=1e6)]
    assert started(decide(a_view(ONE_NODE, pending), PolicySettings(order="shortest_left"))) == ["known"]
