"""``sdrs job submit`` and ``clone``: from a checked file to jobs on record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sdrs.cli.connection import open_cluster
from sdrs.cli.failures import FAILED
from sdrs.cli.output import emit_json, emit_note, emit_warning
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError, SdrsError
from sdrs_core.ids import check_name
from sdrs_core.levels import parse_level
from sdrs_scheduler.cli.following import follow
from sdrs_scheduler.cli.job_names import complete_queue, find_job, job_argument, now_unix_ms, user_name, warn_if_idle
from sdrs_scheduler.cli.job_records import job_record
from sdrs_scheduler.cli.job_words import state_words
from sdrs_scheduler.jobs.job import Job, JobState
from sdrs_scheduler.jobs.job_file import JobDocument, read_job_file
from sdrs_scheduler.jobs.spec import MAX_PRIORITY, JobSpec
from sdrs_scheduler.ledger import Ledger

if TYPE_CHECKING:
    from sdrs import Cluster


@click.command(
    "submit",
    cls=Verb,
    examples="""
    sdrs job submit llm.yaml
    sdrs job submit llm.yaml --queue research --priority 80
    sdrs job submit llm.yaml --hold              waits for `sdrs job release`
    sdrs job submit llm.yaml -w                  until it is over; exit 0 if it succeeded
    sdrs job submit llm.yaml -o json | jq -r '.[].id'
    """,
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--hold", "held", is_flag=True, help="Do not start it before `sdrs job release`.")
@click.option("--queue", metavar="QUEUE", shell_complete=complete_queue, help="Instead of the file's.")
@click.option("--priority", type=click.IntRange(0, MAX_PRIORITY), metavar="P", help="Instead of the file's, 0 to 100.")
@click.option("-w", "--wait", is_flag=True, help="Follow it until it is over; exit 0 if it succeeded, else 1.")
@pass_settings
@click.pass_context
def submit(
    context: click.Context,
    settings: Settings,
    file: Path,
    held: bool,
    queue: str | None,
    priority: int | None,
    wait: bool,
) -> None:
    """Submit the jobs of a file.

    It holds one, or several documents separated by ---. They are on record when this returns, also while no scheduler
    runs. All of a file are checked before the first is submitted. Commands run in the folder in which this was called,
    unless the file gives a workdir.
    """
    documents = read_job_file(file, time.time())
    changes: dict[str, Any] = {
        name: value for name, value in (("queue", queue), ("priority", priority)) if value is not None
    }
    documents = [
        replace(document, spec=replace(document.spec, workdir=_workdir(document.spec), **changes))
        for document in documents
    ]
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        if queue is not None and (problem := _missing_queue(settings, ledger, queue)):
            raise click.BadParameter(problem, param_hint="--queue")
        for document in documents:
            if queue is None and (problem := _missing_queue(settings, ledger, document.spec.queue)):
                raise document.wrong("queue", problem)
            _check_pool(cluster, document)
        _check_dependencies(ledger, documents)
        jobs = _submit_all(settings, cluster, ledger, documents, held=held)
        warn_if_idle(settings, ledger)
        if wait:
            jobs = follow(ledger, [job.id for job in jobs], lambda job: emit_followed(settings, job))
        if settings.is_json:
            emit_json([job_record(job) for job in jobs])
    if wait and any(job.state is not JobState.SUCCEEDED for job in jobs):
        context.exit(FAILED)


def emit_followed(settings: Settings, job: Job) -> None:
    emit_note(settings, f"{job.id} {state_words(job)}" + (f": {job.why}" if job.why else ""))


def _workdir(spec: JobSpec) -> str:
    """As it is where the command is given: another machine, or a scheduler's folder, means nothing to its author."""
    return str(Path.cwd() / Path(spec.workdir).expanduser())


def _missing_queue(settings: Settings, ledger: Ledger, name: str) -> str:
    """What is wrong with it, if it is not there; one that is closed is only told of."""
    stored = ledger.queues().get(name)
    if stored is None:
        return f'"{name}" does not exist: make it with `sdrs queue create {name}`'
    if not stored.value.is_open:
        emit_warning(settings, f'queue "{name}" is closed: its jobs wait until `sdrs queue set {name} --open`')
    return ""


