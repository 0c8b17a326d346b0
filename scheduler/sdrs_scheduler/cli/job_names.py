"""Which job a word on the command line means, and whether a scheduler is there to do something with it."""

from __future__ import annotations

import getpass
import os
import time
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_warning
from sdrs.cli.settings import F, Settings, settings_of
from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.cli.job_words import IDLE
from sdrs_scheduler.ledger import Ledger

if TYPE_CHECKING:
    from sdrs_scheduler.jobs.job import Job

_COMPLETION_SECONDS = 1.0


def now_unix_ms() -> int:
    return int(time.time() * 1000)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container: a number without a name
        return f"uid-{os.getuid()}"


def find_job(ledger: Ledger, word: str) -> Job:
    """By id; else the one of this name that is not over; else the newest that was."""
    newest = ledger.find(word).value
    if newest.id == word:
        return newest
    named = [stored.value for stored in ledger.named(word)]
    active = sorted(job.id for job in named if not job.state.is_over)
    if len(active) > 1:
        raise InvalidArgumentError(
            f'{len(active)} jobs named "{word}" are under way: give an id, {" or ".join(active)}', job=word
        )
    return max(named, key=lambda job: (not job.state.is_over, job.submitted_unix_ms, job.id), default=newest)


def is_idle(ledger: Ledger) -> bool:
    """Whether nobody decides: no scheduler has renewed its lease of late."""
    lease = ledger.lease()
    return lease is None or not lease.value.is_fresh(now_unix_ms())


def warn_if_idle(settings: Settings, ledger: Ledger) -> None:
    if is_idle(ledger):
        emit_warning(settings, IDLE)


def complete_job(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    settings = settings_of(context)
    settings.timeout_seconds = _COMPLETION_SECONDS
    try:
        with open_cluster(settings) as cluster:
            ids = [stored.value.id for stored in Ledger(cluster.records).jobs()]
    except Exception:  # whatever is wrong, a prompt is no place to say it
        return []
    return [CompletionItem(one) for one in ids if one.startswith(incomplete)]


def complete_queue(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    settings = settings_of(context)
    settings.timeout_seconds = _COMPLETION_SECONDS
    try:
        with open_cluster(settings) as cluster:
            names = sorted(Ledger(cluster.records).queues())
    except Exception:
        return []
    return [CompletionItem(one) for one in names if one.startswith(incomplete)]


def job_argument(function: F) -> F:
    return click.argument("job_word", metavar="JOB", shell_complete=complete_job)(function)
