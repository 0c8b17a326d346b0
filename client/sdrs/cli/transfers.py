"""``sdrs ckpt pull`` and ``push``: checkpoints as files on this machine, and back."""

from __future__ import annotations

from pathlib import Path

import click

from sdrs.cli.amounts import format_bytes, step_number
from sdrs.cli.checkpoint_arguments import job_argument, one_step, step_argument, step_option
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_note
from sdrs.cli.progress import byte_bar
from sdrs.cli.records import checkpoint_record
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.checkpoints import ContentKind


@click.command(
    cls=Verb,
    examples="""
    sdrs ckpt pull llm-7b restored/           the newest restorable one
    sdrs ckpt pull llm-7b 1000 restored/
    """,
)
@job_argument
@click.argument("step_and_dest", metavar="[STEP] DEST", nargs=-1, required=True)
@step_option
@click.pass_context
@pass_settings
def pull(
    settings: Settings, context: click.Context, job: str, step_and_dest: tuple[str, ...], step_named: int | None
) -> None:
    """Write a checkpoint into the folder DEST, verified.

    Files that were pushed come back as they were. The state of a training job comes as safetensors files, one folder
    for each rank: DEST/rank-00000/blob-0000.safetensors.
    """
    *steps, dest = step_and_dest
    if len(steps) > 1:
        raise click.UsageError("too many arguments: JOB [STEP] DEST is expected", context)
    step = one_step(step_number(steps[0]) if steps else None, step_named)
    with open_cluster(settings) as cluster:
        checkpoints = cluster.checkpoints(job)
        save = checkpoints.latest() if step is None else checkpoints.get(step)
        with byte_bar(settings, f"pulling {save.title}") as advance:
            if save.kind is ContentKind.FILES:
                save = checkpoints.restore_files(dest, step=step, progress=advance)
            else:
                save = checkpoints.export_state(dest, step=step, progress=advance)
    if settings.is_json:
        emit_json(checkpoint_record(save) | {"dest": dest})
    else:
        emit_note(settings, f"{save.title} is in {dest} ({format_bytes(save.size_bytes)}, verified)")


@click.command(
    cls=Verb,
    examples="""
    sdrs ckpt push llm-7b 1000 out/
    sdrs ckpt push llm-7b 1000 out/ --pool nightly
    """,
)
@job_argument
@step_argument
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--pool", metavar="NAME", help='Where to store it (the pool "default").')
@pass_settings
def push(settings: Settings, job: str, step: int, path: Path, pool: str | None) -> None:
    """Save a folder or file as a checkpoint.

    PATH becomes step STEP of JOB. Returns once it is committed.
    """
    with open_cluster(settings) as cluster:
        checkpoints = cluster.checkpoints(job, pool=pool)
        with byte_bar(settings, f"pushing {job} step {step}") as advance:
            saving = checkpoints.save_files(step=step, path=path)
            save = saving.wait()
    if settings.is_json:
        emit_json(checkpoint_record(save))
    else:
        emit_note(settings, f"{save.title} is committed at {save.level} ({format_bytes(save.size_bytes)})")
