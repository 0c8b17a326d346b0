"""JOB and STEP, in this order everywhere; where STEP may be left out, --step is accepted as well."""

from __future__ import annotations

import click

from sdrs.cli.amounts import step_number
from sdrs.cli.completion import complete_job, complete_step
from sdrs.cli.settings import F


def job_argument(function: F) -> F:
    return click.argument("job", shell_complete=complete_job)(function)


def step_argument(function: F) -> F:
    return click.argument("step", type=step_number, shell_complete=complete_step)(function)


def optional_step_argument(function: F) -> F:
    argument = click.argument(
        "step_given", metavar="[STEP]", type=step_number, required=False, shell_complete=complete_step
    )
    return argument(step_option(function))


def step_option(function: F) -> F:
    words = "The checkpoint, if not given as STEP; the newest by default."
    return click.option("--step", "step_named", type=step_number, metavar="STEP", help=words)(function)


def one_step(given: int | None, named: int | None) -> int | None:
    """The step that was asked for, None for the newest."""
    if given is not None and named is not None and given != named:
        raise click.UsageError(f"step {given} and --step {named} contradict each other: give one")
    return given if given is not None else named
