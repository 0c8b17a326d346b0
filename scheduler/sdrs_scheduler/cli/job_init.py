"""``sdrs job init``: a job file to start from."""

from __future__ import annotations

import re
from pathlib import Path

import click

from sdrs.cli.output import emit_json, emit_note
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.errors import AlreadyExistsError
from sdrs_scheduler.jobs.templates import SCRIPT_NAME, TEMPLATES

_DEFAULT_NAME = "my-job"


@click.command(
    "init",
    cls=Verb,
    examples="""
    sdrs job init
    sdrs job init llm.yaml --template torchrun
    sdrs job init llm.yaml --template mpi --no-script
    """,
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=Path("job.yaml"))
@click.option(
    "--template", "kind", type=click.Choice(list(TEMPLATES)), default="python", help="For which launcher (python)."
)
@click.option("--no-script", is_flag=True, help=f"Only the job file, no {SCRIPT_NAME}.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
@pass_settings
def init(settings: Settings, file: Path, kind: str, no_script: bool, force: bool) -> None:
    """Write a job file to start from, and a script.

    The file (job.yaml) has comments, and the small training script beside it keeps the contract with the scheduler. The
    job is named after the file. No cluster is needed.
    """
    template = TEMPLATES[kind]
    contents = {file: template.job_text(_name_from(file))}
    if not no_script:
        contents[file.with_name(SCRIPT_NAME)] = template.script
    taken = [str(path) for path in contents if path.exists()]
    if taken and not force:
        raise AlreadyExistsError(f"{', '.join(taken)} exists: pass --force to replace it, or give another name")
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    if settings.is_json:
        emit_json({"template": kind, "files": [str(path) for path in contents]})
        return
    there = f"cd {file.parent} && " if str(file.parent) != "." else ""
    emit_note(settings, f"wrote {' and '.join(map(str, contents))}; go on with `{there}sdrs job submit {file.name}`")


def _name_from(file: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", file.name.removesuffix(file.suffix)).strip("-._")
    return name[:64] if name not in ("", "job") else _DEFAULT_NAME
