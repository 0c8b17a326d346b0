"""Strikes against nodes, advice on intervals, and what became of a job's time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_scheduler.entries import NodeRecord, Strike, Usage
from sdrs_scheduler.jobs.advice import advise, optimal_interval_seconds
from sdrs_scheduler.jobs.goodput import cluster_goodput, job_goodput
from sdrs_scheduler.jobs.job import Attempt, Job, JobId, Verdict
from sdrs_scheduler.jobs.resume import Generation
from sdrs_scheduler.jobs.spec import FailureClass, JobSpec, Resources
from sdrs_scheduler.jobs.strikes import StrikeSettings, with_strike
from sdrs_scheduler.usage import HALF_LIFE_SECONDS, used

C = FailureClass
HOUR_MS = 3_600_000


def struck(record: NodeRecord, *strikes: tuple[int, FailureClass, str]) -> NodeRecord:
    for at, failure, job in strikes:
        record = with_strike(record, Strike(at, failure, JobId(job), "it failed"), StrikeSettings())
    return record


def test_failures_of_several_jobs_cordon_a_node_and_the_reason_names_them() -> None:
    record = struck(NodeRecord("n1"), *((i * HOUR_MS, C.NODE_LOST, f"j{i}") for i in (1, 2)))
    assert record.cordoned_because == ""
    record = struck(record, (3 * HOUR_MS, C.NODE_LOST, "j3"))
    assert "3× node_lost" in record.cordoned_because
    assert record.cordoned_unix_ms == 3 * HOUR_MS


def test_an_outage_is_one_strike_however_many_jobs_it_took() -> None:
    record = struck(NodeRecord("n1"), *((i * 1000, C.NODE_LOST, f"j{i}") for i in range(8)))
    assert record.cordoned_because == ""
    assert len(record.strikes) == 1
    flapping = struck(record, *((i * 200_000, C.NODE_LOST, f"k{i}") for i in range(8)))
    assert "3× node_lost" in flapping.cordoned_because


def test_one_job_alone_does_not_cordon_a_node() -> None:
    assert struck(NodeRecord("n1"), *((i, C.HANG, "j1") for i in range(20))).cordoned_because == ""


def test_crashes_and_memory_are_the_jobs_own() -> None:
    assert struck(NodeRecord("n1"), *((i, C.CRASH, f"j{i}") for i in range(20))) == NodeRecord("n1")


def test_strikes_decay() -> None:
    record = struck(NodeRecord("n1"), (1, C.NODE_LOST, "a"), (2, C.NODE_LOST, "b"), (30 * HOUR_MS, C.NODE_LOST, "c"))
    assert record.cordoned_because == ""
    assert len(record.strikes) == 1


@pytest.mark.parametrize(("save_seconds", "mtbf_seconds"), [(10, 86_400), (60, 11_000), (1, 3600)])
def test_the_interval_is_youngs_within_a_few_percent_where_saves_are_cheap(
    save_seconds: float, mtbf_seconds: float
) -> None:
    young = math.sqrt(2 * save_seconds * mtbf_seconds)
    assert optimal_interval_seconds(save_seconds, mtbf_seconds) == pytest.approx(young, rel=0.1)


@given(st.floats(0.01, 1000), st.floats(100, 1e7))
def test_no_other_interval_wastes_less(save_seconds: float, mtbf_seconds: float) -> None:
    """By Daly's exact model of the run time, at a tenth more and less."""
    if save_seconds > mtbf_seconds / 20:
        return

    def waste(interval: float) -> float:
        return math.expm1((interval + save_seconds) / mtbf_seconds) / interval

    best = optimal_interval_seconds(save_seconds, mtbf_seconds)
    assert waste(best) <= waste(best * 1.3) * (1 + 1e-9)
    assert waste(best) <= waste(best / 1.3) * (1 + 1e-9)


