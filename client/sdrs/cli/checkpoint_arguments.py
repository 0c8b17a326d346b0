"""JOB and STEP, in this order everywhere; where STEP may be left out, --step is accepted as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli.amounts import step_number
from sdrs.cli.completion import complete_job, complete_step
from sdrs.cli.settings import F
from sdrs_core.checkpoints import Save
from sdrs_core.errors import NotFoundError

if TYPE_CHECKING:
    from sdrs import Cluster

_NAMES_SHOWN = 10


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


def list_of_known_job(cluster: Cluster, job: str, *, all_states: bool = False) -> list[Save]:
    """A job's checkpoints, newest first. A job that never saved is an error: it is likely to be a wrong name."""
    saves = cluster.checkpoints(job).list(all_states=all_states)
    if not saves:
        names = [known.name for known in cluster.jobs()]
        if job not in names:
            shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
            raise NotFoundError(f'job "{job}" is not known here; known jobs: {shown or "none yet"}', job=job)
    return saves


def find_checkpoint(cluster: Cluster, job: str, step: int | None) -> Save:
    """The checkpoint of ``step``, or the newest."""
    checkpoints = cluster.checkpoints(job)
    found = checkpoints.latest() if step is None else checkpoints.get(step)
    if found is None:
        list_of_known_job(cluster, job)
        raise NotFoundError(f'job "{job}" has no checkpoint', job=job)
    return found
