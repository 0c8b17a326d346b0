"""P1: which start of a job is speaking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdrs_core.attempts import Attempt, Job, admit, attempt_from_environment, parse_attempt
from sdrs_core.errors import InvalidArgumentError, StaleAttemptError
from sdrs_core.ids import JobName

JOB = Job(JobName("llm-7b"))
# What torchrun sets when it is started without --rdzv-id.
UNNAMED = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_dgo_16k5/none_x7k2p9qd/attempt_1/0/error.json",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
}


@pytest.mark.parametrize(
    ("text", "run", "ordinal"),
    [
        ("7", "sdrs", 7),
        ("run:7", "run", 7),
        ("a:b:7", "a:b", 7),
        ("run", "run", 0),
        ("run:", "run:", 0),
        (":7", ":7", 0),
        ("run:seven", "run:seven", 0),
        ("run:²", "run:²", 0),
        ("9" * 30, "9" * 30, 0),
    ],
)
def test_an_attempt_is_read_from_text(text: str, run: str, ordinal: int) -> None:
    assert parse_attempt(text, "me") == Attempt(run, ordinal, "me")


@given(st.text(min_size=1))
def test_any_text_names_an_attempt(text: str) -> None:
    found = parse_attempt(text, "me")
    assert found.run
    assert found.ordinal >= 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"SDRS_ATTEMPT": "run:3", "SLURM_JOB_ID": "9"}, Attempt("run", 3, "me")),
        ({"SDRS_JOB_ID": "llm-ab12", "SDRS_ATTEMPT": "3", "SLURM_JOB_ID": "9"}, Attempt("job:llm-ab12", 3, "me")),
        ({"SDRS_JOB_ID": "llm-ab12", "SDRS_ATTEMPT": "run:3"}, Attempt("run", 3, "me")),
        ({"SDRS_JOB_ID": "", "SDRS_ATTEMPT": "3"}, Attempt("sdrs", 3, "me")),
        ({"SDRS_JOB_ID": "llm-ab12", "SLURM_JOB_ID": "9"}, Attempt("slurm:9", 0, "me")),
        ({"SLURM_JOB_ID": "9"}, Attempt("slurm:9", 0, "me")),
        ({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "2"}, Attempt("slurm:9", 2, "me")),
        ({"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "4"}, Attempt("torchrun:r", 4, "me")),
        (
            {"TORCHELASTIC_RUN_ID": "r", "SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "1"},
            Attempt("slurm:9:1:torchrun:r", 0, "me"),
        ),
        (UNNAMED, Attempt("torchrun:none_x7k2p9qd", 1, "me")),
        (UNNAMED | {"WORLD_SIZE": "4"}, None),  # on two hosts, whose folders differ
        (UNNAMED | {"TORCHELASTIC_ERROR_FILE": ""}, None),
        (UNNAMED | {"WORLD_SIZE": "4", "SLURM_JOB_ID": "9"}, Attempt("slurm:9:0:torchrun:none", 1, "me")),
    ],
)
def test_the_launcher_names_the_attempt(environment: dict[str, str], expected: Attempt | None) -> None:
    assert attempt_from_environment(environment, "me") == expected


def test_a_launcher_that_counts_in_words_is_told_so() -> None:
    with pytest.raises(InvalidArgumentError, match="SLURM_RESTART_COUNT"):
        attempt_from_environment({"SLURM_JOB_ID": "9", "SLURM_RESTART_COUNT": "two"}, "me")


def test_the_current_attempt_may_speak_again_whoever_its_rank_is() -> None:
    job, number = admit(JOB, Attempt("run", 1, "rank 0"), None)
    assert number == 1
    assert admit(job, Attempt("run", 1, "rank 1"), 1) == (job, 1)


def test_an_attempt_that_was_superseded_is_refused_by_name_of_its_successor() -> None:
    first, _ = admit(JOB, Attempt("a", 0, "host-1"), None)
    second, number = admit(first, Attempt("b", 0, "host-2"), None)
    assert number == 2
    with pytest.raises(StaleAttemptError, match="host-2"):
        admit(second, Attempt("a", 0, "host-1"), 1)


def test_an_earlier_start_of_the_same_run_is_refused_though_it_was_never_heard_of() -> None:
    job, _ = admit(JOB, Attempt("run", 5, "me"), None)
    with pytest.raises(StaleAttemptError):
        admit(job, Attempt("run", 4, "me"), None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=20))
def test_attempts_are_numbered_upwards_and_none_returns_after_another(spoken: list[tuple[str, int]]) -> None:
    job, heard = JOB, dict[tuple[str, int], int]()
    for run, ordinal in spoken:
        known = [number for (other, count), number in heard.items() if other == run and count >= ordinal]
        try:
            admitted, number = admit(job, Attempt(run, ordinal, "me"), known[0] if known else None)
        except StaleAttemptError:
            assert known
            assert admitted_is_current(job, run, ordinal) is False
            continue
        assert number in (job.attempt, job.attempt + 1)
        assert (number == job.attempt) == admitted_is_current(job, run, ordinal)
        job = admitted
        heard[(run, ordinal)] = number
    assert len(set(heard.values())) == len(heard)


def admitted_is_current(job: Job, run: str, ordinal: int) -> bool:
    return job.attempt > 0 and (job.run, job.ordinal) == (run, ordinal)


def test_what_lies_after_the_point_of_a_resume_is_left_behind() -> None:
    job = Job(JobName("llm-7b"), attempt=3, resumed_attempt=2, resumed_step=20)
    assert job.left_behind(attempt=1, step=21)
    assert not job.left_behind(attempt=1, step=20)
    assert not job.left_behind(attempt=2, step=21)
    assert not JOB.left_behind(attempt=1, step=1)
    newer, _ = admit(job, Attempt("run", 9, "me"), None)
    assert newer.left_behind(attempt=1, step=21)
