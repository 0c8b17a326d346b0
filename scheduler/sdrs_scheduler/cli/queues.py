"""``sdrs queue``: who may have how much, always and at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.settings import F, Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from sdrs_core.ids import check_name
from sdrs_scheduler.cli.job_names import complete_queue, now_unix_ms
from sdrs_scheduler.cli.job_records import Record, job_record, queue_record
from sdrs_scheduler.cli.job_words import job_listing
from sdrs_scheduler.jobs.job import Job
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.policy.view import Queue

_MOST_GPUS = 1_000_000
_NO_LIMIT = -1


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs queue create research --gpus 16
    sdrs queue list
    sdrs queue set research --weight 2
    """,
)
def queue() -> None:
    """Create and change queues: what each may always have, and what it may borrow.

    GPUs of a quota that are idle are lent to other queues, and taken back by preemption when they are needed.
    """


def gpu_count(text: str) -> int:
    """A number of GPUs, or `none`, for which -1 stands: None is an option that was not given."""
    if text == "none":
        return _NO_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and int(text) <= _MOST_GPUS):
        raise click.BadParameter(f"{text!r} is no number of GPUs: give 0 to {_MOST_GPUS}, or none")
    return int(text)


def _options(function: F) -> F:
    """Those that `create` and `set` share."""
    for option in (
        click.option("--open/--closed", "is_open", default=None, help="Whether its jobs are started."),
        click.option(
            "--reclaims/--no-reclaims", default=None, help="Whether it takes back by preemption what it has lent."
        ),
        click.option(
            "--weight", type=click.FloatRange(0, 1000, min_open=True), metavar="W", help="Its fair share (1)."
        ),
        click.option(
            "--max-gpus", type=gpu_count, metavar="N", help="At most so many, also when others are idle; none: all."
        ),
        click.option("--gpus", type=gpu_count, metavar="N", help="Its quota; none: it lives on what is idle."),
    ):
        function = option(function)
    return function


@queue.command("list", examples="sdrs queue list\nsdrs queue list -o json")
@pass_settings
def list_queues(settings: Settings) -> None:
    """List the queues with their quotas, and what they use."""
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        jobs = _jobs(ledger)
        records = [queue_record(stored.value, jobs) for _, stored in sorted(ledger.queues().items())]
    if settings.is_json:
        emit_json(records)
    else:
        emit_listing(settings, _listing(records))


@queue.command("show", examples="sdrs queue show research")
@click.argument("name", shell_complete=complete_queue)
@pass_settings
def show(settings: Settings, name: str) -> None:
    """Show one queue and the jobs in it."""
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        found, jobs = _get(ledger, name), _jobs(ledger)
    mine = [job for job in jobs if job.spec.queue == name and not job.state.is_over]
    record = queue_record(found, jobs)
    if settings.is_json:
        emit_json(record | {"jobs": [job_record(job) for job in mine]})
        return
    facts = {
        "queue": name,
        "state": record["state"],
        "quota": _amount(found.gpus, "none: it lives on what is idle"),
        "at most": _amount(found.max_gpus, "all that are idle"),
        "uses": f"{record['used_gpus']} GPUs",
        "weight": f"{found.weight:g}",
        "takes back what it lent": "yes" if found.reclaims else "no",
    }
    emit_facts(settings, facts)
    emit_note(settings, "")
    emit_listing(settings, job_listing(mine, now_unix_ms(), "no job is in it"))


@queue.command(
    "create",
    examples="""
    sdrs queue create research --gpus 16
    sdrs queue create nightly --max-gpus 8 --weight 0.5
    """,
)
@click.argument("name")
@_options
@pass_settings
def create(settings: Settings, /, name: str, **options: Any) -> None:
    """Create a queue."""
    check_name(name, "queue name")
    made = _changed(Queue(name), options)
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        if name in ledger.queues():
            raise AlreadyExistsError(f'queue "{name}" exists: change it with `sdrs queue set {name}`', queue=name)
        ledger.put_queue(made)
    _emit(settings, made, "is created")


@queue.command(
    "set",
    examples="""
    sdrs queue set research --gpus 32
    sdrs queue set research --max-gpus none
    sdrs queue set nightly --closed            what runs goes on, nothing new starts
    """,
)
@click.argument("name", shell_complete=complete_queue)
@_options
@pass_settings
def set_queue(settings: Settings, /, name: str, **options: Any) -> None:
    """Change a queue; what is not named stays as it is."""
    if all(value is None for value in options.values()):
        raise click.UsageError(
            "nothing to change: name at least one of --gpus, --max-gpus, --weight, --reclaims, --no-reclaims, --open, "
            "--closed"
        )
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        changed = ledger.put_queue(_changed(_get(ledger, name), options))
    _emit(settings, changed, "is changed")


@queue.command("delete", examples="sdrs queue delete nightly\nsdrs queue delete nightly --yes")
@click.argument("name", shell_complete=complete_queue)
@yes_option
@pass_settings
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a queue. Refused (exit 4) while jobs are in it; the queue "default" goes back to what it is at first."""
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        found = _get(ledger, name)
        confirm(f'This deletes the queue "{name}" and its quota.', yes=yes)
        ledger.delete_queue(name)
    _emit(settings, found, "is deleted")


def _jobs(ledger: Ledger) -> list[Job]:
    return sorted((stored.value for stored in ledger.jobs()), key=lambda job: (job.submitted_unix_ms, job.id))


def _get(ledger: Ledger, name: str) -> Queue:
    stored = ledger.queues().get(name)
    if stored is None:
        raise NotFoundError(f'there is no queue "{name}": `sdrs queue list` shows those there are', queue=name)
    return stored.value


def _changed(queue: Queue, options: dict[str, Any]) -> Queue:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name in ("gpus", "max_gpus"):
        if given.get(name) == _NO_LIMIT:
            given[name] = None
    changed = replace(queue, **given)
    if changed.gpus is not None and changed.max_gpus is not None and changed.max_gpus < changed.gpus:
        raise InvalidArgumentError(
            f'queue "{queue.name}" may always have {changed.gpus} GPUs and at most {changed.max_gpus}: give --max-gpus '
            f"{changed.gpus} or more",
            queue=queue.name,
        )
    return changed


def _emit(settings: Settings, queue: Queue, what: str) -> None:
    if settings.is_json:
        emit_json(queue_record(queue, ()))
        return
    quota = _amount(queue.gpus, "no quota")
    emit_note(settings, f'queue "{queue.name}" {what}: {quota}, at most {_amount(queue.max_gpus, "all")}')


def _amount(gpus: int | None, when_none: str) -> str:
    return when_none if gpus is None else f"{gpus} GPUs"


def _listing(records: Sequence[Record]) -> Listing:
    columns = [
        Column("QUEUE"),
        Column("STATE"),
        Column("QUOTA", is_number=True),
        Column("AT MOST", is_number=True),
        Column("USED", is_number=True),
        Column("WEIGHT", is_number=True),
        Column("RECLAIMS"),
        Column("RUNNING", is_number=True),
        Column("WAITING", is_number=True),
    ]
    rows = [
        (
            record["name"],
            record["state"],
            "none" if record["gpus"] is None else str(record["gpus"]),
            "all" if record["max_gpus"] is None else str(record["max_gpus"]),
            str(record["used_gpus"]),
            f"{record['weight']:g}",
            "yes" if record["reclaims"] else "no",
            str(record["running_count"]),
            str(record["waiting_count"]),
        )
        for record in records
    ]
    return Listing(columns, rows, "there are no queues")
