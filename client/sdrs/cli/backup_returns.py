"""Verbs of ``sdrs backup`` that bring checkpoints back: restore, import, sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli.amounts import step_number
from sdrs.cli.backup_arguments import check_step, job_option, pool_option, step_option, target_option, wait_option
from sdrs.cli.backup_runs import carry_out, chosen_targets
from sdrs.cli.completion import complete_job, complete_pool, complete_target
from sdrs.cli.connection import open_cluster
from sdrs.cli.settings import F, Settings, Verb, pass_settings
from sdrs_core.backup.runs import RunKind, Selection
from sdrs_core.errors import NotFoundError

if TYPE_CHECKING:
    from sdrs import Cluster


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


@click.command(
    "restore",
    cls=Verb,
    examples="""
    sdrs backup restore llm-7b               every backed-up checkpoint of a job that is not here
    sdrs backup restore llm-7b 1000 --target nas
    """,
)
@click.argument("job", shell_complete=complete_job)
@click.argument("step", type=step_number, required=False)
@target_option
@_into_options
@wait_option
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


@click.command(
    "import",
    cls=Verb,
    examples="""
    sdrs backup import nas                   everything that is there
    sdrs backup import nas --pool prod --into-pool default
    sdrs backup import nas --lazy            at once: bytes come when they are restored
    """,
)
@click.argument("target_name", metavar="TARGET", shell_complete=complete_target)
@pool_option
@job_option
@step_option
@_into_options
@wait_option
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
    check_step(job, step)
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=False)
        selection = Selection(pool=pool, job=job, step=step, into_pool=into_pool, lazy=lazy)
        carry_out(settings, context, cluster, targets, RunKind.IMPORT, selection, wait=wait)


@click.command("sync", cls=Verb, examples="sdrs backup sync nas\nsdrs backup sync nas --job llm-7b")
@click.argument("target_name", metavar="TARGET", shell_complete=complete_target)
@pool_option
@job_option
@_into_options
@wait_option
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
    with open_cluster(settings) as cluster:
        targets = chosen_targets(cluster, target_name, writable=False)
        selection = Selection(pool=pool, job=job, into_pool=into_pool, lazy=lazy, missing_only=True)
        carry_out(settings, context, cluster, targets, RunKind.IMPORT, selection, wait=wait)
