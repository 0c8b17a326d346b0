"""``sdrs job``: the group, and the verbs that only look."""

from __future__ import annotations

import click

from sdrs.cli.connection import open_cluster
from sdrs.cli.failures import FAILED
from sdrs.cli.output import emit_json, emit_listing, emit_note
from sdrs.cli.settings import Settings, Verb, VerbGroup, pass_settings
from sdrs_scheduler.cli.following import follow
from sdrs_scheduler.cli.job_goodput import goodput
from sdrs_scheduler.cli.job_init import init
from sdrs_scheduler.cli.job_logs import logs
from sdrs_scheduler.cli.job_names import (
    complete_queue,
    find_job,
    is_idle,
    job_argument,
    now_unix_ms,
    warn_if_idle,
)
from sdrs_scheduler.cli.job_nodes import nodes
from sdrs_scheduler.cli.job_orders import cancel, hold, preempt, release, requeue, set_job
from sdrs_scheduler.cli.job_records import attempt_record, job_record, story_record
from sdrs_scheduler.cli.job_show import emit_shown
from sdrs_scheduler.cli.job_words import attempt_listing, job_listing, story_listing, why_sentence
from sdrs_scheduler.cli.submit import clone, emit_followed, submit
from sdrs_scheduler.jobs.job import Job, JobState
from sdrs_scheduler.ledger import Ledger

_STORY_LINES = 10
_RECENT_MS = 24 * 3600 * 1000
_STATES = click.Choice([state.value for state in JobState])


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs job init llm.yaml --template torchrun
    sdrs job submit llm.yaml
    sdrs job list
    sdrs job why llm-7b
    sdrs job logs llm-7b -f
    """,
)
def job() -> None:
    """Submit training jobs and see what becomes of them.

    A job is named by its id, or by its name if only one of that name is under way.
    """


@click.command(
    "list",
    cls=Verb,
    examples="""
    sdrs job list
    sdrs job list --active
    sdrs job list --all --user ada
    sdrs job list --state failed -o json | jq -r '.[].id'
    """,
)
@click.option("--queue", metavar="QUEUE", shell_complete=complete_queue, help="Only those in this queue.")
@click.option("--user", metavar="USER", help="Only those of this user.")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only those in this state; may be repeated.")
@click.option("--active", is_flag=True, help="Only those that are not over.")
@click.option("--all", "everything", is_flag=True, help="Also those that were over earlier.")
@pass_settings
def list_jobs(
    settings: Settings, queue: str | None, user: str | None, states: tuple[str, ...], active: bool, everything: bool
) -> None:
    """List the jobs that are not over or ended in the last 24 hours, the oldest first."""
    if active and everything:
        raise click.UsageError("give --active or --all, not both")
    now = now_unix_ms()
    # Who asks for a state means all that are in it.
    over_since_unix_ms = 0 if everything or states else now - _RECENT_MS
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        jobs = [
            stored.value
            for stored in ledger.jobs()
            if queue in (None, stored.value.spec.queue) and user in (None, stored.value.user)
        ]
        shown = sorted(
            (
                job
                for job in jobs
                if (not states or job.state in states)
                and (not job.state.is_over or (not active and job.ended_unix_ms >= over_since_unix_ms))
            ),
            key=lambda job: (job.submitted_unix_ms, job.id),
        )
        if settings.is_json:
            emit_json([job_record(job) for job in shown])
            return
        emit_listing(settings, job_listing(shown, now, _when_empty(jobs)))
        if any(not job.state.is_over for job in shown):
            warn_if_idle(settings, ledger)


def _when_empty(jobs: list[Job]) -> str:
    if not jobs:
        return "there are no jobs: write one with `sdrs job init`, and `sdrs job submit` it"
    return f"no such job; --all shows {len(jobs)}, with those that are over"


@click.command(
    "show",
    cls=Verb,
    examples="sdrs job show llm-7b\nsdrs job show llm-7b-3f2a -w\nsdrs job show llm-7b -o json | jq .state",
)
@job_argument
@click.option("-w", "--wait", is_flag=True, help="Follow it until it is over; exit 0 if it succeeded, else 1.")
@pass_settings
@click.pass_context
def show(context: click.Context, settings: Settings, job_word: str, wait: bool) -> None:
    """Show one job in full.

    What it asked for and has, its attempts, what is left of its budgets, where it would go on, how often it should
    save, and what became of its time.
    """
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        found = find_job(ledger, job_word)
        if wait:
            (found,) = follow(ledger, [found.id], lambda job: emit_followed(settings, job))
        emit_shown(settings, cluster, ledger, found)
        if not found.state.is_over:
            warn_if_idle(settings, ledger)
    if wait and found.state is not JobState.SUCCEEDED:
        context.exit(FAILED)


@click.command(
    "attempts", cls=Verb, examples="sdrs job attempts llm-7b\nsdrs job attempts llm-7b -o json | jq '.[-1].exit_codes'"
)
@job_argument
@pass_settings
def attempts(settings: Settings, job_word: str) -> None:
    """List the starts of a job.

    Where each ran, from which step, how it ended, and whether a retry was charged.
    """
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        made = [stored.value for stored in ledger.attempts(find_job(ledger, job_word).id)]
    if settings.is_json:
        emit_json([attempt_record(attempt) for attempt in made])
    else:
        emit_listing(settings, attempt_listing(made, now_unix_ms()))


@click.command("why", cls=Verb, examples="sdrs job why llm-7b\nsdrs job why llm-7b -o json | jq -r .sentence")
@job_argument
@pass_settings
def why(settings: Settings, job_word: str) -> None:
    """Tell in a sentence why a job is as it is.

    What it waits for, where it runs and since when, or what happened to it and what was decided; then the last lines of
    its story.
    """
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        found = find_job(ledger, job_word)
        made = [stored.value for stored in ledger.attempts(found.id)]
        sentence = why_sentence(found, made, now_unix_ms(), idle=is_idle(ledger))
    if settings.is_json:
        emit_json(job_record(found) | {"sentence": sentence, "story": story_record(found.story)})
        return
    emit_note(settings, sentence)
    if found.story:
        emit_note(settings, "")
        emit_listing(settings, story_listing(found.story[-_STORY_LINES:]))


# In the order in which they are needed.
for verb in (
    *(init, submit, list_jobs, show, why, logs, attempts, goodput),
    *(cancel, hold, release, requeue, preempt, set_job, clone, nodes),
):
    job.add_command(verb)
