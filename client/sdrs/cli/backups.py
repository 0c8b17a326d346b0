"""``sdrs backup``: checkpoints in buckets, for the day the cluster is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli.amounts import step_number
from sdrs.cli.backup_policies import policy
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
from sdrs.cli.completion import complete_job, complete_pool, complete_target
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_facts, emit_json, emit_listing, emit_note, emit_warning
from sdrs.cli.settings import F, Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.errors import NotFoundError

if TYPE_CHECKING:
    from sdrs import Cluster


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


def _target_option(function: F) -> F:
    return click.option(
        "--target", "target_name", default="", metavar="NAME", shell_complete=complete_target, help="Which one (all)."
    )(function)


def _job_option(function: F) -> F:
    return click.option(
        "--job", default="", metavar="JOB", shell_complete=complete_job, help="Only this job's checkpoints."
    )(function)


def _step_option(function: F) -> F:
    return click.option("--step", type=step_number, metavar="STEP", help="Only this one, with --job.")(function)


def _pool_option(function: F) -> F:
    return click.option(
        "--pool", default="", metavar="POOL", shell_complete=complete_pool, help="Only this pool's checkpoints."
    )(function)


def _wait_option(function: F) -> F:
    return click.option("--wait/--no-wait", default=True, help="Until it is done, with progress; else it goes on.")(
        function
    )


def _check_step(job: str, step: int | None) -> None:
    if step is not None and not job:
        raise click.UsageError("--step is one of a job: name it with --job")


@backup.command(
    "run",
    examples="""
    sdrs backup run                              what is not backed up yet, to every target
    sdrs backup run --target nas --job llm-7b
    sdrs backup run --target nas --job llm-7b --step 1000
    """,
)
@_target_option
@_pool_option
@_job_option
@_step_option
@_wait_option
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
    from sdrs.backups import RunKind, Selection

    _check_step(job, step)
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=True)
        carry_out(
            settings, context, cluster, targets, RunKind.BACKUP, Selection(pool=pool, job=job, step=step), wait=wait
        )


@backup.command("list", examples="sdrs backup list\nsdrs backup list llm-7b -o json\nsdrs backup list --from-bucket")
@click.argument("job", required=False, default="", shell_complete=complete_job)
@_target_option
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
@_target_option
@_job_option
@_step_option
@click.option("--full", is_flag=True, help="Read every byte and compare it, instead of a sample.")
@_wait_option
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
    from sdrs.backups import RunKind, Selection

    _check_step(job, step)
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=False)
        carry_out(
            settings, context, cluster, targets, RunKind.VERIFY, Selection(job=job, step=step, full=full), wait=wait
        )


@backup.command("prune", examples="sdrs backup prune --dry-run\nsdrs backup prune --target nas --yes")
@_target_option
@click.option("--dry-run", is_flag=True, help="Tell what would go, and delete nothing.")
@_wait_option
@yes_option
@click.pass_context
@pass_settings
def prune(settings: Settings, context: click.Context, target_name: str, dry_run: bool, wait: bool, yes: bool) -> None:
    """Delete what the policies do not keep, and objects that nothing uses any more.

    It goes by itself after each backup; this is for when it should be now. Nothing that another backup uses is deleted,
    nor the newest good one of a job, nor what is held or kept in the backup only.
    """
    from sdrs.backups import RunKind, Selection

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
@_target_option
@pass_settings
def hold(settings: Settings, job: str, step: int, target_name: str) -> None:
    """Keep a backup whatever the policies say."""
    _hold(settings, target_name, job, step, held=True)


@backup.command("release", examples="sdrs backup release llm-7b 1000")
@click.argument("job", shell_complete=complete_job)
@step_argument
@_target_option
@pass_settings
def release(settings: Settings, job: str, step: int, target_name: str) -> None:
    """Let the policies decide again about a backup that was held."""
    _hold(settings, target_name, job, step, held=False)


def _into_options(function: F) -> F:
    into = click.option(
        "--into-pool",
        default="",
        metavar="POOL",
        shell_complete=complete_pool,
        help="Where to (the pool of the same name, else the default one).",
    )
    lazy = click.option("--lazy", is_flag=True, help="The catalog only: bytes come when they are restored.")
    return into(lazy(function))


@backup.command(
    "restore",
    examples="""
    sdrs backup restore llm-7b               every backed-up checkpoint of a job that is not here
    sdrs backup restore llm-7b 1000 --target nas
    """,
)
@click.argument("job", shell_complete=complete_job)
@click.argument("step", type=step_number, required=False)
@_target_option
@_into_options
@_wait_option
@click.pass_context
@pass_settings
def restore(
    settings: Settings,
    context: click.Context,
    job: str,
    step: int | None,
    target_name: str,
    into_pool: str,
    lazy: bool,
    wait: bool,
) -> None:
    """Bring one checkpoint or all of a job back into the cluster.

    A plain restore() of the SDK does so by itself when nothing nearer is left. Exits with 3 if one could not be brought
    back, or conflicts with what is here.
    """
    from sdrs.backups import RunKind, Selection

    with open_cluster(settings) as cluster:
        targets = [_holding(cluster, target_name, job, step)]
        selection = Selection(job=job, step=step, into_pool=into_pool, lazy=lazy, missing_only=True)
        carry_out(settings, context, cluster, targets, RunKind.IMPORT, selection, wait=wait)


def _holding(cluster: Cluster, target_name: str, job: str, step: int | None) -> str:
    """A target that has what is asked for: by the catalog, else by what the buckets say themselves."""
    if target_name:
        return chosen_targets(cluster, target_name, writable=False)[0]
    for from_bucket in (False, True):
        found = [one for one in cluster.backups.list(job, from_bucket=from_bucket) if step is None or one.step == step]
        if found:
            return max(found, key=lambda one: (not one.damage, one.step)).target
    wanted = f'job "{job}"' if step is None else f'step {step} of job "{job}"'
    raise NotFoundError(f"no target has a backup of {wanted}: see `sdrs backup list --from-bucket`")


@backup.command(
    "import",
    examples="""
    sdrs backup import nas                   everything that is there
    sdrs backup import nas --pool prod --into-pool default
    sdrs backup import nas --lazy            at once: bytes come when they are restored
    """,
)
@click.argument("target_name", metavar="TARGET", shell_complete=complete_target)
@_pool_option
@_job_option
@_step_option
@_into_options
@_wait_option
@click.pass_context
@pass_settings
def import_backups(
    settings: Settings,
    context: click.Context,
    target_name: str,
    pool: str,
    job: str,
    step: int | None,
    into_pool: str,
    lazy: bool,
    wait: bool,
) -> None:
    """Bring what a target holds into this cluster: everything, a pool, a job or one checkpoint.

    For a new cluster in the place of one that is lost: add the old one's target first. It can be interrupted and goes
    on where it was. What is here already stays as it is; what conflicts with it is named (exit 3).
    """
    from sdrs.backups import RunKind, Selection

    _check_step(job, step)
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=False)
        selection = Selection(pool=pool, job=job, step=step, into_pool=into_pool, lazy=lazy)
        carry_out(settings, context, cluster, targets, RunKind.IMPORT, selection, wait=wait)


@backup.command("sync", examples="sdrs backup sync nas\nsdrs backup sync nas --job llm-7b")
@click.argument("target_name", metavar="TARGET", shell_complete=complete_target)
@_pool_option
@_job_option
@_into_options
@_wait_option
@click.pass_context
@pass_settings
def sync(
    settings: Settings,
    context: click.Context,
    target_name: str,
    pool: str,
    job: str,
    into_pool: str,
    lazy: bool,
    wait: bool,
) -> None:
    """Bring back only what is missing here, or cannot be read any more: after a site that failed has returned."""
    from sdrs.backups import RunKind, Selection

    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=False)
        selection = Selection(pool=pool, job=job, into_pool=into_pool, lazy=lazy, missing_only=True)
        carry_out(settings, context, cluster, targets, RunKind.IMPORT, selection, wait=wait)
