"""``sdrs backup policy``: what is backed up when, and how long it is kept."""

from __future__ import annotations

import click

from sdrs.cli.amounts import duration
from sdrs.cli.backup_words import keeps, policy_listing, policy_record, when
from sdrs.cli.completion import complete_job, complete_pool, complete_target
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_listing, emit_note
from sdrs.cli.settings import F, Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.backup.targets import Keep, Policy, TargetName
from sdrs_core.ids import PoolName

_COUNT = click.IntRange(0, (1 << 31) - 1)


@click.group(
    cls=VerbGroup, examples="sdrs backup policy set prod --target nas --every 15m --keep-last 10 --keep-daily 7"
)
def policy() -> None:
    """What is backed up when, and how long it is kept."""


def _whose(function: F) -> F:
    job = click.option("--job", default="", metavar="JOB", shell_complete=complete_job, help="Only this job's (all).")
    name = click.option(
        "--target", "target_name", required=True, metavar="NAME", shell_complete=complete_target, help="Where to."
    )
    return click.argument("pool", shell_complete=complete_pool)(name(job(function)))


@policy.command(
    "set",
    examples="""
    sdrs backup policy set prod --target nas --every 15m --keep-last 10 --keep-daily 7
    sdrs backup policy set prod --target nas --cron "30 2 * * *" --keep-weekly 8
    sdrs backup policy set prod --target nas --job llm-7b --on-commit
    sdrs backup policy set prod --target nas --every 1h --evict-after 14d
    """,
)
@_whose
@click.option("--every", type=duration, metavar="TIME", help="How often, as 15m.")
@click.option("--cron", default="", metavar="LINE", help='When, as "30 2 * * *" (UTC).')
@click.option("--on-commit", is_flag=True, help="As soon as a checkpoint is committed.")
@click.option("--keep-last", type=_COUNT, default=0, metavar="N", help="Keep the newest N of each job.")
@click.option("--keep-hourly", type=_COUNT, default=0, metavar="N", help="Keep the newest of each of N hours.")
@click.option("--keep-daily", type=_COUNT, default=0, metavar="N", help="Keep the newest of each of N days.")
@click.option("--keep-weekly", type=_COUNT, default=0, metavar="N", help="Keep the newest of each of N weeks.")
@click.option(
    "--evict-after",
    type=duration,
    default="0",
    metavar="AGE",
    help="Keep older ones in the backup only, once all of it was read and checked there; a restore recalls them.",
)
@pass_settings
def set_policy(
    settings: Settings,
    pool: str,
    target_name: str,
    job: str,
    every: int | None,
    cron: str,
    on_commit: bool,
    keep_last: int,
    keep_hourly: int,
    keep_daily: int,
    keep_weekly: int,
    evict_after: int,
) -> None:
    """Back up the checkpoints of POOL, or of one job in it.

    A job's own policy takes the place of its pool's. With none of --every, --cron and --on-commit it is for
    `sdrs backup run` only. With no --keep rule everything is kept; the newest good backup of a job and those on hold
    are never pruned.
    """
    if every == 0:
        raise click.UsageError("--every 0 is no interval: leave it out for a policy without one")
    if every and cron:
        raise click.UsageError("--every and --cron contradict each other: give one")
    wanted = Policy(
        target=TargetName(target_name),
        pool=PoolName(pool),
        job=job,
        every_seconds=every or 0,
        cron=cron,
        on_commit=on_commit,
        keep=Keep(keep_last, keep_hourly, keep_daily, keep_weekly),
        evict_after_seconds=evict_after,
    )
    with open_cluster(settings) as cluster:
        made = cluster.backups.set_policy(wanted)
        status = next(
            one
            for one in cluster.backups.policies()
            if (one.policy.target, one.policy.pool, one.policy.job) == (made.target, made.pool, made.job)
        )
    if settings.is_json:
        emit_json(policy_record(status))
    else:
        whose = f'job "{job}" of pool "{pool}"' if job else f'pool "{pool}"'
        emit_note(settings, f'{whose} is backed up to "{target_name}" {when(made)}; keeps {keeps(made.keep)}')


@policy.command("list", examples="sdrs backup policy list\nsdrs backup policy list -o json")
@pass_settings
def list_policies(settings: Settings) -> None:
    """List the policies, and which of them are behind."""
    with open_cluster(settings) as cluster:
        found = cluster.backups.policies()
    if settings.is_json:
        emit_json([policy_record(one) for one in found])
    else:
        emit_listing(settings, policy_listing(found))


@policy.command("remove", examples="sdrs backup policy remove prod --target nas")
@_whose
@yes_option
@pass_settings
def remove(settings: Settings, pool: str, target_name: str, job: str, yes: bool) -> None:
    """Back up nothing more by this policy, and prune nothing either. What is there stays."""
    confirm(f'This removes the policy of pool "{pool}" for the target "{target_name}".', yes=yes)
    with open_cluster(settings) as cluster:
        cluster.backups.remove_policy(target_name, pool, job)
    if settings.is_json:
        emit_json({"pool": pool, "target": target_name, "job": job or None})
    else:
        emit_note(settings, "the policy is removed; what it backed up stays")
