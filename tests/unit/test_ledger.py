"""Jobs on record: what is refused, and that nobody's change is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdrs_core.errors import AlreadyExistsError, CorruptDataError, NotFoundError, RefusedError
from sdrs_scheduler import keys
from sdrs_scheduler.entries import Stored, dump, parse
from sdrs_scheduler.jobs.job import Attempt, Job, JobId, JobState, Slot, Wish
from sdrs_scheduler.jobs.spec import Action, CheckpointWish, FailureClass, FailurePolicy, JobSpec, Retry
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.policy.view import Queue
from tests.support.memory_records import MemoryRecords


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryRecords())


def spec(name: str = "llm", **fields: object) -> JobSpec:
    return JobSpec(name, "python train.py", **fields)  # type: ignore[arg-type]


def in_state(ledger: Ledger, job: Job, state: JobState) -> Stored[Job]:
    stored = ledger.job(job.id)
    assert ledger.change({stored.key: stored.revision}, {stored.key: replace(stored.value, state=state)})
    return ledger.job(job.id)


def test_a_job_is_read_as_it_was_written() -> None:
    full = spec(
        retry=Retry(budgets={FailureClass.HANG: 2}),
        failure_policies=(FailurePolicy("ecc", Action.EXCLUDE_NODE, "uncorrectable ECC", (1, 2)),),
        environment={"A": "b"},
    )
    job = Job("llm-1", full, "ann", 5, slots=(Slot("n1", (0, 1)),), spent={FailureClass.CRASH: 1})  # type: ignore[arg-type]
    assert parse("k", dump(job), Job) == job
    words = Job("llm-1", spec(), "ann", 5)  # type: ignore[arg-type]
    assert parse("k", dump(words), Job).spec.command == "python train.py"


def test_a_damaged_record_is_named() -> None:
    with pytest.raises(CorruptDataError, match="schedule/job/x"):
        parse("schedule/job/x", b'{"id": 1}', Job)


def test_a_submitted_job_is_found_by_id_and_by_name(ledger: Ledger) -> None:
    job = ledger.submit(spec(), "ann", now_unix_ms=1000)
    assert job.id.startswith("llm-")
    assert ledger.find(job.id).value == ledger.find("llm").value == job
    with pytest.raises(NotFoundError, match="job list"):
        ledger.find("other")


def test_two_active_jobs_on_one_history_are_refused(ledger: Ledger) -> None:
    first = ledger.submit(spec(), "ann", now_unix_ms=1000)
    with pytest.raises(AlreadyExistsError, match=first.id):
        ledger.submit(spec("other", checkpoint=CheckpointWish(history="llm")), "bob", now_unix_ms=1001)
    in_state(ledger, first, JobState.SUCCEEDED)
    assert ledger.submit(spec(), "bob", now_unix_ms=1002).id != first.id


def test_of_two_submissions_at_the_same_time_one_gets_the_history() -> None:
    records = MemoryRecords()
    ledger, other = Ledger(records), Ledger(records)
    raced: list[Job] = []

    def race(compare: object, put: object) -> None:
        records.before_change = lambda compare, put: None
        raced.append(other.submit(spec(), "bob", now_unix_ms=1))

    records.before_change = race
    with pytest.raises(AlreadyExistsError):
        ledger.submit(spec(), "ann", now_unix_ms=2)
    assert [stored.value.id for stored in ledger.jobs()] == [raced[0].id]


def test_dependencies_become_ids(ledger: Ledger) -> None:
    prep = ledger.submit(spec("prep"), "ann", now_unix_ms=1)
    job = ledger.submit(spec(depends_on=("prep", prep.id)), "ann", now_unix_ms=2)
    assert job.depends_on == (prep.id,)
    with pytest.raises(NotFoundError, match="nothing"):
        ledger.submit(spec("more", depends_on=("nothing",)), "ann", now_unix_ms=3)


def test_a_wish_is_kept_until_the_scheduler_takes_it(ledger: Ledger) -> None:
    job = ledger.submit(spec(), "ann", now_unix_ms=1)
    ledger.wish(job.id, Wish.CANCEL, "ann: wrong data")
    assert (ledger.job(job.id).value.wish, ledger.job(job.id).value.wish_note) == (Wish.CANCEL, "ann: wrong data")


@pytest.mark.parametrize(
    ("state", "wish"),
    [
        (JobState.SUCCEEDED, Wish.CANCEL),
        (JobState.FAILED, Wish.HOLD),
        (JobState.RUNNING, Wish.RELEASE),
        (JobState.QUEUED, Wish.REQUEUE),
        (JobState.HELD, Wish.REQUEUE),
        (JobState.QUEUED, Wish.PREEMPT),
    ],
)
def test_a_wish_without_sense_is_refused(ledger: Ledger, state: JobState, wish: Wish) -> None:
    job = ledger.submit(spec(), "ann", now_unix_ms=1)
    in_state(ledger, job, state)
    with pytest.raises(RefusedError, match=job.id):
        ledger.wish(job.id, wish, "ann")


def test_a_job_that_is_over_comes_back_only_while_its_history_is_free(ledger: Ledger) -> None:
    first = ledger.submit(spec(), "ann", now_unix_ms=1)
    in_state(ledger, first, JobState.FAILED)
    second = ledger.submit(spec(), "bob", now_unix_ms=2)
    with pytest.raises(AlreadyExistsError, match=second.id):
        ledger.wish(first.id, Wish.REQUEUE, "ann")
    in_state(ledger, second, JobState.CANCELLED)
    ledger.wish(first.id, Wish.REQUEUE, "ann")
    in_state(ledger, first, JobState.QUEUED)
    with pytest.raises(AlreadyExistsError, match=first.id):
        ledger.submit(spec(), "bob", now_unix_ms=3)


def test_a_change_of_somebody_else_in_between_is_not_lost() -> None:
    records = MemoryRecords()
    ledger = Ledger(records)
    job = ledger.submit(spec(), "ann", now_unix_ms=1)

    def race(compare: object, put: object) -> None:
        records.before_change = lambda compare, put: None
        Ledger(records).set_priority(job.id, 90, "bob", now_unix_ms=2)

    records.before_change = race
    ledger.wish(job.id, Wish.HOLD, "ann")
    assert (ledger.job(job.id).value.spec.priority, ledger.job(job.id).value.wish) == (90, Wish.HOLD)


def test_queues_are_made_changed_and_deleted(ledger: Ledger) -> None:
    assert set(ledger.queues()) == {"default"}
    ledger.put_queue(Queue("research", gpus=8))
    ledger.put_queue(Queue("research", gpus=16))
    assert ledger.queues()["research"].value.gpus == 16
    ledger.submit(spec(queue="research"), "ann", now_unix_ms=1)
    with pytest.raises(RefusedError, match="1 active"):
        ledger.delete_queue("research")
    with pytest.raises(NotFoundError):
        ledger.delete_queue("other")
    in_state(ledger, ledger.find("llm").value, JobState.CANCELLED)
    ledger.delete_queue("research")
    assert set(ledger.queues()) == {"default"}


def test_attempts_are_listed_by_number(ledger: Ledger) -> None:
    for number in (2, 10, 1):
        attempt = Attempt(JobId("llm-1"), number, (), "local")
        ledger.change({}, {keys.attempt("llm-1", number): attempt})
    assert [stored.value.number for stored in ledger.attempts("llm-1")] == [1, 2, 10]
