"""``sdrs pool``: named policies, and what they keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sdrs.cli.amounts import duration, format_bytes, format_duration
from sdrs.cli.completion import complete_pool
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.groups import group_listing
from sdrs.cli.output import Column, Listing, emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.records import group_record, pool_record
from sdrs.cli.settings import F, Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.cluster import Pool, ReadPolicy, Retention
from sdrs_core.levels import Level

if TYPE_CHECKING:
    from sdrs import PoolInfo

    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # generic since click 8.2 only


class _LevelChoice(_Choice):
    """Offered as they are written everywhere; click's own way to ignore the case offers l1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).upper(), param, ctx)


_LEVELS = _LevelChoice([level.name for level in Level if level is not Level.NONE])
_READ_POLICIES = click.Choice([policy.value.replace("_", "-") for policy in ReadPolicy])
_COUNT = click.IntRange(min=0)


@click.group(cls=VerbGroup, examples="sdrs pool create fast --level L2 --mirrors 2\nsdrs pool list")
def pool() -> None:
    """Create and change pools: level, redundancy, retention."""


def _policy_options(function: F) -> F:
    """Those that `create` and `set` share."""
    for option in (
        click.option("--read-policy", type=_READ_POLICIES, help="Which holder of a blob is read first."),
        click.option(
            "--allow-degraded/--no-allow-degraded",
            default=None,
            help="Go on saving with fewer copies when too few nodes are left (L2).",
        ),
        click.option(
            "--max-age", type=duration, metavar="AGE", help="Delete older ones, as 12h or 7d; 0 turns it off."
        ),
        click.option(
            "--keep-every", type=_COUNT, metavar="STEPS", help="Keep steps divisible by this; 0 turns it off."
        ),
        click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the newest N of each job; 0 turns it off."),
        click.option("--mirrors", type=click.IntRange(min=1), metavar="N", help="Whole copies (L2; 2)."),
    ):
        function = option(function)
    return function


@pool.command(
    "create",
    examples="""
    sdrs pool create fast --level L2 --mirrors 2
    sdrs pool create busy --level L2 --allow-degraded --read-policy least-response-time
    sdrs pool create nightly --level L1 --keep-last 5 --keep-every 10000 --max-age 30d
    """,
)
@click.argument("name")
@click.option("--level", type=_LEVELS, required=True, help="What failure the data survives.")
@click.option("--ec", metavar="K+M", help="Erasure code (L3), as 4+2.")
@_policy_options
@pass_settings
def create(
    settings: Settings,
    name: str,
    level: str,
    ec: str | None,
    mirrors: int | None,
    keep_last: int | None,
    keep_every: int | None,
    max_age: int | None,
    allow_degraded: bool | None,
    read_policy: str | None,
) -> None:
    """Create a pool.

    Whatever the policy says, the newest good checkpoint of a job and those on hold are never deleted. The controller
    applies it every half minute (its collect_interval_seconds), not at once.
    """
    with open_cluster(settings) as cluster:
        made = cluster.create_pool(
            name,
            level,
            mirrors=mirrors,
            ec=ec,
            keep_last=keep_last,
            keep_every_steps=keep_every,
            max_age_seconds=max_age,
            allow_degraded=bool(allow_degraded),
            read_policy=read_policy or ReadPolicy.ROUND_ROBIN,
        )
    _emit_changed(settings, made, "is created")


@pool.command("list", examples="sdrs pool list\nsdrs pool list -o json")
@pass_settings
def list_pools(settings: Settings) -> None:
    """List the pools."""
    with open_cluster(settings) as cluster:
        pools = cluster.pools()
    if settings.is_json:
        emit_json([pool_record(pool) for pool in pools])
    else:
        emit_listing(settings, pool_listing(pools))


@pool.command("show", examples="sdrs pool show default")
@click.argument("name", shell_complete=complete_pool)
@pass_settings
def show(settings: Settings, name: str) -> None:
    """Show one pool and its policy."""
    with open_cluster(settings) as cluster:
        found = cluster.pool(name)
    if settings.is_json:
        emit_json(pool_record(found) | {"groups": [group_record(group) for group in found.groups]})
        return
    facts = {
        "pool": found.pool.name,
        "level": str(found.pool.level),
        "stores": _stores(found.pool),
        "when nodes are short": _when_short(found.pool),
        "reads": f"{found.pool.read_policy.value.replace('_', '-')} over the holders",
        "keeps": _keeps(found.pool.retention),
        "checkpoints": str(found.checkpoint_count),
        "used": format_bytes(found.used_bytes),
    }
    emit_facts(settings, facts)
    emit_note(settings, "")
    emit_listing(settings, group_listing(found.groups))


