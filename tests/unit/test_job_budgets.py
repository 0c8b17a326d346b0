"""Budgets: who pays, how long is waited, and that they end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_scheduler.jobs.budgets import backoff_seconds, charge, with_progress
from sdrs_scheduler.jobs.job import Job, JobId, Verdict
from sdrs_scheduler.jobs.spec import Action, Backoff, FailureClass, JobSpec, Retry

C = FailureClass


def job(**retry: object) -> Job:
    return Job(JobId("j-1"), JobSpec("j", "x", retry=Retry(**retry)), "ann", 0)  # type: ignore[arg-type]


def fail(one: Job, failure: FailureClass, action: Action = Action.RESTART) -> tuple[Job, bool, float]:
    cost = charge(one, Verdict(failure, "", action))
    return (
        replace(one, spent=cost.spent, no_progress_count=cost.no_progress_count),
        cost.may_retry,
        cost.delay_seconds,
    )


def test_charged_failures_share_the_maximum() -> None:
    one = job(max=2, no_progress_limit=0)
    for failure in (C.CRASH, C.HANG):
        one, may, _ = fail(one, failure)
        assert may
    assert not fail(one, C.KILLED)[1]


def test_a_class_with_a_budget_of_its_own_is_counted_alone() -> None:
    one = job(max=1, budgets={C.HANG: 2}, no_progress_limit=0)
    one, may, _ = fail(one, C.HANG)
    one, may_again, _ = fail(one, C.HANG)
    one, may_crash, _ = fail(one, C.CRASH)
    assert (may, may_again, may_crash) == (True, True, True)
    assert not fail(one, C.HANG)[1]
    assert not fail(one, C.CRASH)[1]


def test_a_budget_of_zero_is_never_tried_again() -> None:
    assert not fail(job(budgets={C.OUT_OF_MEMORY: 0}), C.OUT_OF_MEMORY)[1]


def test_free_classes_cost_nothing_but_do_not_go_on_for_ever() -> None:
    one = job(max=0, no_progress_limit=3)
    for _ in range(2):
        one, may, _ = fail(one, C.NODE_LOST)
        assert may
        assert one.spent == {}
    assert not fail(one, C.NODE_LOST)[1]


def test_preemptions_are_no_sign_that_a_job_does_not_get_on() -> None:
    one = job(no_progress_limit=1)
    for _ in range(10):
        one, may, delay = fail(one, C.PREEMPTED)
        assert (may, delay) == (True, 0.0)


def test_a_requeue_is_free_and_at_once() -> None:
    one, may, delay = fail(job(max=0), C.REQUEUED, Action.REQUEUE)
    assert (may, delay, one.spent) == (True, 0.0, {})


def test_fail_is_final() -> None:
    assert not fail(job(max=9), C.CRASH, Action.FAIL)[1]


def test_new_durable_steps_forget_what_was_spent_and_old_ones_do_not() -> None:
    one = fail(job(max=3), C.CRASH)[0]
    one = with_progress(one, 10)
    assert (one.spent, one.no_progress_count, one.progress_step) == ({}, 0, 10)
    one = fail(one, C.CRASH)[0]
    assert with_progress(one, 10).spent == {C.CRASH: 1}
    assert with_progress(one, 9).no_progress_count == 1
    assert with_progress(one, 11).spent == {}


@pytest.mark.parametrize(("count", "seconds"), [(0, 0), (1, 10), (2, 20), (3, 40), (7, 600), (5000, 600)])
def test_backoff_doubles_up_to_its_maximum(count: int, seconds: float) -> None:
    assert backoff_seconds(Backoff(10, 600), count) == seconds


@given(st.lists(st.sampled_from(list(C)), min_size=0, max_size=200), st.integers(0, 5), st.integers(1, 5))
def test_without_progress_every_job_ends_but_for_preemptions(failures: list[C], max_: int, limit: int) -> None:
    one, count = job(max=max_, no_progress_limit=limit), 0
    for failure in failures:
        one, may, delay = fail(one, failure)
        assert 0 <= delay <= one.spec.retry.backoff.max_seconds
        count += failure is not C.PREEMPTED
        if not may:
            break
        assert count < limit
