"""How a shepherd ends a run, as a pure decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdrs_scheduler.executors.local.endings import Sight, Step, WorkerExit, as_told, next_step

RUNNING = Sight(now=100.0, workers_left=2, processes_left=2, patience_seconds=5.0, grace_seconds=60.0)
FAILED = replace(RUNNING, has_failed=True, workers_left=1)


@pytest.mark.parametrize(
    ("sight", "step"),
    [
        (RUNNING, Step.GO_ON),
        (replace(RUNNING, workers_left=1), Step.GO_ON),
        (replace(RUNNING, is_killed=True), Step.KILL),
        (replace(RUNNING, is_stopped=True), Step.TERMINATE),
        (FAILED, Step.TERMINATE),
        (replace(FAILED, is_killed=True), Step.KILL),
        (replace(FAILED, ending_since=96.0), Step.GO_ON),
        (replace(FAILED, ending_since=95.0), Step.KILL),
        # Reaped in the next round: their exits are wanted.
        (replace(FAILED, processes_left=0, ending_since=99.0), Step.GO_ON),
        (replace(FAILED, workers_left=0, processes_left=0), Step.DONE),
        (replace(RUNNING, workers_left=0, processes_left=0), Step.DONE),
        # What the command left behind in the background.
        (replace(RUNNING, workers_left=0, processes_left=1), Step.TERMINATE),
        (replace(RUNNING, workers_left=0, processes_left=1, ending_since=90.0), Step.KILL),
    ],
)
def test_each_step_follows_from_what_is_seen(sight: Sight, step: Step) -> None:
    assert next_step(sight) is step


def test_after_a_warning_the_others_have_the_whole_grace_for_their_save() -> None:
    warned = replace(FAILED, warned_at=90.0)
    assert next_step(warned) is Step.GO_ON
    assert next_step(replace(warned, now=149.9)) is Step.GO_ON
    assert next_step(replace(warned, now=150.0)) is Step.TERMINATE
    assert next_step(replace(warned, now=155.0, ending_since=150.0)) is Step.KILL
    # All commands have ended: what is left of them is not waited for.
    assert next_step(replace(warned, workers_left=0)) is Step.TERMINATE
    assert next_step(replace(warned, is_stopped=True)) is Step.TERMINATE
    assert next_step(replace(warned, is_killed=True)) is Step.KILL


def test_the_first_failure_is_told_first_and_the_rest_in_order() -> None:
    done, first, second = (WorkerExit("a", 0, None), WorkerExit("b", 1, None), WorkerExit("c", None, 15))
    assert as_told([done, first, second]) == [first, done, second]
    assert as_told([done]) == [done]
    assert as_told([]) == []
