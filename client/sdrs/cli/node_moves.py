"""Verbs of ``sdrs node`` that take a node in or out: add, drain, remove, and what is asked before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sdrs.cli import failures
from sdrs.cli.amounts import duration, format_bytes
from sdrs.cli.completion import complete_node
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import find_url, open_cluster
from sdrs.cli.local_nodes import add_nodes, stop_removed
from sdrs.cli.output import emit_json, emit_note, emit_warning, spinner
from sdrs.cli.records import checkpoint_record, node_record
from sdrs.cli.settings import Settings, Verb, dir_option, pass_settings, yes_option
from sdrs.cli.up import running_dir
from sdrs.cli.waiting_for_moves import holds, wait_until_empty
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import check_name

if TYPE_CHECKING:
    from sdrs import Cluster

_COUNT = click.IntRange(1, 64)


def _check_domain(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        return check_name(text, "domain") if text else text
    except InvalidArgumentError as error:
        raise click.BadParameter(error.message) from None


@click.command(
    "add",
    cls=Verb,
    examples="""
    sdrs node add                    one more node of the cluster on this machine
    sdrs node add --count 3
    sdrs node add --domain rack-2    it falls together with others of that domain
    """,
)
@click.option("--count", type=_COUNT, default=1, metavar="N", help="How many (1).")
@click.option(
    "--domain", metavar="D", default="", callback=_check_domain, help="Their failure domain (each one of its own)."
)
@click.option("--disks-per-node", type=_COUNT, metavar="N", default=1, help="Data folders of each (1).")
@dir_option("Where the cluster lives, if not the one that is running.")
@pass_settings
def add(settings: Settings, count: int, domain: str, disks_per_node: int, directory: Path | None) -> None:
    """Start new storage nodes for the cluster on this machine.

    They take part as soon as they are up: pools that use all nodes plan them in, and data moves onto them in the
    background. Elsewhere a node is added by starting storaged with the role node on its machine; a pool made with
    --nodes takes it in by `sdrs pool expand`.
    """
    with spinner(settings) as tell:
        added = add_nodes(running_dir(directory), count, disks_per_node, domain, tell)
    settings.url = added.url
    with open_cluster(settings) as cluster:
        nodes = [node for node in cluster.nodes() if node.id in added.node_ids]
    if settings.is_json:
        emit_json([node_record(node) for node in nodes])
    else:
        emit_note(settings, f"started {', '.join(added.node_ids)}: up, and part of the cluster at {added.url}")


@click.command(
    "drain",
    cls=Verb,
    examples="""
    sdrs node drain node-3                    and wait until nothing is on it
    sdrs node drain node-3 --no-wait          it goes on by itself
    sdrs node drain node-3 --cancel           it stays after all
    """,
)
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@click.option("--wait/--no-wait", default=True, help="Wait until it is done (yes).")
@click.option("--wait-at-most", type=duration, metavar="TIME", help="Give up waiting after that, as 10m; exit 3.")
@click.option("--cancel", is_flag=True, help="End the drain: it takes part again, and keeps what it has.")
@click.pass_context
@pass_settings
def drain(
    settings: Settings, context: click.Context, node_id: str, wait: bool, wait_at_most: int | None, cancel: bool
) -> None:
    """Move all that a node holds to others, so that it can be removed.

    Groups leave it at once and new saves go elsewhere; it is read from until its data is moved. The drain is kept by
    the cluster: Ctrl-C ends the waiting only, and the same command waits again. Refused (exit 4) if a pool would be
    left with too few nodes.
    """
    with open_cluster(settings) as cluster:
        node = cluster.drain_node(node_id, cancel)
        if not cancel and wait:
            is_empty = _wait_for_drain(settings, cluster, node_id, wait_at_most)
            node = cluster.node_status(node_id).node
        else:
            is_empty = cancel
        status = cluster.node_status(node_id)
    if settings.is_json:
        held = {"held_count": status.held_count, "held_bytes": status.held_bytes}
        emit_json(node_record(node) | held | {"drained": is_empty and not cancel})
    elif cancel:
        emit_note(settings, f"{node_id} is no longer drained: it takes part again")
    elif is_empty:
        emit_note(settings, f"{node_id} is drained: nothing is on it, `sdrs node remove {node_id}` takes it off")
    else:
        left = f"{format_bytes(status.held_bytes)} are left"
        emit_note(settings, f"{node_id} is being drained, {left}; `sdrs node drain {node_id}` waits for it")
    if wait and not is_empty:
        context.exit(failures.DEGRADED)


def _wait_for_drain(settings: Settings, cluster: Cluster, node_id: str, timeout_seconds: float | None) -> bool:
    def left() -> tuple[int, int]:
        status = cluster.node_status(node_id)
        return status.held_bytes, status.held_count

    return wait_until_empty(
        settings,
        f"draining {node_id}",
        left,
        lambda: holds(lambda: cluster.safe_to_destroy(node_id)),
        timeout_seconds=timeout_seconds,
    )


@click.command(
    "remove",
    cls=Verb,
    examples="""
    sdrs node drain node-3 && sdrs node remove node-3 --yes
    sdrs node remove node-3 --accept-data-loss       it is dead, and so is what only it had
    """,
)
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@click.option("--accept-data-loss", is_flag=True, help="Give up the checkpoints that only this node has.")
@yes_option
@pass_settings
def remove(settings: Settings, node_id: str, accept_data_loss: bool, yes: bool) -> None:
    """Take a node off the cluster for good.

    Refused (exit 4) while something on record is on it: drain it first. One that is down may go as soon as all that it
    had is made anew on others; what only it has is named, and given up only with --accept-data-loss. A node of the
    cluster on this machine is stopped too; its files stay. One that comes back later joins as a new one.
    """
    url, _ = find_url(settings)
    with open_cluster(settings) as cluster:
        status = cluster.node_status(node_id)
        question = (
            f"This takes node {node_id} ({status.node.state.value}, {status.held_count} fragments) off the cluster"
        )
        if accept_data_loss:
            question += ", and gives up the checkpoints that only it has, even if it comes back"
        confirm(f"{question}.", yes=yes, retype=node_id)
        lost = cluster.remove_node(node_id, accept_data_loss)
    is_stopped = stop_removed(url, node_id)
    if settings.is_json:
        emit_json({"id": node_id, "removed": True, "stopped": is_stopped, "lost": [checkpoint_record(s) for s in lost]})
        return
    for save in lost:
        emit_note(settings, f"lost: {save.title} ({format_bytes(save.size_bytes)})")
    emit_note(settings, f"{node_id} is removed" + (" and stopped" if is_stopped else ""))
    if not is_stopped:
        emit_warning(settings, f"if storaged still runs on {node_id}, stop it: in a minute it would join as a new node")


@click.command("ok-to-stop", cls=Verb, examples="sdrs node ok-to-stop node-1 && ssh node-1 reboot")
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@pass_settings
def ok_to_stop(settings: Settings, node_id: str) -> None:
    """Ask whether a node may be stopped for a while.

    Exits with 0 if every checkpoint stays readable and every pool takes saves without it; with 4 and the reason if not,
    or if nobody can tell now.
    """
    with open_cluster(settings) as cluster:
        _emit_answer(settings, node_id, cluster.ok_to_stop(node_id))


@click.command("safe-to-destroy", cls=Verb, examples="sdrs node safe-to-destroy node-1 && sdrs node remove node-1")
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@pass_settings
def safe_to_destroy(settings: Settings, node_id: str) -> None:
    """Ask whether a node may be lost for good.

    Exits with 0 if all that it holds has its full redundancy on other nodes; with 4 and the reason if not, or if nobody
    can tell now.
    """
    with open_cluster(settings) as cluster:
        _emit_answer(settings, node_id, cluster.safe_to_destroy(node_id))


def _emit_answer(settings: Settings, node_id: str, why: str) -> None:
    if settings.is_json:
        emit_json({"id": node_id, "safe": True, "why": why})
    else:
        emit_note(settings, why)
