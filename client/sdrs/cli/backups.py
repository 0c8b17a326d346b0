"""``sdrs backup``: checkpoints in buckets, for the day the cluster is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli.backup_arguments import check_step, job_option, pool_option, step_option, target_option, wait_option
from sdrs.cli.backup_policies import policy
from sdrs.cli.backup_returns import import_backups, restore, sync
from sdrs.cli.backup_runs import carry_out, chosen_targets
from sdrs.cli.backup_targets import target
from sdrs.cli.backup_words import (
    backup_listing,
    backup_record,
    job_listing,
    job_record,
    run_facts,
    run_record,
    target_listing,
    target_status_record,
)
from sdrs.cli.checkpoint_arguments import step_argument
from sdrs.cli.completion import complete_job, complete_target
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_facts, emit_json, emit_listing, emit_note, emit_warning
from sdrs.cli.settings import Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.backup.runs import RunKind, Selection

if TYPE_CHECKING:
    pass


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs backup target add nas --endpoint http://nas:9000 --bucket backups --prefix prod
    sdrs backup policy set prod --target nas --every 15m --keep-last 10 --keep-daily 7
    sdrs backup list
    sdrs backup import nas                   on a new cluster: everything comes back
    """,
)
def backup() -> None:
    """Keep checkpoints in buckets too, and bring them back."""


backup.add_command(target)
backup.add_command(policy)


@backup.command(
    "run",
    examples="""
    sdrs backup run                              what is not backed up yet, to every target
    sdrs backup run --target nas --job llm-7b
    sdrs backup run --target nas --job llm-7b --step 1000
    """,
)
@target_option
@pool_option
@job_option
@step_option
@wait_option
@click.pass_context
@pass_settings
def run(
    settings: Settings,
    context: click.Context,
    target_name: str,
    pool: str,
    job: str,
    step: int | None,
    wait: bool,
) -> None:
    """Back up now what is committed and not in the backup yet.

    Without --job and --pool: what the target's policies cover, and everything if it has none. Bytes that the bucket
    has already are not sent again.
    """
    check_step(job, step)
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=True)
        carry_out(
            settings, context, cluster, targets, RunKind.BACKUP, Selection(pool=pool, job=job, step=step), wait=wait
        )


@backup.command("list", examples="sdrs backup list\nsdrs backup list llm-7b -o json\nsdrs backup list --from-bucket")
@click.argument("job", required=False, default="", shell_complete=complete_job)
@target_option
@click.option("--from-bucket", is_flag=True, help="Ask the bucket itself, not the catalog: other clusters' too.")
@pass_settings
def list_backups(settings: Settings, job: str, target_name: str, from_bucket: bool) -> None:
    """List what is in the backup; a checkpoint is listed once all of it is there."""
    with open_cluster(settings) as cluster:
        if target_name:
            chosen_targets(cluster, target_name, writable=False)
        found = cluster.backups.list(job, target=target_name, from_bucket=from_bucket)
    if settings.is_json:
        emit_json([backup_record(one) for one in found])
        return
    emit_listing(settings, backup_listing(found))
    for one in found:
        if one.damage:
            emit_warning(settings, f"{one.job} step {one.step} in {one.target}: {one.damage}")


@backup.command("status", examples="sdrs backup status\nsdrs backup status -o json | jq .jobs[].at_risk_seconds")
@pass_settings
def status(settings: Settings) -> None:
    """Tell how much work would be lost with the cluster, and how far each target is."""
    with open_cluster(settings) as cluster:
        jobs, warnings = cluster.backups.status()
        targets = cluster.backups.targets()
        runs = cluster.backups.runs()
    if settings.is_json:
        emit_json(
            {
                "jobs": [job_record(one) for one in jobs],
                "targets": [target_status_record(one) for one in targets],
                "runs": [run_record(one) for one in runs],
                "warnings": warnings,
            }
        )
        return
    emit_listing(settings, job_listing(jobs))
    emit_note(settings, "")
    emit_listing(settings, target_listing(targets))
    for one in runs:
        emit_note(settings, "")
        emit_facts(settings, run_facts(one))
    for warning in warnings:
        emit_warning(settings, warning)


@backup.command("stop", examples="sdrs backup stop nas")
@click.argument("target_name", metavar="TARGET", shell_complete=complete_target)
@pass_settings
def stop(settings: Settings, target_name: str) -> None:
    """End the run under way on a target. What is done stays done, and the next run goes on from there."""
    with open_cluster(settings) as cluster:
        stopped = cluster.backups.stop(target_name)
    if settings.is_json:
        emit_json(run_record(stopped))
    else:
        emit_facts(settings, run_facts(stopped))


@backup.command(
    "verify",
    examples="""
    sdrs backup verify                       names and sizes of everything, every byte of a sample
    sdrs backup verify --full --target nas   every byte
    """,
)
@target_option
@job_option
@step_option
@click.option("--full", is_flag=True, help="Read every byte and compare it, instead of a sample.")
@wait_option
@click.pass_context
@pass_settings
def verify(
    settings: Settings,
    context: click.Context,
    target_name: str,
    job: str,
    step: int | None,
    full: bool,
    wait: bool,
) -> None:
    """Check that what is listed can be restored. Exits with 3 if something cannot.

    What is damaged in the bucket is uploaded again by the next backup, if the cluster still has it.
    """
    check_step(job, step)
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=False)
        carry_out(
            settings, context, cluster, targets, RunKind.VERIFY, Selection(job=job, step=step, full=full), wait=wait
        )


@backup.command("prune", examples="sdrs backup prune --dry-run\nsdrs backup prune --target nas --yes")
@target_option
@click.option("--dry-run", is_flag=True, help="Tell what would go, and delete nothing.")
@wait_option
@yes_option
@click.pass_context
@pass_settings
def prune(settings: Settings, context: click.Context, target_name: str, dry_run: bool, wait: bool, yes: bool) -> None:
    """Delete what the policies do not keep, and objects that nothing uses any more.

    It goes by itself after each backup; this is for when it should be now. Nothing that another backup uses is deleted,
    nor the newest good one of a job, nor what is held or kept in the backup only.
    """
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=True)
        if not dry_run:
            confirm(f"This deletes backups that no policy keeps from {', '.join(targets)}.", yes=yes)
        carry_out(settings, context, cluster, targets, RunKind.PRUNE, Selection(dry_run=dry_run), wait=wait)


def _hold(settings: Settings, target_name: str, job: str, step: int, *, held: bool) -> None:
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=True)
        if not target_name:
            targets = sorted({one.target for one in cluster.backups.list(job) if one.step == step}) or targets
        found = [cluster.backups.hold(name, job, step, held=held) for name in targets]
    if settings.is_json:
        emit_json([backup_record(one) for one in found])
    for one in found:
        words = "is held: it is never pruned" if held else "is no longer held"
        emit_note(settings, f"{one.job} step {one.step} in {one.target} {words}")


@backup.command("hold", examples="sdrs backup hold llm-7b 1000")
@click.argument("job", shell_complete=complete_job)
@step_argument
@target_option
@pass_settings
def hold(settings: Settings, job: str, step: int, target_name: str) -> None:
    """Keep a backup whatever the policies say."""
    _hold(settings, target_name, job, step, held=True)


@backup.command("release", examples="sdrs backup release llm-7b 1000")
@click.argument("job", shell_complete=complete_job)
@step_argument
@target_option
@pass_settings
def release(settings: Settings, job: str, step: int, target_name: str) -> None:
    """Let the policies decide again about a backup that was held."""
    _hold(settings, target_name, job, step, held=False)


for verb in (restore, import_backups, sync):
    backup.add_command(verb)