@pool.command(
    "set",
    examples="""
    sdrs pool set nightly --keep-last 10
    sdrs pool set nightly --max-age 0          no limit of age any more
    sdrs pool set default --level L2 --mirrors 2
    sdrs pool set fast --read-policy weighted-response-time
    """,
)
@click.argument("name", shell_complete=complete_pool)
@click.option("--level", type=_LEVELS, help="What failure the data survives.")
@_policy_options
@pass_settings
def set_policy(
    settings: Settings,
    name: str,
    level: str | None,
    mirrors: int | None,
    keep_last: int | None,
    keep_every: int | None,
    max_age: int | None,
    allow_degraded: bool | None,
    read_policy: str | None,
) -> None:
    """Change a pool's policy; what is not named stays as it is.

    The controller applies it every half minute (its collect_interval_seconds), not at once.
    """
    if all(v is None for v in (level, mirrors, keep_last, keep_every, max_age, allow_degraded, read_policy)):
        raise click.UsageError(
            "nothing to change: name at least one of --level, --mirrors, --keep-last, --keep-every, --max-age, "
            "--allow-degraded, --read-policy"
        )
    with open_cluster(settings) as cluster:
        changed = cluster.update_pool(
            name,
            level=level,
            mirrors=mirrors,
            keep_last=keep_last,
            keep_every_steps=keep_every,
            max_age_seconds=max_age,
            allow_degraded=allow_degraded,
            read_policy=read_policy,
        )
    _emit_changed(settings, changed, "is changed")


@pool.command("delete", examples="sdrs pool delete old\nsdrs pool delete old --yes")
@click.argument("name", shell_complete=complete_pool)
@yes_option
@pass_settings
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a pool. One that still holds checkpoints is refused."""
    with open_cluster(settings) as cluster:
        found = cluster.pool(name)
        confirm(f'This deletes the pool "{name}" and its policy.', yes=yes, retype=name)
        cluster.delete_pool(name)
    if settings.is_json:
        emit_json(pool_record(found))
    else:
        emit_note(settings, f'pool "{name}" is deleted')


def _emit_changed(settings: Settings, info: PoolInfo, what: str) -> None:
    if settings.is_json:
        emit_json(pool_record(info))
    else:
        pool = info.pool
        policy = f"{pool.level}, {_stores(pool)}, keeps {_keeps(pool.retention)}"
        emit_note(settings, f'pool "{pool.name}" {what}: {policy}')


def pool_listing(pools: Sequence[PoolInfo]) -> Listing:
    columns = [
        Column("POOL"),
        Column("LEVEL"),
        Column("STORES"),
        Column("CHECKPOINTS", is_number=True),
        Column("USED", is_number=True),
        Column("KEEPS", folds=True),
    ]
    rows = [
        (
            info.pool.name,
            str(info.pool.level),
            _stores(info.pool),
            str(info.checkpoint_count),
            format_bytes(info.used_bytes),
            _keeps(info.pool.retention),
        )
        for info in pools
    ]
    return Listing(columns, rows, "there are no pools: make one with `sdrs pool create`")


def _stores(pool: Pool) -> str:
    if pool.parity_fragments:
        return f"{pool.data_fragments}+{pool.parity_fragments} erasure code"
    return "one copy" if pool.mirrors == 1 else f"{pool.mirrors} copies"


def _when_short(pool: Pool) -> str:
    if pool.level is Level.L1:
        return "one copy is all it asks for"
    return "saves go on with fewer copies" if pool.allow_degraded else "saves wait or are refused"


def _keeps(retention: Retention) -> str:
    if retention.keeps_all:
        return "everything"
    rules = []
    if retention.keep_last:
        rules.append(f"the last {retention.keep_last}")
    if retention.keep_every_steps:
        rules.append(f"every {retention.keep_every_steps} steps")
    if retention.max_age_seconds:
        rules.append(f"nothing older than {format_duration(retention.max_age_seconds)}")
    return ", ".join(rules)
