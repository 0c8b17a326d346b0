from __future__ import annotations

import os

import pytest

from sdrs.attempt import resolve_attempt
from sdrs.errors import AttemptRequiredError
from sdrs_core.attempts import Attempt


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SDRS_ATTEMPT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


def test_what_is_given_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDRS_ATTEMPT", "launched:3")
    given = Attempt("mine", 4, "me")
    assert resolve_attempt(given, "job", 8) is given
    assert resolve_attempt("run:2", "job", 8).run == "run"
    assert resolve_attempt(7, "job", 1).ordinal == 7
    launched = resolve_attempt(None, "job", 8)
    assert (launched.run, launched.ordinal) == ("launched", 3)
    assert str(os.getpid()) in launched.owner


def test_one_process_alone_opens_one_run_for_each_job() -> None:
    first = resolve_attempt(None, "job-a", 1)
    assert resolve_attempt(None, "job-a", 1) == first
    assert resolve_attempt(None, "job-b", 1).run != first.run


def test_several_ranks_without_an_attempt_are_told_how_to_name_one() -> None:
    with pytest.raises(AttemptRequiredError, match="SDRS_ATTEMPT") as caught:
        resolve_attempt(None, "job", 2)
    assert "torchrun" in str(caught.value)
    assert "attempt=" in str(caught.value)


def test_a_forked_child_is_another_attempt() -> None:
    mine = resolve_attempt(None, "forking", 1).run
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, resolve_attempt(None, "forking", 1).run.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() not in ("", mine)
