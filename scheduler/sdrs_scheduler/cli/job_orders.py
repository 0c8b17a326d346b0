"""``sdrs job cancel, hold, release, requeue, preempt, set``: what a person asks of the scheduler."""

from __future__ import annotations

import sys

import click

from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_note
from sdrs.cli.settings import Settings, Verb, pass_settings, yes_option
from sdrs_scheduler.cli.job_names import find_job, job_argument, now_unix_ms, user_name, warn_if_idle
from sdrs_scheduler.cli.job_records import job_record
from sdrs_scheduler.jobs.job import Job, Wish
from sdrs_scheduler.jobs.spec import MAX_PRIORITY
from sdrs_scheduler.ledger import Ledger

_REASON = click.option("--reason", metavar="TEXT", default="", help="Kept in its story.")


@click.command(
    "cancel", cls=Verb, examples="sdrs job cancel llm-7b\nsdrs job cancel llm-7b --yes --reason 'wrong data'"
)
@job_argument
@_REASON
@yes_option
@pass_settings
def cancel(settings: Settings, job_word: str, reason: str, yes: bool) -> None:
    """End a job for good. What it has saved stays; `sdrs job requeue` takes it up again.

    One that runs is asked about on a terminal: what it has not saved is lost.
    """
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        cancel_job(settings, ledger, find_job(ledger, job_word), reason=reason, yes=yes)


def cancel_job(settings: Settings, ledger: Ledger, found: Job, *, reason: str, yes: bool) -> None:
    # A program that cancels means it: nothing that is saved is destroyed, and there is nobody to ask.
    if found.state.has_nodes and sys.stdin.isatty():
        confirm(f"This ends job {found.id}, which is {found.state}; what it has not saved is lost.", yes=yes)
    _wish(settings, ledger, found, Wish.CANCEL, reason)


@click.command("hold", cls=Verb, examples="sdrs job hold llm-7b\nsdrs job hold llm-7b --reason 'data is checked'")
@job_argument
@_REASON
@pass_settings
def hold(settings: Settings, job_word: str, reason: str) -> None:
    """Keep a job from starting. One that runs saves a checkpoint first and gives up its nodes."""
    _find_and_wish(settings, job_word, Wish.HOLD, reason)


@click.command("release", cls=Verb, examples="sdrs job release llm-7b")
@job_argument
@_REASON
@pass_settings
def release(settings: Settings, job_word: str, reason: str) -> None:
    """Let a held job go on."""
    _find_and_wish(settings, job_word, Wish.RELEASE, reason)


@click.command(
    "requeue", cls=Verb, examples="sdrs job requeue llm-7b\nsdrs job requeue llm-7b --reason 'fixed the data'"
)
@job_argument
@_REASON
@pass_settings
def requeue(settings: Settings, job_word: str, reason: str) -> None:
    """Start a job again.

    One that is over, with its budgets whole, or one that runs, after a last checkpoint.
    """
    _find_and_wish(settings, job_word, Wish.REQUEUE, reason)


@click.command("preempt", cls=Verb, examples="sdrs job preempt llm-7b --reason 'node-3 is to be repaired'")
@job_argument
@_REASON
@pass_settings
def preempt(settings: Settings, job_word: str, reason: str) -> None:
    """Have a running job save and make room.

    It goes back to its queue once its checkpoint is durable, at the latest after its grace. No retry is charged.
    """
    _find_and_wish(settings, job_word, Wish.PREEMPT, reason)


@click.command("set", cls=Verb, examples="sdrs job set llm-7b --priority 80")
@job_argument
@click.option(
    "--priority", type=click.IntRange(0, MAX_PRIORITY), required=True, metavar="P", help="0 to 100; live, no restart."
)
@pass_settings
def set_job(settings: Settings, job_word: str, priority: int) -> None:
    """Change the priority of a job that waits or runs."""
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        found = find_job(ledger, job_word)
        changed = ledger.set_priority(found.id, priority, f"by {user_name()}", now_unix_ms=now_unix_ms())
        if settings.is_json:
            emit_json(job_record(changed))
        else:
            emit_note(settings, f"job {changed.id} has priority {changed.spec.priority}")


def _find_and_wish(settings: Settings, job_word: str, wish: Wish, reason: str) -> None:
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        _wish(settings, ledger, find_job(ledger, job_word), wish, reason)


def _wish(settings: Settings, ledger: Ledger, found: Job, wish: Wish, reason: str) -> None:
    note = f"by {user_name()}" + (f": {reason}" if reason else "")
    asked = ledger.wish(found.id, wish, note)
    if settings.is_json:
        emit_json(job_record(asked))
    else:
        emit_note(settings, f"job {asked.id} ({asked.state}) is asked to {wish}")
    warn_if_idle(settings, ledger)
