"""``sdrs job goodput``: what became of the GPU time, of each job and of all together."""

from __future__ import annotations

import click

from sdrs.cli.amounts import format_duration
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_json, emit_listing, emit_note
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_scheduler.cli.job_names import now_unix_ms
from sdrs_scheduler.cli.job_records import goodput_record
from sdrs_scheduler.cli.job_words import goodput_words, recovery_words
from sdrs_scheduler.jobs.goodput import Goodput, cluster_goodput, job_goodput
from sdrs_scheduler.jobs.job import Job
from sdrs_scheduler.ledger import Ledger


@click.command("goodput", cls=Verb, examples="sdrs job goodput\nsdrs job goodput -o json | jq .cluster.ratio")
@pass_settings
def goodput(settings: Settings) -> None:
    """Tell what became of the GPU time.

    Of each job on record that was started, and of all together: work that counts, work that was lost, loading, waiting;
    and what recoveries waited for. The cluster's times are GPU time: an hour of eight GPUs counts eight.
    """
    with open_cluster(settings) as cluster:
        found = measured(Ledger(cluster.records), now_unix_ms())
    total = cluster_goodput(found)
    if settings.is_json:
        jobs = [
            {"id": job.id, "name": job.spec.name, "state": job.state.value, **goodput_record(of_job)}
            for job, of_job in found
        ]
        emit_json({"cluster": goodput_record(total), "jobs": jobs})
        return
    emit_listing(settings, goodput_listing(found))
    if found:
        emit_note(settings, f"\nall jobs, in GPU time: {goodput_words(total)}")
        if total.recoveries:
            emit_note(settings, f"recoveries: {recovery_words(total)}")


def measured(ledger: Ledger, now_ms: int) -> list[tuple[Job, Goodput]]:
    """Of each job that was started, the oldest first."""
    attempts = ledger.all_attempts()
    started = [stored.value for stored in ledger.jobs() if stored.value.id in attempts]
    started.sort(key=lambda job: (job.submitted_unix_ms, job.id))
    return [(job, job_goodput(job, attempts[job.id], now_ms)) for job in started]


def goodput_listing(found: list[tuple[Job, Goodput]]) -> Listing:
    columns = [
        Column("ID"),
        Column("STATE"),
        Column("GPUS", is_number=True),
        Column("GOODPUT", is_number=True),
        Column("EFFECTIVE", is_number=True),
        Column("LOST", is_number=True),
        Column("LOADING", is_number=True),
        Column("QUEUED", is_number=True),
        Column("RECOVERIES", is_number=True),
        Column("RECOVERING", is_number=True),
    ]
    rows = [
        (
            job.id,
            str(job.state),
            str(job.spec.resources.gpus),
            "" if of_job.ratio is None else f"{100 * of_job.ratio:.0f} %",
            format_duration(of_job.effective_seconds),
            format_duration(of_job.lost_seconds),
            format_duration(of_job.loading_seconds),
            format_duration(of_job.queueing_seconds),
            str(sum(of_job.recoveries.values())),
            format_duration(of_job.recovery.total_seconds),
        )
        for job, of_job in found
    ]
    return Listing(columns, rows, "no job was started yet")