def _check_pool(cluster: Cluster, document: JobDocument) -> None:
    wish = document.spec.checkpoint
    if not wish.pool:
        return
    try:
        pool = cluster.pool(wish.pool).pool
    except NotFoundError:
        raise document.wrong(
            "checkpoint.pool", f'"{wish.pool}" does not exist: `sdrs pool list` shows those there are'
        ) from None
    if wish.level and parse_level(wish.level) > pool.level:
        what = f"{wish.level} is more than pool {pool.name} gives ({pool.level}): lower it, or take another pool"
        raise document.wrong("checkpoint.level", what)


def _check_dependencies(ledger: Ledger, documents: Sequence[JobDocument]) -> None:
    in_file = {document.spec.name for document in documents}
    for document in documents:
        for index, name in enumerate(document.spec.depends_on):
            if name in in_file:
                continue
            path = f"depends_on[{index}]"
            try:
                found = ledger.find(name).value
            except NotFoundError:
                what = f'there is no job "{name}", neither by id nor by name, nor in this file: submit it first'
                raise document.wrong(path, what) from None
            if found.state in (JobState.FAILED, JobState.CANCELLED):
                what = f"job {found.id} is {found.state}, so that this one would never start: requeue that one first"
                raise RefusedError(document.wrong(path, what).message, job=found.id)


def _submit_all(
    settings: Settings, cluster: Cluster, ledger: Ledger, documents: Sequence[JobDocument], *, held: bool
) -> list[Job]:
    jobs: dict[str, Job] = {}
    waiting = list(documents)
    while waiting:
        # Those first that others of this file wait for: there are no cycles, so one is always next.
        document = next(one for one in waiting if not {other.spec.name for other in waiting} & set(one.spec.depends_on))
        waiting.remove(document)
        try:
            made = _submit_one(ledger, document, held=held)
        except SdrsError as error:
            if not jobs:
                raise
            before = ", ".join(job.id for job in jobs.values())
            raise type(error)(f"{error.message} (submitted before it: {before})", **error.facts) from None
        jobs[document.spec.name] = made
        emit_note(settings, f"job {made.id} is submitted to queue {made.spec.queue}" + (", held" if held else ""))
        _tell_history(settings, cluster, made)
    return [jobs[document.spec.name] for document in documents]


def _submit_one(ledger: Ledger, document: JobDocument, *, held: bool) -> Job:
    user = user_name()
    try:
        return ledger.submit(document.spec, user, now_unix_ms=now_unix_ms(), note=f"submitted by {user}", held=held)
    except AlreadyExistsError as error:
        path = "checkpoint.history" if document.spec.checkpoint.history else "name"
        raise RefusedError(document.wrong(path, error.message).message, **error.facts) from None


def _tell_history(settings: Settings, cluster: Cluster, job: Job) -> None:
    try:
        newest = cluster.checkpoints(job.spec.history).latest()
    except NotFoundError:
        return
    if newest is not None:
        text = f'it continues the history "{job.spec.history}", whose newest checkpoint is step {newest.step}'
        emit_note(settings, text)


@click.command(
    "clone",
    cls=Verb,
    examples="""
    sdrs job clone llm-7b                        once more, from its newest checkpoint
    sdrs job clone llm-7b --name llm-7b-lr2      from the beginning, with a history of its own
    """,
)
@job_argument
@click.option("--name", metavar="NAME", help="Its name; with another one it has a history of its own.")
@pass_settings
def clone(settings: Settings, job_word: str, name: str | None) -> None:
    """Submit a job again as it was. Under its old name it goes on with the checkpoints of the first."""
    if name is not None:
        check_name(name, "job name")
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        origin = find_job(ledger, job_word)
        spec = replace(origin.spec, depends_on=tuple(origin.depends_on))
        if name is not None and name != spec.name:
            spec = replace(spec, name=name, checkpoint=replace(spec.checkpoint, history=""))
        if spec.deadline_unix and spec.deadline_unix <= time.time():
            emit_warning(settings, f"the deadline of {origin.id} is over: the clone has none")
            spec = replace(spec, deadline_unix=0.0)
        if problem := _missing_queue(settings, ledger, spec.queue):
            raise NotFoundError(f"the queue of {origin.id}, {problem}")
        user = user_name()
        try:
            made = ledger.submit(spec, user, now_unix_ms=now_unix_ms(), note=f"cloned from {origin.id} by {user}")
        except AlreadyExistsError as error:
            raise RefusedError(f"{error.message}; or clone it under another --name", **error.facts) from None
        emit_note(settings, f"job {made.id} is submitted to queue {made.spec.queue}")
        _tell_history(settings, cluster, made)
        warn_if_idle(settings, ledger)
    if settings.is_json:
        emit_json(job_record(made))
