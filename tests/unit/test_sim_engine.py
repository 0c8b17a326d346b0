"""The simulator: nothing is lost or used twice, the same seed gives the same, and failures cost what they must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sdrs_core.errors import InternalError, InvalidArgumentError
from sdrs_core.levels import Level
from sdrs_scheduler.policy.settings import PolicySettings
from sdrs_scheduler.policy.view import Decisions, View
from sdrs_scheduler.sim import engine
from sdrs_scheduler.sim.cluster import SimCluster
from sdrs_scheduler.sim.engine import Outcome, simulate
from sdrs_scheduler.sim.jobs import Phase, make_job
from sdrs_scheduler.sim.report import make_report
from sdrs_scheduler.sim.settings import PolicyName, Preemption, Restart, SimSettings
from sdrs_scheduler.sim.traces import TraceJob
from tests.support.traces import job, mixed_trace

DAY = 86_400.0
# Two GPUs that are asked for four times; small enough for pencil and paper.
TINY = [job("a", 2, 0, 100), job("b", 1, 10, 50), job("c", 2, 20, 10), job("d", 1, 30, 5)]
FREE = {"save_seconds": 0.0, "restore_seconds": 0.0, "level": Level.L1}
BATTERED = SimSettings(8, 8, mtbf_seconds=2 * DAY, torn=0.1, seed=3)


def completions(outcome: Outcome) -> dict[str, float]:
    return {one.trace.id: one.ended - one.trace.submit_seconds for one in outcome.jobs}


def run_tiny(policy: PolicyName, **changes: Any) -> Outcome:
    return simulate(TINY, SimSettings(1, 2, policy=policy, **{**FREE, **changes}))


def test_fifo_lets_nobody_overtake() -> None:
    # a until 100, b until 150; c needs both GPUs and d waits behind it, although one is idle from 100 on.
    assert completions(run_tiny(PolicyName.FIFO)) == {"a": 100, "b": 140, "c": 140, "d": 135}


def test_srtf_preempts_for_what_is_shorter() -> None:
    # b ends a at 10, c ends b at 20; d and the rest of b run side by side, and a has its 90 s at last.
    outcome = run_tiny(PolicyName.SRTF)
    assert completions(outcome) == {"a": 160, "b": 60, "c": 10, "d": 5}
    assert {one.trace.id: one.preemption_count for one in outcome.jobs} == {"a": 1, "b": 1, "c": 0, "d": 0}


def test_srsf_counts_gpus_too() -> None:
    # At 20, c needs 2 × 10 s and b 40 s; at 10, b needs 50 s and a 2 × 90 s: as SRTF. But e, 30 s on two GPUs, does
    # not end b, which has 40 s left on one.
    trace = [job("b", 1, 0, 50), job("e", 2, 10, 30)]
    by_time = simulate(trace, SimSettings(1, 2, policy=PolicyName.SRTF, **FREE))  # type: ignore[arg-type]
    by_service = simulate(trace, SimSettings(1, 2, policy=PolicyName.SRSF, **FREE))  # type: ignore[arg-type]
    assert completions(by_time) == {"b": 80, "e": 30}
    assert completions(by_service) == {"b": 50, "e": 70}


def test_without_preemption_srtf_is_shortest_job_first() -> None:
    # At 100 d (5 s) and b (50 s) fit side by side, and c has both GPUs when b is done.
    outcome = run_tiny(PolicyName.SRTF, preemption=Preemption.NONE)
    assert completions(outcome)["a"] == 100
    assert completions(outcome)["d"] == 75
    assert sum(one.preemption_count for one in outcome.jobs) == 0


def test_a_preempted_job_keeps_its_work_if_it_saved_and_loses_it_if_it_was_killed() -> None:
    costs = {"save_seconds": 4.0, "restore_seconds": 3.0}
    saved = run_tiny(PolicyName.SRTF, **costs)
    killed = run_tiny(PolicyName.SRTF, **costs, preemption=Preemption.KILL)
    assert make_report(saved).lost_gpu_hours == 0
    # a had worked for 10 s on two GPUs when it was killed at 10, and b for 10 s on one when c came at 20.
    assert make_report(killed).lost_gpu_hours == pytest.approx((2 * 10 + 10) / 3600)


def test_a_save_delays_who_waits_for_the_gpus() -> None:
    outcome = simulate(
        [job("a", 1, 0, 100), job("b", 1, 10, 20)],
        SimSettings(1, 1, policy=PolicyName.SRTF, save_seconds=4, restore_seconds=3, level=Level.L1),
    )
    # b starts when a has saved, at 14; a loads for 3 s when b is done, at 34, and has 90 s left.
    assert completions(outcome) == {"b": 24, "a": 127}


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("restart", list(Restart))
def test_each_job_does_its_work_once_and_all_time_is_accounted_for(policy: PolicyName, restart: Restart) -> None:
    trace = mixed_trace(seed=1)
    outcome = simulate(trace, replace(BATTERED, policy=policy, restart=restart))
    assert outcome.node_failure_count > 0
    for one in outcome.jobs:
        assert one.phase is Phase.DONE
        assert one.working_seconds - one.lost_seconds == pytest.approx(one.trace.duration_seconds)
        life = one.ended - one.trace.submit_seconds
        assert one.waited_seconds + one.allocated_seconds == pytest.approx(life)
    report = make_report(outcome)
    parts = report.useful_gpu_hours + report.lost_gpu_hours + report.saving_gpu_hours + report.restoring_gpu_hours
    assert parts == pytest.approx(report.allocated_gpu_hours)
    assert report.goodput == pytest.approx(report.useful_gpu_hours / report.allocated_gpu_hours)
    assert report.utilization <= 1


@pytest.mark.parametrize("preemption", list(Preemption))
def test_no_gpu_is_used_twice_at_once(preemption: Preemption, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engine.decide
    most = 0

    def watching(view: View, settings: PolicySettings) -> Decisions:
        nonlocal most
        decisions = real(view, settings)
        placements = [one.placement for one in (*view.running, *decisions.starts)]
        used = [(name, gpu) for placement in placements for name, gpus in placement.items() for gpu in gpus]
        assert len(used) == len(set(used))
        open_nodes = {node.name for node in view.nodes if node.is_open}
        assert {name for name, _gpu in used} <= open_nodes
        most = max(most, len(used))
        return decisions

    monkeypatch.setattr(engine, "decide", watching)
    simulate(mixed_trace(seed=2), replace(BATTERED, preemption=preemption))
    assert most == 64  # it was full at times, or this proves little


def test_the_same_seed_gives_the_same_and_another_one_does_not() -> None:
    trace = mixed_trace(seed=1)
    first, second, other = (
        # Nothing is torn: that other nodes fail is enough.
        make_report(simulate(trace, replace(BATTERED, torn=0.0, seed=seed)))
        for seed in (3, 3, 4)
    )
    assert first == second
    assert first != other


def test_failures_are_the_same_for_every_policy() -> None:
    trace = [job("a", 8, 0, 3 * DAY)]
    counts = {simulate(trace, replace(BATTERED, policy=policy, torn=0.0)).node_failure_count for policy in PolicyName}
    assert len(counts) == 1


@pytest.mark.parametrize("seed", range(5))
def test_a_failure_costs_at_most_an_interval_of_work(seed: int) -> None:
    settings = replace(BATTERED, preemption=Preemption.NONE, torn=0.0, seed=seed, mtbf_seconds=DAY / 2)
    outcome = simulate(mixed_trace(seed), settings)
    assert make_report(outcome).restart_count > 10
    assert settings.interval_seconds is not None
    for one in outcome.jobs:
        assert one.lost_seconds <= one.failure_count * settings.interval_seconds + 1e-3


# A node under it fails once in these four days, and is back six hours later.
ONE_LOSS = SimSettings(4, 8, mtbf_seconds=3 * DAY, repair_seconds=DAY / 4, restore_seconds=30, seed=4)
LONG = [job("a", 8, 0, 4 * DAY)]


def test_a_checkpoint_on_the_lost_node_alone_is_waited_for() -> None:
    alone, copied, coded = (
        make_report(simulate(LONG, replace(ONE_LOSS, level=level))) for level in (Level.L1, Level.L2, Level.L3)
    )
    assert {one.restart_count for one in (alone, copied, coded)} == {1}
    # Elsewhere it may go on as soon as its checkpoint was read through.
    assert (alone.average_wait, copied.average_wait, coded.average_wait) == (DAY / 4, 30, 30)
    assert alone.average_completion == pytest.approx(copied.average_completion + DAY / 4 - 30)
    # None lost more than what was not saved yet.
    assert alone.lost_gpu_hours == copied.lost_gpu_hours == coded.lost_gpu_hours


def test_a_blind_restart_that_finds_nothing_begins_at_the_top() -> None:
    blind = replace(ONE_LOSS, restart=Restart.BLIND)
    alone, copied = (make_report(simulate(LONG, replace(blind, level=level))) for level in (Level.L1, Level.L2))
    scratch = make_report(simulate(LONG, replace(ONE_LOSS, restart=Restart.SCRATCH)))
    assert copied.lost_gpu_hours <= 8 * 0.5
    assert alone.lost_gpu_hours == pytest.approx(scratch.lost_gpu_hours, rel=0.02)  # but for the saves on the way
    assert alone.lost_gpu_hours > 100


def test_verified_restarts_meet_no_torn_checkpoint_and_blind_ones_do() -> None:
    trace = [job(f"j{number}", 8, 0, 3 * DAY) for number in range(8)]
    settings = SimSettings(8, 8, mtbf_seconds=DAY, torn=0.3, restore_seconds=600, seed=1)
    verified, blind, scratch = (make_report(simulate(trace, replace(settings, restart=restart))) for restart in Restart)
    assert verified.restart_count < blind.restart_count
    assert verified.restoring_gpu_hours < blind.restoring_gpu_hours
    assert verified.goodput > blind.goodput > scratch.goodput
    assert verified.average_completion < blind.average_completion < scratch.average_completion


def test_auto_intervals_cost_less_than_bad_ones() -> None:
    trace = [job(f"j{number}", 8, 0, 3 * DAY) for number in range(8)]
    settings = SimSettings(8, 8, mtbf_seconds=2 * DAY, save_seconds=60, seed=1)
    goodputs = {
        interval: make_report(simulate(trace, replace(settings, interval_seconds=interval))).goodput
        for interval in (None, 120.0, 100_000.0)
    }
    assert goodputs[None] > max(goodputs[120.0], goodputs[100_000.0])


def test_a_tick_delays_decisions_to_its_multiples() -> None:
    outcome = simulate([job("a", 1, 0, 100), job("b", 1, 30, 10)], SimSettings(1, 1, tick_seconds=60, **FREE))  # type: ignore[arg-type]
    assert completions(outcome) == {"a": 100, "b": 100}  # at 120, not at 100


def test_jobs_that_never_get_on_are_given_up() -> None:
    settings = SimSettings(2, 8, mtbf_seconds=60.0, repair_seconds=60.0, restart=Restart.SCRATCH)
    report = make_report(simulate([job("a", 8, 0, 2_000)], settings))
    assert (report.done_count, report.job_count) == (0, 1)
    assert report.goodput == 0


def test_large_gangs_are_spread_evenly_over_as_few_nodes_as_they_need() -> None:
    shapes = {gpus: make_job(job("a", gpus, 0, 1), 8, 60, True) for gpus in (1, 8, 12, 16, 20, 32)}
    assert {gpus: (one.nodes, one.gpus_per_node) for gpus, one in shapes.items()} == {
        1: (1, 1),
        8: (1, 8),
        12: (2, 6),
        16: (2, 8),
        20: (3, 7),
        32: (4, 8),
    }


def test_a_job_larger_than_the_cluster_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match='job "a" needs 2 nodes of 8 GPUs, there are 1'):
        simulate([job("a", 9, 0, 1)], SimSettings(1, 8, level=Level.L1))


@pytest.mark.parametrize(
    "placement",
    [{"n0": (0, 1)}, {"n1": (0, 1)}, {"n2": (3, 4)}, {"n2": (0,)}, {"n2": (0, 0)}, {"n2": (0,), "n3": (0,)}],
    ids=["taken", "down", "beyond", "too few", "twice", "split"],
)
def test_the_cluster_refuses_what_a_policy_may_not_give(placement: dict[str, Sequence[int]]) -> None:
    cluster = SimCluster(4, 4)
    cluster.take(make_job(job("first", 2, 0, 1), 4, 60, True), {"n0": (1, 2)})
    cluster.lose(1)
    with pytest.raises(InternalError):
        cluster.take(make_job(job("second", 2, 0, 1), 4, 60, True), {n: tuple(g) for n, g in placement.items()})


def test_progress_ends_with_all_jobs() -> None:
    told: list[tuple[int, int]] = []
    simulate(mixed_trace(1, count=250), SimSettings(64, 8), lambda done, total: told.append((done, total)))
    assert told == [(100, 250), (200, 250), (250, 250)]


def test_users_who_had_little_go_first_among_equals() -> None:
    """Fair share reaches the policy: ann has used the cluster all day, bob has not."""
    past = [TraceJob("past", 8, 0.0, DAY, user="ann")]
    waiting = [TraceJob(f"{user}-1", 8, DAY - 600, 3600.0, user=user) for user in ("ann", "bob")]
    outcome = simulate([*past, *waiting], SimSettings(1, 8, level=Level.L1))
    ended = {one.trace.id: one.ended for one in outcome.jobs}
    assert ended["bob-1"] < ended["ann-1"]
