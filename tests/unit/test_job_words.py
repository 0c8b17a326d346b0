"""What the verbs of jobs say, without a cluster: help, sentences, names."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner

from sdrs.cli.settings import Settings
from sdrs_core.errors import InvalidArgumentError, NotFoundError
from sdrs_scheduler import keys
from sdrs_scheduler.cli import job_orders
from sdrs_scheduler.cli.job_names import find_job, is_idle, now_unix_ms
from sdrs_scheduler.cli.job_records import attempt_state
from sdrs_scheduler.cli.job_words import budget_words, placement_words, why_sentence
from sdrs_scheduler.cli.jobs import job as job_group
from sdrs_scheduler.cli.queues import queue as queue_group
from sdrs_scheduler.entries import Lease
from sdrs_scheduler.jobs.job import Attempt, Job, JobId, JobState, Slot, Verdict, Wish
from sdrs_scheduler.jobs.spec import CheckpointWish, FailureClass, JobSpec, Retry
from sdrs_scheduler.ledger import Ledger
from tests.support.memory_records import MemoryRecords

NOW_MS = 1_800_000_000_000
VERBS = [(group, name) for group in (job_group, queue_group) for name in group.commands]


@pytest.mark.parametrize(("group", "verb"), VERBS, ids=lambda value: value if isinstance(value, str) else value.name)
def test_every_verb_has_help_with_examples(group: click.Group, verb: str) -> None:
    result = CliRunner().invoke(group, [verb, "--help"])
    assert result.exit_code == 0
    assert f"sdrs {group.name} {verb}" in result.output.partition("Examples:")[2]


def job_of(state: JobState, **changes: object) -> Job:
    made = Job(JobId("llm-1a2b"), JobSpec("llm", "x"), "ada", NOW_MS - 120_000, state)
    return replace(made, **changes)  # type: ignore[arg-type]


def attempt_of(**changes: object) -> Attempt:
    made = Attempt(JobId("llm-1a2b"), 1, (Slot("node-1", (0,)),), "local", started_unix_ms=NOW_MS - 60_000)
    return replace(made, **changes)  # type: ignore[arg-type]


CRASH = Verdict(FailureClass.CRASH, "the worker on node-1 exited with 1: crash", charged=True)


@pytest.mark.parametrize(
    ("job", "attempts", "told"),
    [
        (
            job_of(JobState.QUEUED, why="It waits for prep (running)."),
            [],
            "llm-1a2b waits (queued, 2m): It waits for prep (running)",
        ),
        (
            job_of(JobState.QUEUED, why="Its turn has not come.", last_end="the worker crashed, retry 1 of 3"),
            [attempt_of(ended_unix_ms=NOW_MS - 5_000, verdict=CRASH)],
            "llm-1a2b waits (queued, 5s): Its turn has not come. Before: the worker crashed, retry 1 of 3",
        ),
        (
            job_of(JobState.RUNNING, slots=(Slot("node-1", (0,)),), why="attempt 1 runs. Before: a", last_end="a"),
            [attempt_of(last_step=7)],
            "llm-1a2b runs on node-1 since 2027-01-15T07:59:00.000Z (1m ago) as attempt 1 from the beginning, "
            "at step 7. Before: a",
        ),
        (
            job_of(JobState.RUNNING, slots=(Slot("node-1", (0,)),), why="it hangs; it is being ended", last_end="a"),
            [attempt_of(last_step=7, verdict=CRASH)],
            "as attempt 1, at step 7: it hangs; it is being ended",
        ),
        (job_of(JobState.HELD), [], "llm-1a2b is held. It waits for `sdrs job release llm-1a2b`"),
        (job_of(JobState.HELD, why="held (by ada); its last"), [], "is held (by ada); its last. It waits for `sdrs"),
        (job_of(JobState.HELD, why="submitted by ada"), [], "is held: submitted by ada. It waits for `sdrs"),
        (
            job_of(JobState.FAILED, attempt=1, ended_unix_ms=NOW_MS - 1000),
            [attempt_of(ended_unix_ms=NOW_MS - 1000, verdict=CRASH)],
            "llm-1a2b failed 1s ago after 1 attempt: the worker on node-1 exited with 1: crash",
        ),
        (
            job_of(JobState.CANCELLED, why="cancelled (by ada)"),
            [],
            "was cancelled after 0 attempts: cancelled (by ada)",
        ),
        (
            job_of(JobState.QUEUED, wish=Wish.CANCEL, wish_note="by ada: wrong data"),
            [],
            "It was asked to cancel (by ada: wrong data), which is not carried out yet",
        ),
    ],
)
def test_why_is_a_sentence(job: Job, attempts: Sequence[Attempt], told: str) -> None:
    sentence = why_sentence(job, attempts, NOW_MS, idle=False)
    assert told in sentence
    assert ".." not in sentence
    idle = why_sentence(job, attempts, NOW_MS, idle=True)
    assert ("No scheduler is running" in idle) is not job.state.is_over


def test_what_is_left_of_budgets() -> None:
    retry = Retry(max=3, free_on=(), budgets={FailureClass.OUT_OF_MEMORY: 1})
    spent = {FailureClass.CRASH: 1, FailureClass.HANG: 1, FailureClass.OUT_OF_MEMORY: 1}
    job = job_of(JobState.QUEUED, spec=JobSpec("llm", "x", retry=retry), spent=spent, no_progress_count=2)
    assert budget_words(job) == "1 of 3 left; 0 of 1 for oom; 2 of 3 starts in a row without progress"


def test_places_are_told_in_runs_of_gpus() -> None:
    assert placement_words((Slot("a", (3, 0, 1, 7)), Slot("b", ()))) == "a: GPU 0-1, 3, 7; b"


def test_an_attempt_that_is_killed_for_something_is_ending_until_it_ended() -> None:
    states = [
        attempt_of(started_unix_ms=0),
        attempt_of(),
        attempt_of(running_unix_ms=NOW_MS),
        attempt_of(running_unix_ms=NOW_MS, warned_unix_ms=NOW_MS),
        attempt_of(running_unix_ms=NOW_MS, verdict=CRASH),
        attempt_of(running_unix_ms=NOW_MS, verdict=CRASH, ended_unix_ms=NOW_MS),
    ]
    told = ["scheduled", "starting", "running", "checkpointing", "ending", "ended"]
    assert [attempt_state(attempt) for attempt in states] == told


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryRecords())


def test_a_word_means_an_id_first_then_the_one_under_way_then_the_newest(ledger: Ledger) -> None:
    first = ledger.submit(JobSpec("llm", "x"), "ada", now_unix_ms=1)
    assert find_job(ledger, "llm").id == first.id
    # A job whose name is the id of another one.
    ledger.submit(JobSpec(first.id, "x"), "ada", now_unix_ms=2)
    assert find_job(ledger, first.id).id == first.id
    with pytest.raises(NotFoundError, match="job list --all"):
        find_job(ledger, "nobody")


def test_several_under_way_are_told_apart_by_ids(ledger: Ledger) -> None:
    ids = [
        ledger.submit(JobSpec("llm", "x", checkpoint=CheckpointWish(history=name)), "ada", now_unix_ms=1).id
        for name in ("a", "b")
    ]
    with pytest.raises(InvalidArgumentError) as caught:
        find_job(ledger, "llm")
    assert all(job_id in caught.value.message for job_id in ids)


def test_nobody_decides_without_a_fresh_lease(ledger: Ledger) -> None:
    assert is_idle(ledger)
    ledger.change({keys.LEASE: 0}, {keys.LEASE: Lease(1, "a", now_unix_ms(), 60.0)})
    assert not is_idle(ledger)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "wish"), [("n\n", Wish.NONE), ("y\n", Wish.CANCEL)])
def test_cancelling_what_runs_asks_on_a_terminal(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, answer: str, wish: Wish
) -> None:
    made = ledger.submit(JobSpec("llm", "x"), "ada", now_unix_ms=1)
    stored = ledger.job(made.id)
    ledger.change({stored.key: stored.revision}, {stored.key: replace(stored.value, state=JobState.RUNNING)})
    monkeypatch.setattr("sys.stdin", _Terminal(answer))
    found = ledger.job(made.id).value
    if wish is Wish.NONE:
        with pytest.raises(click.ClickException, match="nothing was done"):
            job_orders.cancel_job(Settings(), ledger, found, reason="", yes=False)
    else:
        job_orders.cancel_job(Settings(), ledger, found, reason="", yes=False)
    assert ledger.job(made.id).value.wish is wish


def test_what_waits_is_cancelled_without_a_question(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ledger.submit(JobSpec("llm", "x"), "ada", now_unix_ms=1)
    monkeypatch.setattr("sys.stdin", _Terminal(""))
    job_orders.cancel_job(Settings(), ledger, made, reason="", yes=False)
    assert ledger.job(made.id).value.wish is Wish.CANCEL
