"""Why attempts end: each class from its signs, the job file's policies first, and a sentence for people."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_scheduler.executors.executor import Exit
from sdrs_scheduler.jobs.classify import Evidence, classify
from sdrs_scheduler.jobs.job import Verdict
from sdrs_scheduler.jobs.spec import Action, FailureClass, FailurePolicy
from sdrs_scheduler.log_search import search_log

C = FailureClass


def ended(code: int | None = None, signal: int | None = None, **fields: object) -> Evidence:
    return Evidence(exits={"n1": Exit(code, signal)}, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("evidence", "failure"),
    [
        (ended(1), C.CRASH),
        (ended(signal=11), C.CRASH),
        (ended(139), C.CRASH),
        (ended(signal=9), C.KILLED),
        (ended(137), C.KILLED),
        (ended(143), C.KILLED),
        (ended(75), C.REQUEUED),
        (ended(93), C.NEVER_RESTART),
        (ended(200), C.TRANSIENT),
        (ended(210), C.PERMANENT),
        (ended(signal=9, lost_nodes={"n1": "down"}), C.NODE_LOST),
        (Evidence(is_traceless=True), C.NODE_LOST),
        (Evidence(detail="its shepherd was killed"), C.KILLED),
        (ended(signal=15, preempted_by_executor=True, detail="the machine goes down"), C.PREEMPTED),
        (ended(1, bad_gpus={"n1": {3: "Xid 79"}}), C.GPU),
        (ended(1, log_tail="CUDA error: uncorrectable ECC error encountered"), C.GPU),
        (Evidence(exits={"n1": Exit(signal=9, out_of_memory=True)}), C.OUT_OF_MEMORY),
        (ended(1, log_tail="torch.OutOfMemoryError: CUDA out of memory. Tried"), C.OUT_OF_MEMORY),
        (ended(1, nan_step=7), C.NOT_A_NUMBER),
        (ended(signal=6, log_tail="Watchdog caught collective operation timeout: WorkNCCL"), C.HANG),
        (ended(1, storage_events=("node n2 does not answer any more",)), C.STORAGE),
        (ended(1, log_tail="Traceback\nsdrs_core.errors.SaveFailedError: step 7"), C.STORAGE),
        (ended(1, log_tail="it said SaveFailedError: once"), C.CRASH),
        (ended(signal=15, warned_because="for x"), C.PREEMPTED),
        (ended(75, warned_because="for x"), C.PREEMPTED),
        (ended(93, warned_because="for x"), C.NEVER_RESTART),
        (ended(signal=15, preempted_by_executor=True), C.PREEMPTED),
        (Evidence(launch_error="no such file"), C.NOT_STARTED),
    ],
)
def test_each_class_is_known_by_its_signs(evidence: Evidence, failure: FailureClass) -> None:
    assert classify(evidence, ()).failure is failure


TORCHRUN = """
Failures:
[1]:
  exitcode  : 1 (pid: 14505)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {} (pid: 14504)  (SIGKILL)
