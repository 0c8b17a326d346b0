"""What a scheduler and a launcher say by variables."""

from __future__ import annotations

import pytest

from sdrs.errors import InvalidArgumentError
from sdrs.job.environment import read_environment, resume_limit

LEAST = {"SDRS_JOB_ID": "llm-ab12", "SDRS_ATTEMPT": "1"}


def test_there_is_no_job_without_an_id() -> None:
    assert read_environment({}) is None
    assert read_environment({"SDRS_JOB_ID": "", "SDRS_ATTEMPT": "1"}) is None


def test_all_that_the_scheduler_says_is_read() -> None:
    facts = read_environment(
        {
            **LEAST,
            "SDRS_ATTEMPT": "3",
            "SDRS_JOB_NAME": "llm",
            "SDRS_RESUME_STEP": "1200",
            "SDRS_GRACE_SECONDS": "90.5",
            "SDRS_HISTORY": "llm-run",
            "SDRS_POOL": "prod",
            "SDRS_LEVEL": "L3",
            "SDRS_SAVE_INTERVAL_SECONDS": "600",
            "SDRS_NODE": "node-2",
            "SDRS_NODE_RANK": "1",
            "SDRS_NODE_COUNT": "2",
        }
    )
    assert facts
    assert (facts.id, facts.name, facts.attempt, facts.resume_step) == ("llm-ab12", "llm", 3, 1200)
    assert (facts.grace_seconds, facts.interval_seconds) == (90.5, 600.0)
    assert (facts.history, facts.pool, facts.level) == ("llm-run", "prod", "L3")
    assert (facts.node, facts.node_rank, facts.rank, facts.world_size) == ("node-2", 1, 1, 2)


@pytest.mark.parametrize("step", [{}, {"SDRS_RESUME_STEP": ""}])
def test_the_first_run_has_nothing_to_go_on_from(step: dict[str, str]) -> None:
    facts = read_environment(LEAST | step)
    assert facts
    assert facts.resume_step is None
    assert (facts.name, facts.history, facts.interval_seconds) == ("llm-ab12", "llm-ab12", 0.0)
    assert (facts.rank, facts.world_size) == (0, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SDRS_RESUME_STEP", "twelve"),
        ("SDRS_RESUME_STEP", "-1"),
        ("SDRS_RESUME_STEP", "9" * 30),
        ("SDRS_ATTEMPT", "run:3"),
        ("SDRS_GRACE_SECONDS", "a minute"),
        ("SDRS_GRACE_SECONDS", "nan"),
        ("SDRS_SAVE_INTERVAL_SECONDS", "-5"),
        ("RANK", "first"),
    ],
)
def test_what_is_malformed_is_named(name: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        read_environment(LEAST | {name: text})


def test_a_job_without_an_attempt_is_told_what_to_do() -> None:
    with pytest.raises(InvalidArgumentError, match="SDRS_ATTEMPT is not set"):
        read_environment({"SDRS_JOB_ID": "llm-ab12"})


def test_ranks_that_torchrun_started_again_are_left_to_the_scheduler() -> None:
    assert read_environment(LEAST | {"TORCHELASTIC_RESTART_COUNT": "0"})
    with pytest.raises(InvalidArgumentError, match="--max-restarts"):
        read_environment(LEAST | {"TORCHELASTIC_RESTART_COUNT": "1"})


@pytest.mark.parametrize(
    ("launched", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, (3, 8)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"}, (2, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SDRS_NODE_RANK": "0"}, (1, 2)),
        ({"SDRS_NODE_RANK": "1"}, (1, 2)),
    ],
)
def test_the_launcher_that_is_nearest_says_which_rank_this_is(
    launched: dict[str, str], expected: tuple[int, int]
) -> None:
    facts = read_environment(LEAST | launched)
    assert facts
    assert (facts.rank, facts.world_size) == expected


def test_only_the_jobs_own_history_goes_on_from_its_step() -> None:
    environment = LEAST | {"SDRS_HISTORY": "llm", "SDRS_RESUME_STEP": "7"}
    assert resume_limit(environment, "llm") == 7
    assert resume_limit(environment, "other") is None
    assert resume_limit({"SDRS_RESUME_STEP": "7"}, "llm") is None
