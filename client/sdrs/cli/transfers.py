"""``sdrs ckpt pull`` and ``push``: checkpoints as files on this machine, and back."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from sdrs.cli import failures
from sdrs.cli.amounts import format_bytes, step_number
from sdrs.cli.checkpoint_arguments import find_checkpoint, job_argument, one_step, step_argument, step_option
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_note, emit_warning
from sdrs.cli.progress import Advance, byte_bar
from sdrs.cli.records import checkpoint_record
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs.errors import RestoreWarning
from sdrs.save.compression import Compress
from sdrs_core.checkpoints import ContentKind, Save

if TYPE_CHECKING:
    from sdrs import Checkpoints


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
    for each rank: DEST/rank-00000/blob-0000.safetensors. Without STEP it is the newest that can be restored; exits
    with 3 if newer ones had to be passed over.
    """
    *steps, dest = step_and_dest
    if len(steps) > 1:
        raise click.UsageError("too many arguments: JOB [STEP] DEST is expected", context)
    step = one_step(step_number(steps[0]) if steps else None, step_named)
    target = Path(dest)
    if target.exists() and not target.is_dir():
        raise click.UsageError(f"{dest} exists and is not a folder: give another DEST", context)
    with open_cluster(settings) as cluster:
        found = find_checkpoint(cluster, job, step)
        # The SDK warns when it goes back to an older generation; here that is part of the answer.
        with byte_bar(settings, f"pulling {found.title}") as advance, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RestoreWarning)
            save = _pull(cluster.checkpoints(job), found, step, target, advance)
    passed_over = [str(warning.message) for warning in caught if issubclass(warning.category, RestoreWarning)]
    for words in passed_over:
        emit_warning(settings, words)
    if settings.is_json:
        emit_json(checkpoint_record(save) | {"dest": dest, "passed_over": passed_over})
    else:
        emit_note(settings, f"{save.title} is in {dest} ({format_bytes(save.size_bytes)}, verified)")
    if passed_over:
        context.exit(failures.DEGRADED)


def _pull(checkpoints: Checkpoints, found: Save, step: int | None, dest: Path, advance: Advance) -> Save:
    """``found`` tells what to expect; which generation it becomes is decided by what can be read."""
    if found.kind is ContentKind.STATE:
        return checkpoints.export_state(dest, step, progress=advance)
    # A pull only looks: it must never count as the job's resumption, whatever the environment says.
    if found.world_size == 1:
        return checkpoints.restore_files(dest, step, resume=False, progress=advance)
    save = checkpoints.restore_files(dest / "rank-00000", step, rank=0, resume=False, progress=advance)
    for rank in range(1, save.world_size):
        checkpoints.restore_files(dest / f"rank-{rank:05}", save.step, rank=rank, resume=False, progress=advance)
    return save


@click.command(
    cls=Verb,
    examples="""
    sdrs ckpt push llm-7b 1000 out/
    sdrs ckpt push llm-7b 1000 out/ --pool nightly
    """,
)
@job_argument
@step_argument
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pool", metavar="NAME", help='Where to store it (the pool "default").')
@click.option("--compress", type=click.Choice(get_args(Compress)), help="Store it compressed where that pays.")
@pass_settings
def push(settings: Settings, job: str, step: int, path: Path, pool: str | None, compress: Compress | None) -> None:
    """Save a folder as a checkpoint.

    PATH becomes step STEP of JOB; this returns once it is committed. A push counts as a new attempt of the job: do not
    push to one that is training, its processes would be told to stop.
    """
    with open_cluster(settings) as cluster:
        checkpoints = cluster.checkpoints(job, pool=pool, compress=compress)
        with byte_bar(settings, f"pushing {job} step {step}") as advance:
            save = checkpoints.save_files(step, path, progress=advance).wait()
    if settings.is_json:
        emit_json(checkpoint_record(save))
    else:
        stored = f", {format_bytes(save.stored_bytes)} stored" if save.stored_bytes < save.size_bytes else ""
        emit_note(settings, f"{save.title} is committed at {save.level} ({format_bytes(save.size_bytes)}{stored})")
