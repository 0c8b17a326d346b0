"""Queues: what they may always have, what they lend and take back, and what they may have at most."""

from __future__ import annotations

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Queue
from tests.support.policy import NOW, a_view, all_of, preempted, running, some_nodes, started, waiting, why

TWO = some_nodes(2)
PROD = Queue("prod", gpus=8)
GUESTS = Queue("guests")


def test_idle_capacity_is_lent_beyond_a_quota() -> None:
    decisions = decide(a_view(TWO, [waiting("big", 8, 2, queue="guests")], queues=[PROD, GUESTS]))
    assert started(decisions) == ["big"]


def test_who_stays_within_its_quota_is_served_before_more_important_borrowers() -> None:
    pending = [waiting("guest", 8, 2, queue="guests", priority=100), waiting("own", 8, queue="prod", priority=1)]
    assert started(decide(a_view(TWO, pending, queues=[PROD, GUESTS]))) == ["own"]


def test_lent_capacity_is_taken_back_from_whoever_has_it_however_important() -> None:
    guests = [running(f"guest{node}", {node: all_of()}, queue="guests", priority=100) for node in ("n1", "n2")]
    view = a_view(TWO, [waiting("own", 8, queue="prod", priority=1)], guests, [PROD, GUESTS])
    decisions = decide(view)
    assert len(preempted(decisions)) == 1
    assert "queue prod takes back what it lent to queue guests" in decisions.preempts[0].because


def test_no_more_is_taken_back_than_was_lent() -> None:
    guests = [running(f"guest{node}", {node: all_of()}, queue="guests", priority=100) for node in ("n1", "n2")]
    queues = [PROD, Queue("guests", gpus=16)]
    assert preempted(decide(a_view(TWO, [waiting("own", 8, queue="prod")], guests, queues))) == []


def test_a_job_beyond_its_quota_takes_nothing_back() -> None:
    guest = running("guest", {"n1": all_of(), "n2": all_of()}, queue="guests")
    view = a_view(TWO, [waiting("own", 8, 2, queue="prod")], [guest], [PROD, GUESTS])
    assert preempted(decide(view)) == []


def test_a_queue_that_does_not_reclaim_waits() -> None:
    guest = running("guest", {"n1": all_of(), "n2": all_of()}, queue="guests")
    view = a_view(TWO, [waiting("own", 8, queue="prod")], [guest], [Queue("prod", 8, reclaims=False), GUESTS])
    assert preempted(decide(view)) == []
    view = a_view(TWO, [waiting("own", 8, queue="prod")], [guest], [PROD, GUESTS])
    assert preempted(decide(view)) == ["guest"]
    assert preempted(decide(view, PolicySettings(reclaim=False))) == []


def test_importance_alone_takes_nothing_from_a_queue_within_its_quota() -> None:
    own = running("own", {"n1": all_of()}, queue="prod", priority=1)
    view = a_view(some_nodes(1), [waiting("guest", 8, queue="guests", priority=100)], [own], [PROD, GUESTS])
    assert preempted(decide(view)) == []


def test_max_gpus_holds_even_when_all_else_is_idle() -> None:
    queue = Queue("capped", max_gpus=8)
    pending = [waiting("a", 6, queue="capped", since=20), waiting("b", 4, queue="capped", since=10)]
    decisions = decide(a_view(TWO, pending, queues=[queue]))
    assert started(decisions) == ["a"]
    assert why(decisions, "b") == (
        "quota",
        "Queue capped has 6 of the 8 GPUs that it may have at most; this job needs 4, so 2 must come free in the "
        "queue first.",
    )


def test_room_below_max_gpus_is_kept_for_the_first_who_waits_for_it() -> None:
    queue = Queue("capped", max_gpus=8)
    old = running("old", {"n1": (0, 1, 2, 3)}, queue="capped", left_seconds=600.0)
    large = waiting("large", 8, queue="capped", since=50)
    small = waiting("small", 4, queue="capped", since=10)
    decisions = decide(a_view(TWO, [large, small], [old], [queue]))
    assert started(decisions) == []
    assert why(decisions, "small")[0] == "behind"
    short = waiting("short", 4, queue="capped", since=10, left_seconds=500.0)
    assert started(decide(a_view(TWO, [large, short], [old], [queue]))) == ["short"]


def test_a_more_important_job_makes_room_below_its_queues_own_limit() -> None:
    queue = Queue("capped", max_gpus=8)
    old = running("old", {"n1": all_of()}, queue="capped", priority=10)
    other = running("other", {"n2": (0,)}, priority=10)
    view = a_view(TWO, [waiting("new", 4, queue="capped", priority=90)], [old, other], [queue])
    assert preempted(decide(view)) == ["old"]


def test_a_job_that_cannot_be_preempted_never_gets_what_may_be_wanted_back() -> None:
    pending = [waiting("stay", 8, 2, queue="guests", preemptible=False)]
    decisions = decide(a_view(TWO, pending, queues=[PROD, GUESTS]))
    assert started(decisions) == []
    assert why(decisions, "stay") == (
        "quota",
        "It cannot be preempted, so it may not borrow what other queues could want back: queue guests has 0 of its "
        "own 0 GPUs, this job needs 16, and 8 are in no queue's quota.",
    )
    fits = [waiting("stay", 8, queue="guests", preemptible=False)]
    assert started(decide(a_view(TWO, fits, queues=[PROD, GUESTS]))) == ["stay"]


def test_a_small_fixed_job_does_not_overtake_a_large_one_that_waits_for_the_same() -> None:
    pending = [
        waiting("large", 8, 2, queue="guests", preemptible=False, since=20),
        waiting("small", 1, queue="guests", preemptible=False, since=10),
    ]
    assert started(decide(a_view(TWO, pending, queues=[PROD, GUESTS]))) == []


def test_an_overdue_borrower_no_longer_stands_behind_all_quotas() -> None:
    own = waiting("own", 8, queue="prod", since=100)
    guest = waiting("guest", 8, queue="guests", since=25 * 3600)
    queues = [PROD, GUESTS]
    assert started(decide(a_view(some_nodes(1), [own, guest], queues=queues))) == ["guest"]
    patient = PolicySettings(patience_seconds=26 * 3600)
    assert started(decide(a_view(some_nodes(1), [own, guest], queues=queues), patient)) == ["own"]


def test_a_closed_queue_starts_nothing_and_leaves_what_runs() -> None:
    queue = Queue("shut", is_open=False)
    view = a_view(TWO, [waiting("new", 1, queue="shut")], [running("old", {"n1": (0,)}, queue="shut")], [queue])
    decisions = decide(view)
    assert (started(decisions), preempted(decisions)) == ([], [])
    assert why(decisions, "new") == (
        "queue_closed",
        "Queue shut is closed: its jobs wait until it is opened (sdrs queue set).",
    )


def test_a_queue_that_nobody_made_lives_on_what_is_idle() -> None:
    assert started(decide(a_view(TWO, [waiting("job", 1, queue="gone", submitted_unix=NOW)]))) == ["job"]
