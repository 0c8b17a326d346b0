"""Who makes room, and for whom: as few as needed, the cheapest, and never in turns."""

from __future__ import annotations

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import PolicySettings
from tests.support.policy import (
    NOW,
    TinyCluster,
    a_view,
    all_of,
    an_ask,
    preempted,
    running,
    some_nodes,
    started,
    waiting,
    why,
)

ONE, TWO = some_nodes(1), some_nodes(2)


def test_a_less_important_job_is_warned_and_the_other_waits_for_it() -> None:
    old = running("old", {"n1": all_of()}, priority=10, unsaved_seconds=30.0)
    decisions = decide(a_view(ONE, [waiting("new", 8, priority=90)], [old]))
    assert preempted(decisions) == ["old"]
    assert started(decisions) == []
    assert decisions.preempts[0].for_job_id == "new-id"
    assert decisions.preempts[0].because == (
        "new (priority 90, this job 10) needs 8 GPUs; 240 GPU-seconds are not saved yet"
    )


def test_nobody_is_preempted_by_an_equal_or_by_one_who_waited_long() -> None:
    old = running("old", {"n1": all_of()})
    assert preempted(decide(a_view(ONE, [waiting("new", 8)], [old]))) == []
    assert preempted(decide(a_view(ONE, [waiting("new", 8, since=1e6)], [old]))) == []


def test_who_loses_the_least_since_its_last_checkpoint_goes() -> None:
    jobs = [
        running("dear", {"n1": all_of()}, priority=10, unsaved_seconds=3000.0),
        running("cheap", {"n2": all_of()}, priority=40, unsaved_seconds=20.0),
    ]
    assert preempted(decide(a_view(TWO, [waiting("new", 8, priority=90)], jobs))) == ["cheap"]


def test_of_those_on_one_node_the_cheapest_goes() -> None:
    jobs = [
        running("dear", {"n1": (0, 1, 2, 3)}, priority=10, unsaved_seconds=3000.0),
        running("cheap", {"n1": (4, 5, 6, 7)}, priority=40, unsaved_seconds=20.0),
    ]
    assert preempted(decide(a_view(ONE, [waiting("new", 4, priority=90)], jobs))) == ["cheap"]


def test_gpus_count_in_what_is_lost() -> None:
    jobs = [
        running("wide", {"n1": all_of()}, priority=10, unsaved_seconds=100.0),
        running("narrow", {"n2": (0, 1)}, priority=10, unsaved_seconds=300.0),
    ]
    assert preempted(decide(a_view(TWO, [waiting("new", 7, priority=90)], jobs))) == ["narrow"]


def test_only_as_many_as_needed_go() -> None:
    jobs = [running(f"old{number}", {"n1": (number,)}, priority=10) for number in range(8)]
    assert len(preempted(decide(a_view(ONE, [waiting("new", 3, priority=90)], jobs)))) == 3


def test_nobody_goes_if_the_gang_would_not_fit_even_then() -> None:
    jobs = [running("low", {"n1": all_of()}, priority=10), running("high", {"n2": all_of()}, priority=90)]
    assert preempted(decide(a_view(TWO, [waiting("new", 8, 2, priority=50)], jobs))) == []


def test_who_cannot_be_preempted_or_just_began_is_left_alone() -> None:
    new = waiting("new", 8, priority=90)
    fixed = running("fixed", {"n1": all_of()}, priority=10, preemptible=False)
    assert preempted(decide(a_view(ONE, [new], [fixed]))) == []
    fresh = running("fresh", {"n1": all_of()}, priority=10, ago=30.0)
    assert preempted(decide(a_view(ONE, [new], [fresh]))) == []
    assert preempted(decide(a_view(ONE, [new], [fresh]), PolicySettings(hysteresis_seconds=20))) == ["fresh"]


def test_those_who_leave_already_count_as_coming_free() -> None:
    jobs = [
        running("leaving", {"n1": all_of()}, priority=10, is_leaving=True),
        running("staying", {"n2": all_of()}, priority=10),
    ]
    decisions = decide(a_view(TWO, [waiting("new", 8, priority=90, is_promised=True)], jobs))
    assert preempted(decisions) == []
    assert why(decisions, "new") == (
        "preempting",
        "leaving saves its state and makes room for it, in about 60 s.",
    )


def test_what_comes_free_is_counted_for_one_job_only() -> None:
    jobs = [
        running("leaving", {"n1": all_of()}, priority=10, is_leaving=True),
        running("staying", {"n2": all_of()}, priority=10),
    ]
    pending = [waiting("first", 8, priority=90, is_promised=True), waiting("second", 8, priority=80)]
    decisions = decide(a_view(TWO, pending, jobs))
    assert [(preempt.job_id, preempt.for_job_id) for preempt in decisions.preempts] == [("staying-id", "second-id")]


def test_what_was_freed_for_a_job_is_not_taken_by_one_who_only_waited_longer() -> None:
    patient = waiting("patient", 8, priority=20, since=50_000)
    new = waiting("new", 8, priority=90, since=100)
    assert started(decide(a_view(ONE, [patient, new]))) == ["patient"]
    promised = waiting("new", 8, priority=90, since=100, is_promised=True)
    assert started(decide(a_view(ONE, [patient, promised]))) == ["new"]


def test_a_job_that_leaves_its_gpus_idle_loses_to_an_equal() -> None:
    jobs = [
        running("busy", {"n1": all_of()}, utilization=0.9),
        running("idle", {"n2": all_of()}, utilization=0.02, unsaved_seconds=500.0),
    ]
    decisions = decide(a_view(TWO, [waiting("new", 8)], jobs))
    assert preempted(decisions) == ["idle"]
    assert "uses its GPUs to 2% only" in decisions.preempts[0].because


def test_an_urgent_job_preempts_an_equal_that_has_time() -> None:
    old = running("old", {"n1": all_of()})
    urgent = waiting("urgent", 8, deadline_unix=NOW + 3600, left_seconds=3000.0)
    decisions = decide(a_view(ONE, [urgent], [old]))
    assert preempted(decisions) == ["old"]
    assert "is more urgent" in decisions.preempts[0].because


def test_preemption_can_be_turned_off() -> None:
    old = running("old", {"n1": all_of()}, priority=10)
    assert (
        preempted(decide(a_view(ONE, [waiting("new", 8, priority=90)], [old]), PolicySettings(preemption=False))) == []
    )


def test_shortest_left_preempts_the_longest_and_fifo_nobody() -> None:
    jobs = [
        running("long", {"n1": all_of()}, left_seconds=9000.0, unsaved_seconds=100.0),
        running("longer", {"n2": all_of()}, left_seconds=99_000.0, unsaved_seconds=5000.0),
    ]
    view = a_view(TWO, [waiting("short", 8, left_seconds=60.0)], jobs)
    assert preempted(decide(view, PolicySettings(order="shortest_left"))) == ["longer"]
    assert preempted(decide(view, PolicySettings(order="fifo"))) == []


def test_the_victim_gets_its_place_back_when_the_other_is_done() -> None:
    cluster = TinyCluster(ONE)
    cluster.submit(an_ask("low", 8, priority=10), 5000)
    for _ in range(2):
        cluster.step(100)
    cluster.submit(an_ask("high", 8, priority=90), 1000)
    for _ in range(80):
        cluster.step(100)
    assert cluster.preempt_count == 1
    assert (cluster.pending, cluster.running) == ({}, {})
