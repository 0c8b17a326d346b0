"""docs/jobs.md tells of every field and of every variable that there is, and of none that is not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from sdrs_scheduler.cli.jobs import job
from sdrs_scheduler.cli.queues import queue
from sdrs_scheduler.jobs import job_file
from sdrs_scheduler.jobs.spec import Action, FailureClass

DOC = (Path(__file__).resolve().parents[2] / "docs" / "jobs.md").read_text()
TABLE = DOC.partition("| field |")[2].partition("\n\n")[0]


def fields() -> set[str]:
    top: Mapping[str, object] = job_file.job_table(0.0)
    plain = set(top) - set(job_file.SECTIONS)
    return plain | {f"{title}.{name}" for title, table in job_file.SECTIONS.items() for name in table}


def test_the_table_has_exactly_the_fields_of_the_parser() -> None:
    told = {name for line in TABLE.splitlines()[2:] for name in re.findall(r"`([a-z_.]+)`", line.split("|")[1])}
    assert told == fields()


@pytest.mark.parametrize("name", [*job_file.FAILURE_POLICY, *job_file.BACKOFF, *Action, *FailureClass])
def test_what_fields_may_hold_is_named(name: str) -> None:
    assert re.search(rf"\b{name}\b", DOC)


def test_every_verb_is_told_and_exists() -> None:
    for verb in job.commands:
        assert re.search(rf"sdrs job {verb}\b|`{verb}`", DOC), verb
    for group, verb in re.findall(r"sdrs (job|queue) ([a-z]+)", DOC):
        assert verb in {"job": job, "queue": queue}[group].commands
