"""``sdrs pool``: named policies, what they keep, and which nodes they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sdrs.cli.amounts import duration, size
from sdrs.cli.completion import complete_node, complete_nodes, complete_pool
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.groups import group_listing
from sdrs.cli.output import emit_facts, emit_json, emit_listing, emit_note, emit_warning
from sdrs.cli.pool_words import keeps, lowering, pool_facts, pool_listing, shared_nodes, stores
from sdrs.cli.records import group_record, pool_record
from sdrs.cli.settings import F, Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.cluster import ReadPolicy
from sdrs_core.levels import Level

if TYPE_CHECKING:
    from sdrs import Cluster, PoolInfo

    _Choice = click.Choice[str]
else:
    _Choice = click.Choice  # generic since click 8.2 only

_NODES_NAMED = 8


class _LevelChoice(_Choice):
    """Offered as they are written everywhere; click's own way to ignore the case offers l1."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).upper(), param, ctx)


_LEVELS = _LevelChoice([level.name for level in Level if level is not Level.NONE])
_READ_POLICIES = click.Choice([policy.value.replace("_", "-") for policy in ReadPolicy])
_COUNT = click.IntRange(0, (1 << 31) - 1)


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs pool create fast --level L2 --mirrors 2
    sdrs pool create prod --level L3 --ec 4+2
    sdrs pool list
    """,
)
def pool() -> None:
    """Create and change pools: level, redundancy, retention, quota, nodes."""


def _policy_options(function: F) -> F:
    """Those that `create` and `set` share."""
    for option in (
        click.option("--quota", type=size, metavar="SIZE", help="Of its checkpoints, as 500GiB; 0 turns it off."),
        click.option("--read-policy", type=_READ_POLICIES, help="Which holder of a blob is read first."),
        click.option(
            "--allow-degraded/--no-allow-degraded",
            default=None,
            help="Go on saving with fewer copies when too few nodes are left (L2, L3).",
        ),
        click.option(
            "--max-age", type=duration, metavar="AGE", help="Delete older ones, as 12h or 7d; 0 turns it off."
        ),
        click.option(
            "--keep-every", type=_COUNT, metavar="STEPS", help="Keep steps divisible by this; 0 turns it off."
        ),
        click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the newest N of each job; 0 turns it off."),
        click.option(
            "--mirror-ratio",
            type=click.FloatRange(0, 1),
            metavar="R",
            help="Mirror the newest up to this proportion of its bytes, as 0.25 (L3); 0 turns it off.",
        ),
        click.option(
            "--mirror-pool",
            metavar="POOL",
            shell_complete=complete_pool,
            help="Mirror the newest checkpoints whole in this other pool (L3).",
        ),
        click.option("--ec", metavar="K+M", help="Erasure code (L3), as 4+2: any K of K+M fragments are enough."),
        click.option("--mirrors", type=click.IntRange(min=1), metavar="N", help="Whole copies (L2; 2)."),
    ):
        function = option(function)
    return function


def _sdk_names(options: dict[str, Any]) -> dict[str, Any]:
    """The options above, as the SDK calls them."""
    renamed = {"keep_every": "keep_every_steps", "max_age": "max_age_seconds", "quota": "quota_bytes"}
    return {renamed.get(name, name): value for name, value in options.items()}


@pool.command(
    "create",
    examples="""
    sdrs pool create fast --level L2 --mirrors 2
    sdrs pool create prod --level L3 --ec 4+2 --quota 500GiB
    sdrs pool create prod --level L3 --ec 4+2 --mirror-pool second --mirror-ratio 0.25
    sdrs pool create second --level L2 --nodes node-7,node-8
    sdrs pool create busy --level L2 --allow-degraded --read-policy least-response-time
    sdrs pool create nightly --level L1 --keep-last 5 --keep-every 10000 --max-age 30d
    """,
)
@click.argument("name")
@click.option("--level", type=_LEVELS, required=True, help="What failure the data survives.")
@_policy_options
@click.option("--nodes", metavar="N,N,...", shell_complete=complete_nodes, help="Whose disks it uses (all nodes').")
@pass_settings
def create(settings: Settings, /, name: str, level: str, nodes: str | None, **options: Any) -> None:
    """Create a pool.

    L1 keeps one copy, L2 whole copies on different nodes, L3 fragments of an erasure code, each in a failure domain of
    its own. Whatever the policy says, the newest good checkpoint of a job and those on hold are never deleted. The
    controller applies retention every half minute (its collect_interval_seconds), not at once.
    """
    given, node_names = _sdk_names(options), _node_names(nodes)
    with open_cluster(settings) as cluster:
        made = cluster.create_pool(
            name,
            level,
            nodes=node_names,
            **given
            | {
                "allow_degraded": bool(given["allow_degraded"]),
                "read_policy": given["read_policy"] or ReadPolicy.ROUND_ROBIN,
            },
        )
        _emit_changed(settings, made, "is created")
        _tell_shared(settings, cluster, made)


def _node_names(text: str | None) -> list[str]:
    if text is None:
        return []
    names = [one.strip() for one in text.split(",")]
    if not all(names):
        # As an unset variable of a script would say it: not what somebody means who names nodes.
        raise click.BadParameter(
            f"{text!r} names no node, or one without a name: give ids, as in n1,n2", param_hint="--nodes"
        )
    return names


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
    emit_facts(settings, pool_facts(found))
    emit_note(settings, "")
    emit_listing(settings, group_listing(found.groups))


@pool.command(
    "set",
    examples="""
    sdrs pool set nightly --keep-last 10
    sdrs pool set nightly --max-age 0          no limit of age any more
    sdrs pool set default --level L3 --ec 4+2  online: what is stored is converted in the background
    sdrs pool set prod --mirror-ratio 0        no mirror in another pool any more
    sdrs pool set prod --level L2 --yes        lower, without being asked
    sdrs pool set fast --read-policy weighted-response-time
    """,
)
@click.argument("name", shell_complete=complete_pool)
@click.option("--level", type=_LEVELS, help="What failure the data survives. To lower it asks.")
@_policy_options
@yes_option
@pass_settings
def set_policy(settings: Settings, /, name: str, level: str | None, yes: bool, **options: Any) -> None:
    """Change a pool's policy; what is not named stays as it is.

    New saves follow a change of level or redundancy at once. What is stored already is converted in the background and
    readable all the while; `sdrs repair status` tells how far that is. Retention is applied every half minute.
    """
    if level is None and all(value is None for value in options.values()):
        names = ", ".join(f"--{option.replace('_', '-')}" for option in ("level", *options))
        raise click.UsageError(f"nothing to change: name at least one of {names}")
    with open_cluster(settings) as cluster:
        before = cluster.pool(name).pool if level is not None else None
        if before is not None and level is not None and Level[level] < before.level:
            confirm(lowering(before, Level[level]), yes=yes)
        changed = cluster.update_pool(name, level=level, **_sdk_names(options))
        _emit_changed(settings, changed, "is changed")
        if options["mirror_pool"]:
            _tell_shared(settings, cluster, changed)


@pool.command("expand", examples="sdrs pool expand prod node-7 node-8\nsdrs node add && sdrs pool expand prod node-7")
@click.argument("name", shell_complete=complete_pool)
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@pass_settings
def expand(settings: Settings, name: str, nodes: tuple[str, ...]) -> None:
    """Let a pool use more nodes.

    A pool that was made without --nodes uses all of them anyway. Data moves onto the new ones in the background.
    """
    with open_cluster(settings) as cluster:
        changed = cluster.expand_pool(name, nodes)
    if settings.is_json:
        emit_json(pool_record(changed))
    elif changed.pool.node_ids:
        emit_note(settings, f'pool "{name}" uses {_named(changed.pool.node_ids)}')
    else:
        emit_note(settings, f'pool "{name}" uses all nodes already')


@pool.command("shrink", examples="sdrs pool shrink prod node-7")
@click.argument("name", shell_complete=complete_pool)
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_node)
@pass_settings
def shrink(settings: Settings, name: str, nodes: tuple[str, ...]) -> None:
    """Let a pool do without some of its nodes, online.

    Its groups leave them at once, and what they hold of this pool moves to the others in the background; other pools
    are not touched. Refused (exit 4) if too few failure domains would be left. Nodes that join the cluster later are in
    this pool only by `sdrs pool expand`.
    """
    with open_cluster(settings) as cluster:
        changed = cluster.shrink_pool(name, nodes)
    if settings.is_json:
        emit_json(pool_record(changed))
    else:
        told = "what the others hold of it moves, see `sdrs repair status`"
        emit_note(settings, f'pool "{name}" uses {_named(changed.pool.node_ids)}; {told}')


@pool.command("delete", examples="sdrs pool delete old\nsdrs pool delete old --yes")
@click.argument("name", shell_complete=complete_pool)
@yes_option
@pass_settings
def delete(settings: Settings, name: str, yes: bool) -> None:
    """Delete a pool. One that holds checkpoints, or mirrors those of another pool, is refused."""
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
        policy = f"{pool.level}, {stores(pool)}, keeps {keeps(pool.retention)}"
        emit_note(settings, f'pool "{pool.name}" {what}: {policy}')


def _tell_shared(settings: Settings, cluster: Cluster, info: PoolInfo) -> None:
    if info.pool.mirror_pool:
        shared = shared_nodes(info.pool, cluster.pool(info.pool.mirror_pool).pool, cluster.nodes())
        if shared:
            text = f'pools "{info.pool.name}" and "{info.pool.mirror_pool}" share {_named(shared)}'
            emit_warning(settings, f"{text}: the loss of these hits both. Give each nodes of its own with --nodes")


def _named(nodes: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(nodes) - _NODES_NAMED} more" if len(nodes) > _NODES_NAMED else ""
    return f"{', '.join(nodes[:_NODES_NAMED])}{more}"
