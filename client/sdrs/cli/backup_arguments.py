"""The options that several verbs of ``sdrs backup`` take."""

from __future__ import annotations

import click

from sdrs.cli.amounts import step_number
from sdrs.cli.completion import complete_job, complete_pool, complete_target
from sdrs.cli.settings import F


def target_option(function: F) -> F:
    return click.option(
        "--target", "target_name", default="", metavar="NAME", shell_complete=complete_target, help="Which one (all)."
    )(function)


def job_option(function: F) -> F:
    return click.option(
        "--job", default="", metavar="JOB", shell_complete=complete_job, help="Only this job's checkpoints."
    )(function)


def step_option(function: F) -> F:
    return click.option("--step", type=step_number, metavar="STEP", help="Only this one, with --job.")(function)


def pool_option(function: F) -> F:
    return click.option(
        "--pool", default="", metavar="POOL", shell_complete=complete_pool, help="Only this pool's checkpoints."
    )(function)


def wait_option(function: F) -> F:
    return click.option("--wait/--no-wait", default=True, help="Until it is done, with progress; else it goes on.")(
        function
    )


def check_step(job: str, step: int | None) -> None:
    if step is not None and not job:
        raise click.UsageError("--step is one of a job: name it with --job")