def test_advice_goes_by_what_was_measured_and_says_so() -> None:
    saves = [Generation("a", 1, created_unix_ms=1000, committed_unix_ms=11_000)]
    assert advise([], [], 1, 0) is None
    calm = advise([], saves, 2, 0)
    failed = Attempt(JobId("j"), 1, (), "local", started_unix_ms=1, ended_unix_ms=HOUR_MS, verdict=Verdict(C.CRASH, ""))
    stormy = advise([failed] * 20, saves, 2, 0)
    assert calm is not None
    assert stormy is not None
    assert calm.save_seconds == 10
    assert "no failure yet" in calm.sentence
    assert "20 failures" in stormy.sentence
    assert stormy.interval_seconds < calm.interval_seconds
    # Twenty in twenty hours: what was seen counts, and hardly the prior.
    assert 3600 < stormy.mtbf_seconds < 2 * 3600
    long_ago = advise([replace(failed, verdict=None, ended_unix_ms=0)], saves, 1, 90 * 24 * HOUR_MS)
    assert long_ago is not None
    assert long_ago.mtbf_seconds == pytest.approx(90 * 24 * 3600)
    preempted = replace(failed, verdict=Verdict(C.PREEMPTED, ""))
    assert advise([preempted], saves, 2, 0) == calm


def job() -> Job:
    return Job(JobId("j"), JobSpec("j", "x", resources=Resources(2, 4)), "ann", 1000)


FAILED = Attempt(
    JobId("j"),
    1,
    (),
    "local",
    eligible_unix_ms=1000,
    scheduled_unix_ms=11_000,
    started_unix_ms=11_000,
    running_unix_ms=16_000,
    durable_unix_ms=76_000,
    ended_unix_ms=96_000,
    detected_unix_ms=99_000,
    verdict=Verdict(C.HANG, ""),
)
DONE = Attempt(
    JobId("j"),
    2,
    (),
    "local",
    eligible_unix_ms=109_000,
    scheduled_unix_ms=119_000,
    started_unix_ms=119_000,
    running_unix_ms=129_000,
    ended_unix_ms=189_000,
    utilization=0.5,
    verdict=Verdict(None, ""),
)


def test_goodput_tells_work_that_counts_from_work_that_was_lost() -> None:
    found = job_goodput(job(), [FAILED, DONE], 200_000)
    assert (found.effective_seconds, found.lost_seconds, found.loading_seconds) == (60 + 60, 20, 5 + 10)
    assert found.queueing_seconds == 10 + 10
    recovery = found.recovery
    assert (recovery.detect_seconds, recovery.decide_seconds) == (3, 10)
    assert (recovery.queue_seconds, recovery.load_seconds) == (10, 10)
    assert found.recoveries == {C.HANG: 1}
    assert found.utilization == 0.5
    assert found.ratio == pytest.approx(120 / 155)


def test_a_running_job_has_lost_nothing_yet_and_one_that_waits_queues() -> None:
    running = replace(FAILED, ended_unix_ms=0, detected_unix_ms=0, verdict=None)
    assert job_goodput(job(), [running], 96_000).lost_seconds == 0
    assert job_goodput(job(), [running], 96_000).effective_seconds == 80
    assert job_goodput(job(), [], 5000).queueing_seconds == 4


def test_a_clusters_goodput_weighs_jobs_by_their_gpus() -> None:
    one = job_goodput(job(), [FAILED, DONE], 200_000)
    total = cluster_goodput([(job(), one), (job(), one)])
    assert total.effective_seconds == 2 * 8 * 120
    assert total.ratio == pytest.approx(one.ratio)
    assert total.recoveries == {C.HANG: 2}
    assert total.recovery.detect_seconds == 6


def test_usage_is_halved_with_each_half_life() -> None:
    later = used(Usage(1, {"ann": 1000.0, "bob": 1.5}), [], 1 + int(HALF_LIFE_SECONDS * 1000))
    assert later.by_user == {"ann": pytest.approx(500.0)}
