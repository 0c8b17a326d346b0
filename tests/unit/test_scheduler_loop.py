"""The loop over twins: a job's life, its failures, wishes, and schedulers that are killed at any moment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_core.levels import Level
from sdrs_scheduler.entries import dump
from sdrs_scheduler.executors.executor import LaunchOrder
from sdrs_scheduler.jobs.job import JobState, Wish
from sdrs_scheduler.jobs.resume import Check
from sdrs_scheduler.jobs.spec import (
    Action,
    Backoff,
    CheckpointWish,
    FailureClass,
    FailurePolicy,
    HangWatch,
    Resources,
    Resume,
    Retry,
)
from sdrs_scheduler.policy.view import Queue
from tests.support.memory_executor import MemoryExecutor
from tests.support.scheduling import Stage, spec


def test_a_job_runs_and_succeeds() -> None:
    stage = Stage()
    job_id = stage.running()
    order = stage.world.runs[stage.run(job_id)].order
    assert order.environment["SDRS_JOB_ID"] == job_id
    assert order.environment["SDRS_ATTEMPT"] == "1"
    assert order.environment["SDRS_RESUME_STEP"] == ""
    assert stage.storage.attempts["llm"] == (job_id, 1)
    stage.end(job_id, code=0)
    job = stage.reach(job_id, JobState.SUCCEEDED)
    assert job.slots == ()
    assert "forget" in stage.deeds(f"{job_id}.1")
    states = [line.text for line in job.story]
    assert any("attempt 1 starts on" in text and "from the beginning" in text for text in states)


def test_a_crash_is_charged_and_restarted_from_the_newest_verified_checkpoint() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.storage.save("llm", 100)
    stage.storage.save("llm", 200)
    stage.until(lambda: stage.attempts(job_id)[0].durable_step == 200, "the durable step on record")
    stage.end(job_id, code=1)
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    first, second = stage.attempts(job_id)
    assert first.verdict is not None
    assert (first.verdict.failure, first.verdict.charged) == (FailureClass.CRASH, True)
    assert second.resume_step == 200
    assert 200 in stage.storage.verified
    assert stage.world.runs[f"{job_id}.2"].order.environment["SDRS_RESUME_STEP"] == "200"
    assert stage.storage.attempts["llm"] == (job_id, 2)
    assert "exited with 1: crash, retry 1 of 3" in stage.job(job_id).why


def test_a_damaged_newest_checkpoint_is_passed_over_and_told() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.storage.save("llm", 100)
    stage.storage.save("llm", 200)
    stage.storage.checks[200] = Check(False, "blob of rank 0 is gone")
    stage.end(job_id, code=1)
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    attempt = stage.attempts(job_id)[1]
    assert attempt.resume_step == 100
    assert "step 200 is damaged: blob of rank 0 is gone" in attempt.resume_note
    assert any("step 200 is damaged" in line.text for line in stage.job(job_id).story)


def test_latest_is_taken_without_verification() -> None:
    stage = Stage()
    stage.storage.save("llm", 100)
    job_id = stage.running(spec(checkpoint=CheckpointWish(resume=Resume.LATEST)))
    assert stage.attempts(job_id)[0].resume_step == 100
    assert stage.storage.verified == []


def test_budgets_end_in_failure_and_count_anew_after_progress() -> None:
    stage = Stage()
    job_id = stage.running(spec(retry=Retry(max=1, backoff=Backoff(1, 2), no_progress_limit=0)))
    stage.end(job_id, code=1)
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    stage.storage.save("llm", 10)
    stage.until(lambda: stage.job(job_id).progress_step == 10, "progress")
    stage.end(job_id, code=1)
    stage.until(lambda: stage.job(job_id).attempt == 3 and stage.is_in(job_id, JobState.RUNNING), "attempt 3")
    stage.end(job_id, code=1)
    job = stage.reach(job_id, JobState.FAILED)
    assert job.attempt == 3
    assert "its only retry is spent" in job.why


def test_a_crash_loop_without_progress_ends() -> None:
    stage = Stage()
    retry = Retry(max=100, backoff=Backoff(1, 2), no_progress_limit=3, free_on=tuple(FailureClass))
    job_id = stage.submit(spec(retry=retry))
    for number in (1, 2, 3):
        stage.until(
            lambda n=number: stage.job(job_id).attempt == n and stage.is_in(job_id, JobState.RUNNING),
            f"attempt {number}",  # type: ignore[misc]
        )
        stage.end(job_id, code=1)
    assert "no new durable step" in stage.reach(job_id, JobState.FAILED).why


@pytest.mark.parametrize(
    ("code", "state", "failure"),
    [
        (75, JobState.RUNNING, FailureClass.REQUEUED),
        (93, JobState.FAILED, FailureClass.NEVER_RESTART),
        (200, JobState.RUNNING, FailureClass.TRANSIENT),
        (210, JobState.FAILED, FailureClass.PERMANENT),
    ],
)
def test_exit_codes_of_the_contract(code: int, state: JobState, failure: FailureClass) -> None:
    stage = Stage()
    job_id = stage.running()
    stage.end(job_id, code=code)
    stage.until(lambda: stage.attempts(job_id)[0].ended_unix_ms, "the end")
    stage.reach(job_id, state)
    verdict = stage.attempts(job_id)[0].verdict
    assert verdict is not None
    assert verdict.failure is failure
    assert verdict.charged is (code == 200)


def test_a_worker_that_dies_with_its_node_is_charged_to_nobody_and_restarts_elsewhere() -> None:
    stage = Stage()
    job_id = stage.running()
    node = stage.job(job_id).slots[0].node
    stage.world.lose(node, "its storage daemon is down")
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    verdict = stage.attempts(job_id)[0].verdict
    assert verdict is not None
    assert (verdict.failure, verdict.charged, verdict.blamed_node) == (FailureClass.NODE_LOST, False, node)
    assert stage.job(job_id).slots[0].node != node
    assert stage.ledger.nodes()[node].value.strikes


def test_a_job_that_came_to_its_end_is_done_also_if_its_node_is_down_by_then() -> None:
    stage = Stage()
    job_id = stage.running()
    (slot,) = stage.job(job_id).slots
    stage.set_node(slot.node, is_up=False, problem="its storage daemon is down")
    stage.end(job_id, code=0)
    job = stage.reach(job_id, JobState.SUCCEEDED, JobState.QUEUED)
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)


def test_a_node_with_many_strikes_is_cordoned_until_somebody_opens_it() -> None:
    stage = Stage(nodes=1)
    for name in ("a", "b", "c"):
        job_id = stage.running(spec(name, retry=Retry(max=0)))
        stage.world.say(stage.run(job_id), "NVRM: Xid 79")
        stage.end(job_id, code=1)
        stage.reach(job_id, JobState.FAILED, JobState.QUEUED)
        if stage.ledger.nodes()["n1"].value.cordoned_because:
            break
    assert "gpu" in stage.ledger.nodes()["n1"].value.cordoned_because
    stage.until(lambda: stage.storage.cordons, "the cordon at the storage")
    waiting = stage.submit(spec("later"))
    stage.until(lambda: "cordoned" in stage.job(waiting).why or "n1" in stage.job(waiting).why, "why it waits")
    stage.tick(20)
    assert stage.is_in(waiting, JobState.QUEUED)
    stage.storage.cordons.clear()
    stage.reach(waiting, JobState.RUNNING)
    assert stage.ledger.nodes()["n1"].value.cordoned_because == ""


def test_trouble_of_the_storage_costs_no_retry() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.storage.trouble.append((stage.clock.unix_ms(), "node n3 does not answer any more"))
    stage.end(job_id, code=1)
    stage.until(lambda: stage.attempts(job_id)[0].ended_unix_ms, "the end")
    verdict = stage.attempts(job_id)[0].verdict
    assert verdict is not None
    assert (verdict.failure, verdict.charged) == (FailureClass.STORAGE, False)


def test_trouble_of_the_storage_from_before_it_began_is_not_why_it_ended() -> None:
    stage = Stage()
    stage.storage.trouble.append((stage.clock.unix_ms(), "node n3 does not answer any more"))
    stage.tick(2)
    job_id = stage.running()
    stage.end(job_id, code=1)
    stage.until(lambda: stage.attempts(job_id)[0].ended_unix_ms, "the end")
    verdict = stage.attempts(job_id)[0].verdict
    assert verdict is not None
    assert (verdict.failure, verdict.charged) == (FailureClass.CRASH, True)


def test_a_hang_has_its_stacks_dumped_before_it_is_killed() -> None:
    stage = Stage()
    job_id = stage.running(spec(hang=HangWatch(heartbeat_seconds=5)))
    stage.beat(job_id, step=3)
    stage.until(lambda: stage.job(job_id).attempt == 2, "the restart")
    deeds = stage.deeds(f"{job_id}.1")
    assert deeds.index("dump_stacks") < deeds.index("kill")
    verdict = stage.attempts(job_id)[0].verdict
    assert verdict is not None
    assert verdict.failure is FailureClass.HANG
    assert "no sign of life" in verdict.sentence


def test_one_that_was_found_to_hang_and_came_to_its_end_all_the_same_is_done() -> None:
    stage = Stage()
    job_id = stage.running(spec(hang=HangWatch(heartbeat_seconds=5)))
    stage.beat(job_id, step=3)
    stage.until(lambda: "dump_stacks" in stage.deeds(f"{job_id}.1"), "its stacks")
    stage.end(job_id, code=0)
    job = stage.reach(job_id, JobState.SUCCEEDED)
    assert (job.attempt, job.spent) == (1, {})


def test_a_job_without_step_progress_hangs_and_one_that_saves_does_not() -> None:
    stage = Stage()
    job_id = stage.running(spec(hang=HangWatch(heartbeat_seconds=0, progress_seconds=5)))
    for _ in range(60):
        stage.beat(job_id, step=3, saving=True)
        stage.tick()
    assert stage.is_in(job_id, JobState.RUNNING)
    for _ in range(60):
        if stage.job(job_id).attempt == 1:
            stage.beat(job_id, step=3)
        stage.tick()
    verdict = stage.attempts(job_id)[0].verdict
    assert verdict is not None
    assert "at step 3" in verdict.sentence


def test_a_job_that_beats_is_not_ended_because_the_controller_was_away() -> None:
    stage = Stage()
    job_id = stage.running(spec(hang=HangWatch(heartbeat_seconds=5)))
    stage.beat(job_id, step=3)
    stage.tick(4)
    stage.records.is_reachable = False
    stage.tick(100)
    stage.records.is_reachable = True
    stage.tick(8)
    assert stage.attempts(job_id)[0].verdict is None
    stage.beat(job_id, step=4)
    stage.tick(8)
    assert stage.attempts(job_id)[0].verdict is None
    assert stage.is_in(job_id, JobState.RUNNING)


def test_nan_goes_back_one_generation_more() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.storage.save("llm", 100)
    stage.storage.save("llm", 200)
    stage.tick(12)
    stage.beat(job_id, step=210, nan_step=205)
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    assert stage.attempts(job_id)[1].resume_step == 100
    # It dies before it saved anything: never back to where the NaN came from.
    stage.end(job_id, code=1)
    stage.until(lambda: stage.job(job_id).attempt == 3 and stage.is_in(job_id, JobState.RUNNING), "attempt 3")
    assert stage.attempts(job_id)[2].resume_step == 100


def test_the_job_files_policies_come_first() -> None:
    stage = Stage()
    policies = (FailurePolicy("oom", Action.FAIL, "CUDA out of memory"),)
    job_id = stage.running(spec(failure_policies=policies))
    stage.world.say(stage.run(job_id), "RuntimeError: CUDA out of memory. Tried to allocate")
    stage.end(job_id, code=1)
    job = stage.reach(job_id, JobState.FAILED)
    assert 'policy "oom" says fail' in job.why


def test_a_node_that_a_policy_excludes_is_not_used_again() -> None:
    stage = Stage()
    policies = (FailurePolicy("ecc", Action.EXCLUDE_NODE, "uncorrectable"),)
    job_id = stage.running(spec(failure_policies=policies))
    node = stage.job(job_id).slots[0].node
    stage.world.say(stage.run(job_id), "uncorrectable")
    stage.end(job_id, code=1)
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    assert stage.job(job_id).excluded_nodes == (node,)
    assert stage.job(job_id).slots[0].node != node
    assert any(f"{node} is left out" in line.text for line in stage.job(job_id).story)


def test_a_wish_that_comes_in_the_moment_of_a_change_is_not_lost() -> None:
    stage = Stage()
    job_id = stage.submit()
    stage.tick()

    def race(compare: object, put: dict[str, bytes]) -> None:
        if f"schedule/job/{job_id}" in put:
            stage.records.before_change = lambda compare, put: None
            stage.ledger.wish(job_id, Wish.CANCEL, "ann")

    stage.records.before_change = race  # type: ignore[assignment]
    stage.reach(job_id, JobState.CANCELLED)


def test_the_generation_that_an_attempt_goes_on_from_stays() -> None:
    stage = Stage()
    stage.storage.save("llm", 1)
    job_id = stage.running(spec(checkpoint=CheckpointWish(keep=1)))
    for step in (2, 3):
        stage.storage.save("llm", step)
        stage.clock.seconds += 1
    stage.until(lambda: [g.step for g in stage.storage.generations("llm")] == [3, 1], "the one between to go")
    stage.tick(20)
    assert stage.attempts(job_id)[0].resume_step in [g.step for g in stage.storage.generations("llm")]
    stage.end(job_id, code=0)
    stage.until(lambda: [g.step for g in stage.storage.generations("llm")] == [3], "all but the newest to go")


def test_a_preempted_job_is_freed_as_soon_as_its_checkpoint_is_durable() -> None:
    stage = Stage(nodes=1, gpus=2)
    low = stage.running(spec("low", priority=10, resources=Resources(1, 2)))
    stage.storage.save("low", 10)
    stage.clock.seconds += 120
    high = stage.submit(spec("high", priority=90, resources=Resources(1, 2)))
    stage.reach(low, JobState.CHECKPOINTING)
    assert "warn TERM" in stage.deeds(f"{low}.1")
    assert stage.job(high).is_promised
    stage.until(lambda: stage.orders(low).get("save") is True, "the order to save")
    stage.tick(20)
    assert stage.is_in(low, JobState.CHECKPOINTING)
    assert "kill" not in stage.deeds(f"{low}.1")
    stage.storage.save("low", 20, Level.L1)
    stage.tick(8)
    assert stage.is_in(low, JobState.CHECKPOINTING)
    stage.storage.raise_levels("low", Level.L2)
    stage.reach(high, JobState.RUNNING)
    attempt = stage.attempts(low)[0]
    assert attempt.verdict is not None
    assert (attempt.verdict.failure, attempt.verdict.charged) == (FailureClass.PREEMPTED, False)
    assert attempt.durable_step == 20
    stage.end(high, code=0)
    stage.until(lambda: stage.job(low).attempt == 2 and stage.is_in(low, JobState.RUNNING), "its return")
    assert stage.attempts(low)[1].resume_step == 20


def test_a_preempted_job_that_does_not_save_goes_after_the_grace() -> None:
    stage = Stage(nodes=1, gpus=2)
    low = stage.running(spec("low", priority=10))
    stage.clock.seconds += 120
    stage.submit(spec("high", priority=90))
    job = stage.reach(low, JobState.CHECKPOINTING)
    stage.reach(low, JobState.QUEUED)
    attempt = stage.attempts(low)[0]
    assert attempt.ended_unix_ms - attempt.warned_unix_ms >= job.spec.checkpoint.grace_seconds * 1000 - 1000


@pytest.mark.parametrize(
    "state", [JobState.SUBMITTED, JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.HELD]
)
@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD])
def test_cancel_and_hold_are_carried_out_from_any_state(state: JobState, wish: Wish) -> None:
    if (state, wish) == (JobState.HELD, Wish.HOLD):
        return
    stage = Stage()
    job_id = stage.submit(spec(resources=Resources(1, 64 if state is JobState.QUEUED else 2)))
    if state is JobState.HELD:
        stage.ledger.wish(job_id, Wish.HOLD, "ann")
    if state is not JobState.SUBMITTED:
        stage.reach(job_id, state)
    stage.ledger.wish(job_id, wish, "ann: not now")
    job = stage.reach(job_id, JobState.CANCELLED if wish is Wish.CANCEL else JobState.HELD)
    assert (job.wish, job.slots) == (Wish.NONE, ())
    assert "ann: not now" in job.why
    assert not any(run.running for run in stage.world.runs.values())
    if wish is Wish.HOLD:
        stage.ledger.wish(job_id, Wish.RELEASE, "ann")
        stage.reach(job_id, JobState.QUEUED, JobState.RUNNING)


def test_requeue_brings_a_running_job_and_a_failed_one_back() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.ledger.wish(job_id, Wish.REQUEUE, "ann")
    stage.reach(job_id, JobState.CHECKPOINTING)
    stage.storage.save("llm", 5)
    stage.until(lambda: stage.job(job_id).attempt == 2 and stage.is_in(job_id, JobState.RUNNING), "attempt 2")
    assert stage.attempts(job_id)[1].resume_step == 5
    stage.end(job_id, code=210)
    stage.reach(job_id, JobState.FAILED)
    stage.ledger.wish(job_id, Wish.REQUEUE, "ann")
    stage.until(lambda: stage.job(job_id).attempt == 3 and stage.is_in(job_id, JobState.RUNNING), "attempt 3")


def test_dependencies_are_waited_for_and_explained() -> None:
    stage = Stage()
    prep = stage.running(spec("prep"))
    job_id = stage.submit(spec(depends_on=("prep",)))
    stage.until(lambda: "prep (running)" in stage.job(job_id).why, "why it waits")
    stage.end(prep, code=93)
    stage.reach(prep, JobState.FAILED)
    stage.tick(2)
    assert "prep (failed: requeue it" in stage.job(job_id).why
    stage.ledger.wish(prep, Wish.REQUEUE, "ann")
    stage.reach(prep, JobState.RUNNING)
    stage.end(prep, code=0)
    stage.reach(job_id, JobState.RUNNING)


def test_a_queue_that_does_not_exist_is_told() -> None:
    stage = Stage()
    job_id = stage.submit(spec(queue="reserch"))
    stage.until(lambda: 'queue "reserch" does not exist' in stage.job(job_id).why, "why it waits")
    stage.ledger.put_queue(Queue("reserch"))
    stage.reach(job_id, JobState.RUNNING)


def test_bad_gpus_get_no_work() -> None:
    stage = Stage(nodes=1, gpus=4)
    stage.set_node("n1", bad_gpus={0: "Xid 79", 2: "ECC"})
    job_id = stage.running(spec(resources=Resources(1, 2)))
    assert stage.job(job_id).slots[0].gpus == (1, 3)


def test_a_time_limit_ends_the_job_for_good() -> None:
    stage = Stage()
    job_id = stage.running(spec(time_limit_seconds=30))
    job = stage.reach(job_id, JobState.FAILED)
    assert "time limit of 30 s" in job.why


def test_what_can_never_start_is_not_tried_for_ever() -> None:
    stage = Stage()

    def refuse(order: object) -> None:
        raise InvalidArgumentError("workdir /nowhere does not exist")

    for executor in (stage.parts.scheduler._desk.means.executors["local"],):
        executor.launch = refuse  # type: ignore[method-assign]
    job_id = stage.submit(spec(retry=Retry(max=1, backoff=Backoff(1, 1))))
    job = stage.reach(job_id, JobState.FAILED)
    assert "could not be started: workdir /nowhere does not exist" in job.why
    assert job.attempt == 2


def test_generations_beyond_keep_are_deleted_but_not_held_ones() -> None:
    stage = Stage()
    job_id = stage.running(spec(checkpoint=CheckpointWish(keep=2)))
    stage.storage.save("llm", 1, held=True)
    for step in (2, 3, 4, 5):
        stage.storage.save("llm", step)
        stage.clock.seconds += 1
    stage.until(lambda: [g.step for g in stage.storage.generations("llm")] == [5, 4, 1], "the old ones to go")
    assert stage.is_in(job_id, JobState.RUNNING)


def test_jobs_that_are_over_for_long_are_forgotten_unless_somebody_waits_for_them() -> None:
    stage = Stage()
    prep = stage.running(spec("prep"))
    stage.end(prep, code=0)
    stage.reach(prep, JobState.SUCCEEDED)
    other = stage.running(spec("other"))
    stage.end(other, code=0)
    stage.reach(other, JobState.SUCCEEDED)
    waiting = stage.submit(spec(depends_on=("prep",), resources=Resources(1, 64)))
    stage.clock.seconds += 2000
    stage.until(lambda: other not in {stored.value.id for stored in stage.ledger.jobs()}, "the old one to go")
    assert {stored.value.id for stored in stage.ledger.jobs()} == {prep, waiting}
    assert stage.ledger.attempts(other) == []
    assert stage.ledger.claim("other") is None
    assert stage.ledger.claim("prep") is not None
    assert f"{other}.1" not in stage.world.forgotten_logs
    assert f"{prep}.1" in stage.world.forgotten_logs


def test_interval_auto_is_told_to_the_job() -> None:
    stage = Stage()
    job_id = stage.running(spec(checkpoint=CheckpointWish(interval_auto=True)))
    stage.storage.save("llm", 1)
    stage.clock.seconds += 60
    stage.until(lambda: float(str(stage.orders(job_id).get("interval_seconds", 0))) > 10, "the advice")


def test_a_checkpoint_that_is_out_of_reach_is_waited_for_without_holding_nodes() -> None:
    stage = Stage()
    job_id = stage.running()
    stage.storage.save("llm", 100)
    stage.storage.save("llm", 200)
    for step in (100, 200):
        stage.storage.checks[step] = Check(None, "node n3 is down")
    stage.end(job_id, code=1)
    stage.until(lambda: "step 200 is out of reach (node n3 is down)" in stage.job(job_id).why, "why it waits")
    for _ in range(3):
        stage.clock.seconds += 100
        stage.tick(40)
    job = stage.job(job_id)
    assert (job.state, job.slots) == (JobState.QUEUED, ()), "never from the beginning while both may come back"
    stage.storage.checks[100] = Check(True)
    stage.reach(job_id, JobState.RUNNING)
    attempt = stage.attempts(job_id)[-1]
    assert attempt.resume_step == 100
    assert "step 200 is out of reach: node n3 is down" in attempt.resume_note


def test_a_checkpoint_that_comes_back_in_time_is_taken() -> None:
    stage = Stage()
    stage.storage.save("llm", 100)
    stage.storage.save("llm", 200)
    stage.storage.checks[200] = Check(None, "node n3 is down")
    job_id = stage.submit()
    stage.until(lambda: "out of reach" in stage.job(job_id).why, "why it waits")
    stage.tick(40)
    stage.storage.checks[200] = Check(True)
    stage.reach(job_id, JobState.RUNNING)
    assert stage.attempts(job_id)[-1].resume_step == 200


def test_jobs_are_read_one_by_one_as_they_change_and_those_that_are_over_never_again() -> None:
    stage = Stage()
    stage.tick(4)
    before = dict(stage.records.ranged)
    first = stage.running()
    stage.world.end(stage.run(first))
    stage.reach(first, JobState.SUCCEEDED)
    second = stage.running(spec("other"))
    stage.ledger.wish(second, Wish.CANCEL, "ann")
    stage.reach(second, JobState.CANCELLED)
    assert {prefix: stage.records.ranged[prefix] for prefix in before} == before
    stage.clock.seconds += 2000
    stage.until(lambda: not stage.ledger.jobs(), "finished jobs to be forgotten")
    stage.tick()
    assert not stage.parts.book.jobs


def test_a_job_whose_record_nobody_takes_does_not_stop_the_others() -> None:
    stage = Stage()
    bad, good = stage.running(spec("bad")), stage.running(spec("good"))

    def refuse(compare: Mapping[str, int], put: Mapping[str, bytes]) -> None:
        if f"schedule/job/{bad}" in put:
            raise InvalidArgumentError("the record is too large")

    stage.records.before_change = refuse
    stage.end(bad, code=0)
    stage.end(good, code=0)
    stage.reach(good, JobState.SUCCEEDED)


def test_what_is_told_of_a_job_stays_within_a_record_however_long_other_peoples_words_are() -> None:
    stage = Stage()
    with pytest.raises(InvalidArgumentError, match="bytes, 131072 are allowed"):
        stage.submit(spec("too-long", environment={"X": "x" * (128 << 10)}))
    stage.storage.save("llm", 1)
    for step in range(2, 5):
        stage.storage.save("llm", step)
        stage.storage.checks[step] = Check(False, "very " * 10_000 + "bad")
    job_id = stage.running(spec(retry=Retry(max=50, no_progress_limit=0, backoff=Backoff(0.1, 0.1))))
    for attempt in range(2, 20):
        stage.end(job_id, code=1)
        stage.until(lambda: stage.is_in(job_id, JobState.RUNNING) and stage.job(job_id).attempt >= attempt, "again")  # noqa: B023
    assert len(dump(stage.job(job_id))) < 128 << 10
    assert all(len(dump(attempt)) < 16 << 10 for attempt in stage.attempts(job_id))
    assert "step 4 is damaged: very very" in stage.attempts(job_id)[0].resume_note


def test_why_it_does_not_start_yet_is_told() -> None:
    stage = Stage()
    launch = MemoryExecutor.launch

    def full(executor: MemoryExecutor, order: LaunchOrder) -> None:
        raise UnavailableError("its folder takes no files: free its disk")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryExecutor, "launch", full)
        job_id = stage.submit()
        stage.until(lambda: "takes no files: free its disk" in stage.job(job_id).why, "the reason")
        assert stage.is_in(job_id, JobState.STARTING)
    assert MemoryExecutor.launch is launch
    assert "does not start" not in stage.reach(job_id, JobState.RUNNING).why
