"""Later jobs fill gaps, and delay nobody who is ahead of them."""

from __future__ import annotations

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from tests.support.policy import a_view, all_of, running, some_nodes, started, waiting, why

CALM = PolicySettings(preemption=False)
TWO = some_nodes(2)
# n1 is busy for ten minutes, n2 is idle; the first in line needs both.
OLD = running("old", {"n1": all_of()}, left_seconds=600.0)
GANG = waiting("gang", 8, 2, since=50)


def test_a_short_job_fills_the_gap() -> None:
    short = waiting("short", 8, left_seconds=500.0, since=10)
    assert started(decide(a_view(TWO, [GANG, short], [OLD]), CALM)) == ["short"]


def test_a_job_that_would_end_too_late_waits() -> None:
    long = waiting("long", 8, left_seconds=700.0, since=10)
    decisions = decide(a_view(TWO, [GANG, long], [OLD]), CALM)
    assert started(decisions) == []
    assert why(decisions, "long")[0] == "reserved"


def test_a_job_of_unknown_length_counts_as_for_ever() -> None:
    assert started(decide(a_view(TWO, [GANG, waiting("unknown", 1, since=10)], [OLD]), CALM)) == []


def test_a_long_job_may_use_what_no_reservation_needs() -> None:
    gang = waiting("gang", 6, 2, since=50)
    long = waiting("long", 2, since=10)
    decisions = decide(a_view(TWO, [gang, long], [OLD]), CALM)
    assert started(decisions) == ["long"]


def test_two_who_fill_gaps_do_not_delay_together_what_each_alone_would_not() -> None:
    gang = waiting("gang", 6, 2, since=50)
    pending = [gang, waiting("one", 2, since=20), waiting("two", 2, since=10)]
    assert started(decide(a_view(TWO, pending, [OLD]), CALM)) == ["one"]


def test_the_second_in_line_has_a_reservation_as_well() -> None:
    second = waiting("second", 8, since=40)
    # It may begin when the gang is done, and the gang tells that: in 600 + 400 seconds.
    gang = waiting("gang", 8, 2, since=50, left_seconds=400.0)
    third = waiting("third", 8, since=10, left_seconds=590.0)
    decisions = decide(a_view(TWO, [gang, second, third], [OLD]), CALM)
    assert started(decisions) == ["third"]
    assert "in about 17 min" in why(decisions, "second")[1]


def test_behind_jobs_that_never_tell_their_end_nodes_are_kept_from_others_who_do_not_either() -> None:
    old = running("old", {"n1": all_of()})
    assert started(decide(a_view(TWO, [GANG, waiting("unknown", 1, since=10)], [old]), CALM)) == []
    known = waiting("known", 1, since=10, left_seconds=1e5)
    assert started(decide(a_view(TWO, [GANG, known], [old]), CALM)) == ["known"]


def test_the_nodes_of_an_overdue_gang_are_drained() -> None:
    old = running("old", {"n1": all_of()})
    overdue = waiting("gang", 8, 2, since=25 * 3600)
    known = waiting("known", 1, since=10, left_seconds=10.0)
    assert started(decide(a_view(TWO, [overdue, known], [old]), CALM)) == []
    # Where it is known when there is room, nothing needs to stand idle until then.
    assert started(decide(a_view(TWO, [overdue, known], [OLD]), CALM)) == ["known"]


def test_a_job_whose_nodes_are_closed_holds_up_nobody() -> None:
    huge = waiting("huge", 8, 3, since=50)
    nodes = [*TWO, *some_nodes(3, is_open=False)[2:]]
    assert started(decide(a_view(nodes, [huge, waiting("small", 8, 2, since=1)]), CALM)) == ["small"]


def test_without_depth_nobody_overtakes_and_without_reservations_everybody_may() -> None:
    long = waiting("long", 8, left_seconds=7000.0, since=10)
    short = waiting("short", 8, left_seconds=5.0, since=10)
    strict = PolicySettings(order="fifo", backfill_depth=0)
    assert started(decide(a_view(TWO, [GANG, short], [OLD]), strict)) == []
    greedy = PolicySettings(order="fifo", reservations_max=0)
    assert started(decide(a_view(TWO, [GANG, long], [OLD]), greedy)) == ["long"]