"""


@pytest.mark.parametrize(
    ("code", "failure"),
    [(-9, C.KILLED), (75, C.REQUEUED), (93, C.NEVER_RESTART), (210, C.PERMANENT), (1, C.CRASH), (-11, C.CRASH)],
)
def test_what_a_worker_of_torchrun_did_counts_and_not_torchruns_own_exit(code: int, failure: FailureClass) -> None:
    assert classify(ended(1, log_tail=TORCHRUN.format(code)), ()).failure is failure


def test_a_command_that_was_not_found_is_told_as_that() -> None:
    assert "its command was not found" in classify(ended(127), ()).sentence


@pytest.mark.parametrize("before", ["", "[rank0]: ", "[1,0]<stderr>:"])
def test_what_python_raised_last_is_told(before: str) -> None:
    log = ["KeyError: 'first'", "During handling of the above", "my.own.ShapeError: 3 != 4", "ended."]
    sentence = classify(ended(1, log_tail="\n".join(before + line for line in log)), ()).sentence
    assert sentence.endswith("exited with 1: crash (my.own.ShapeError: 3 != 4)")


def test_success_is_all_workers_and_no_lost_node() -> None:
    both = {"n1": Exit(0), "n2": Exit(0)}
    assert classify(Evidence(exits=both), ()).failure is None
    assert classify(Evidence(exits=both, lost_nodes={"n2": "gone"}), ()).failure is C.NODE_LOST
    assert classify(Evidence(exits={"n1": Exit(0), "n2": Exit(3)}), ()).failure is C.CRASH


def test_a_job_that_finished_although_it_was_warned_is_done() -> None:
    assert classify(ended(0, warned_because="for x"), ()).failure is None


def test_the_worker_that_failed_first_is_told() -> None:
    exits = {"n2": Exit(signal=9), "n1": Exit(signal=15)}
    verdict = classify(Evidence(exits=exits, lost_nodes={"n2": "its storage daemon is down"}), ())
    assert verdict.sentence == (
        "the worker on n2 was killed by signal 9 (SIGKILL) while n2 was down (its storage daemon is down): node lost"
    )
    assert verdict.blamed_node == "n2"


def judged(evidence: Evidence, policies: tuple[FailurePolicy, ...]) -> Verdict:
    """As the scheduler does: patterns are looked for first."""
    searched = search_log([policy.match for policy in policies], evidence.log_tail)
    evidence = replace(evidence, pattern_matches=searched.found, pattern_failures=searched.failed)
    return classify(evidence, policies)


def test_policies_of_the_job_file_come_first_in_their_order() -> None:
    policies = (
        FailurePolicy("by code", Action.REQUEUE, exit_codes=(7,)),
        FailurePolicy("ecc", Action.EXCLUDE_NODE, match=r"uncorrectable\s+ECC"),
        FailurePolicy("any ecc", Action.FAIL, match="ECC"),
    )
    verdict = judged(ended(1, log_tail="an uncorrectable ECC error"), policies)
    assert (verdict.policy, verdict.action, verdict.blamed_node) == ("ecc", Action.EXCLUDE_NODE, "n1")
    assert verdict.failure is C.GPU
    assert judged(ended(7, log_tail="uncorrectable ECC"), policies).policy == "by code"
    assert judged(ended(1, log_tail="ECC"), policies).action is Action.FAIL
    assert judged(ended(1), policies).policy == ""


def test_both_conditions_of_a_policy_must_hold() -> None:
    policies = (FailurePolicy("both", Action.FAIL, match="bad", exit_codes=(2,)),)
    assert judged(ended(2, log_tail="bad"), policies).policy == "both"
    assert judged(ended(1, log_tail="bad"), policies).policy == ""
    assert judged(ended(2, log_tail="good"), policies).policy == ""


def test_a_pattern_that_never_ends_is_given_up_and_told_and_the_others_count() -> None:
    policies = (
        FailurePolicy("for ever", Action.FAIL, match="(a+)+b"),
        FailurePolicy("broken", Action.FAIL, match="(a"),
        FailurePolicy("sane", Action.REQUEUE, match="NCCL error"),
    )
    verdict = judged(ended(1, log_tail="a" * 60 + "\nNCCL error\n"), policies)
    assert (verdict.policy, verdict.action) == ("sane", Action.REQUEUE)
    assert 'policy "for ever" was not tried: it was not done after' in verdict.sentence
    assert 'policy "broken" was not tried: it is no regular expression' in verdict.sentence


@given(
    st.builds(
        Evidence,
        exits=st.dictionaries(
            st.sampled_from(["n1", "n2"]),
            st.builds(Exit, st.none() | st.integers(0, 255), st.none() | st.integers(1, 64), st.booleans()),
        ),
        lost_nodes=st.dictionaries(st.sampled_from(["n1"]), st.text(max_size=5)),
        log_tail=st.text(max_size=50),
        storage_events=st.lists(st.text(max_size=5), max_size=2).map(tuple),
        nan_step=st.none() | st.integers(0, 9),
        warned_because=st.sampled_from(["", "for x"]),
        launch_error=st.sampled_from(["", "no"]),
        is_traceless=st.booleans(),
    )
)
def test_anything_that_can_be_seen_has_a_class_and_a_sentence(evidence: Evidence) -> None:
    verdict = classify(evidence, ())
    assert verdict.sentence
    assert (verdict.failure is None) == evidence.is_success
