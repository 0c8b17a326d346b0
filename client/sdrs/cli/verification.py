"""``sdrs ckpt verify``: read every stored byte again, where it lies, and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli import failures
from sdrs.cli.amounts import format_bytes
from sdrs.cli.checkpoint_arguments import (
    find_checkpoint,
    job_argument,
    list_of_known_job,
    one_step,
    optional_step_argument,
)
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_note
from sdrs.cli.progress import byte_bar
from sdrs.cli.records import Record
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.checkpoints import Save

if TYPE_CHECKING:
    from sdrs import Checkpoints, Verification


@click.command(
    cls=Verb,
    examples="""
    sdrs ckpt verify llm-7b                 the newest
    sdrs ckpt verify llm-7b 1000
    sdrs ckpt verify llm-7b --all -o json
    """,
)
@job_argument
@optional_step_argument
@click.option("--all", "every", is_flag=True, help="Every checkpoint of the job.")
@click.pass_context
@pass_settings
def verify(
    settings: Settings, context: click.Context, job: str, step_given: int | None, step_named: int | None, every: bool
) -> None:
    """Check the stored bytes of a checkpoint.

    The nodes read every byte again and compare it with its checksum. Exits with 1 if any are corrupt or
    missing, 3 if only some could not be looked at because their node is down.
    """
    step = one_step(step_given, step_named)
    if every and step is not None:
        raise click.UsageError("--all and STEP contradict each other: give one")
    with open_cluster(settings) as cluster:
        checkpoints = cluster.checkpoints(job)
        saves = list_of_known_job(cluster, job) if every else [find_checkpoint(cluster, job, step)]
        found = [_verify_one(settings, checkpoints, save) for save in saves]
    if settings.is_json:
        records = [_verification_record(save, result) for save, result in found]
        emit_json(records if every else records[0])
    elif not found:
        emit_note(settings, f'job "{job}" has no checkpoints')
    problems = [problem for _, result in found for problem in result.problems]
    if any(not problem.undecided for problem in problems):
        context.exit(failures.FAILED)
    if problems:
        context.exit(failures.DEGRADED)


def _verify_one(settings: Settings, checkpoints: Checkpoints, save: Save) -> tuple[Save, Verification]:
    with byte_bar(settings, f"verifying {save.title}") as advance:
        result = checkpoints.verify(save.step, progress=advance)
    for problem in result.problems:
        where = f"rank {problem.rank}, blob {problem.blob_id} on {problem.node_id}"
        undecided = "undecided: " if problem.undecided else ""  # otherwise the problem begins with its own verdict
        emit_note(settings, f"{save.title}: {where}: {undecided}{problem.problem}")
    if not result.problems:
        emit_note(settings, f"{save.title}: ok, {format_bytes(result.checked_bytes)} read and compared")
    return save, result


def _verification_record(save: Save, result: Verification) -> Record:
    return {
        "job": save.job,
        "step": save.step,
        "ok": result.ok,
        "checked_bytes": result.checked_bytes,
        "problems": [
            {
                "rank": problem.rank,
                "blob_id": problem.blob_id,
                "node_id": problem.node_id,
                "problem": problem.problem,
                "undecided": problem.undecided,
            }
            for problem in result.problems
        ],
    }
