"""``sdrs node``: the machines and their disks. The verbs that take one in or out are in ``node_moves``."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from sdrs.cli.amounts import format_age, format_bytes, format_milliseconds
from sdrs.cli.completion import complete_node
from sdrs.cli.connection import open_cluster
from sdrs.cli.groups import group_listing
from sdrs.cli.node_moves import add, drain, ok_to_stop, remove, safe_to_destroy
from sdrs.cli.output import Column, Listing, emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.records import group_record, node_record
from sdrs.cli.settings import Settings, VerbGroup, pass_settings
from sdrs_core.cluster import Disk, Node, NodeState


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs node list
    sdrs node show node-1
    sdrs node ok-to-stop node-1
    sdrs node drain node-1 && sdrs node remove node-1
    """,
)
def node() -> None:
    """See the nodes: where they are, whether they are up, how full; take them out of use, and in."""


@node.command(
    "list", examples="sdrs node list\nsdrs node list -o json | jq -r '.[] | select(.state == \"down\") | .id'"
)
@pass_settings
def list_nodes(settings: Settings) -> None:
    """List the nodes of the cluster."""
    with open_cluster(settings) as cluster:
        nodes = cluster.nodes()
    if settings.is_json:
        emit_json([node_record(node) for node in nodes])
    else:
        emit_listing(settings, node_listing(nodes))


@node.command("show", examples="sdrs node show node-1\nsdrs node show node-1 -o json")
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@pass_settings
def show_node(settings: Settings, node_id: str) -> None:
    """Show one node with its disks, and how much is on record there."""
    with open_cluster(settings) as cluster:
        status = cluster.node_status(node_id)
    found, groups = status.node, list(status.groups)
    if settings.is_json:
        held = {"held_count": status.held_count, "held_bytes": status.held_bytes}
        emit_json(node_record(found) | held | {"groups": [group_record(group) for group in groups]})
        return
    now_unix_ms = int(time.time() * 1000)
    emit_facts(
        settings,
        {
            "node": found.id,
            "state": found.state.value,
            "cordoned": _cordon_words(found),
            "draining": "yes: what it holds moves to other nodes" if found.draining else "no",
            "holds": f"{status.held_count} fragments, {format_bytes(status.held_bytes)}",
            "staging": staging_words([found]),
            "flapping": "yes: it went away too often of late, and is used last" if found.flapping else "no",
            "address": found.endpoints.grpc,
            "data address": found.endpoints.data,
            "metrics": found.endpoints.metrics,
            "domain": found.domain,
            "host": found.endpoints.host,
            "pid": str(found.pid),
            "version": found.version,
            "last seen": format_age(found.last_seen_unix_ms, now_unix_ms),
        },
    )
    emit_note(settings, "")
    emit_listing(settings, _disk_listing(found.disks))
    emit_note(settings, "")
    emit_listing(settings, group_listing(groups))


@node.command(
    "cordon",
    examples="sdrs node cordon node-1       before its machine is worked on\n"
    'sdrs node cordon node-1 --reason "fan replaced on Friday"',
)
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@click.option("--reason", default="", metavar="TEXT", help="Told with the node until it is uncordoned.")
@pass_settings
def cordon(settings: Settings, node_id: str, reason: str) -> None:
    """Keep a node out of new saves and new jobs.

    Groups move off it by themselves; what it holds stays, and is read from it as before. Refused (exit 4) if a pool
    would be left with too few nodes.
    """
    with open_cluster(settings) as cluster:
        _emit_changed(settings, cluster.cordon(node_id, reason), "is cordoned: it takes no part in new saves")


@node.command("uncordon", examples="sdrs node uncordon node-1")
@click.argument("node_id", metavar="NODE", shell_complete=complete_node)
@pass_settings
def uncordon(settings: Settings, node_id: str) -> None:
    """Let a node take part in new saves again."""
    with open_cluster(settings) as cluster:
        _emit_changed(settings, cluster.uncordon(node_id), "takes part in new saves again")


for verb in (add, drain, remove, ok_to_stop, safe_to_destroy):
    node.add_command(verb)


def _emit_changed(settings: Settings, node: Node, what: str) -> None:
    if settings.is_json:
        emit_json(node_record(node))
    else:
        emit_note(settings, f"{node.id} {what}")


def node_listing(nodes: list[Node]) -> Listing:
    columns = [
        Column("NODE"),
        Column("STATE"),
        Column("ADDRESS"),
        Column("DOMAIN"),
        Column("PID", is_number=True),
        Column("DISKS", is_number=True),
        Column("USED", is_number=True),
        Column("CAPACITY", is_number=True),
        Column("FILL", is_number=True),
        Column("NOTES", folds=True),
    ]
    rows = []
    for node in nodes:
        used, capacity = sum(disk.used_bytes for disk in node.disks), sum(disk.capacity_bytes for disk in node.disks)
        rows.append(
            (
                node.id,
                node.state.value,
                node.endpoints.grpc,
                node.domain,
                str(node.pid or ""),
                str(len(node.disks)),
                format_bytes(used),
                format_bytes(capacity),
                fill(used, capacity),
                ", ".join(_notes(node)),
            )
        )
    return Listing(columns, rows, "no node has joined yet")


def staging_words(nodes: Sequence[Node]) -> str:
    """How much memory saves of these nodes' hosts take, and how many are not stored yet."""
    up = [node for node in nodes if node.state is NodeState.UP]
    told = [node.staging for node in up if node.staging is not None]
    if not told:
        return "off" if up else "not known"
    taken, budget = sum(one.taken_bytes for one in told), sum(one.budget_bytes for one in told)
    kept, count = sum(one.kept_bytes for one in told), sum(one.waiting_count for one in told)
    words = f"{format_bytes(taken)} of {format_bytes(budget)}"
    words += f" ({format_bytes(kept)} left by ended processes, kept to be read)" if kept else ""
    if not count:
        return f"{words}, no save under way"
    oldest = format_milliseconds(max(one.oldest_waiting_ms for one in told))
    return f"{words}, {count} {'save' if count == 1 else 'saves'} under way, the oldest for {oldest}"


def _cordon_words(node: Node) -> str:
    if not node.cordoned:
        return "no"
    return f"yes: it takes no part in new saves{f' ({node.cordoned_because})' if node.cordoned_because else ''}"


def _notes(node: Node) -> list[str]:
    cordoned = f"cordoned: {node.cordoned_because}" if node.cordoned_because else "cordoned"
    words = (cordoned, node.cordoned), ("draining", node.draining), ("flapping", node.flapping)
    return [word for word, holds in words if holds]


def fill(used_bytes: int, capacity_bytes: int) -> str:
    return f"{100 * used_bytes / capacity_bytes:.0f} %" if capacity_bytes else "-"


def _disk_listing(disks: tuple[Disk, ...]) -> Listing:
    columns = [
        Column("DISK"),
        Column("STATE"),
        Column("USED", is_number=True),
        Column("CAPACITY", is_number=True),
        Column("FILL", is_number=True),
        Column("FRAGMENTS", is_number=True),
        Column("PATH", folds=True),
        Column("DETAIL", folds=True),
    ]
    rows = [
        (
            disk.id[:8],
            disk.state.value,
            format_bytes(disk.used_bytes),
            format_bytes(disk.capacity_bytes),
            fill(disk.used_bytes, disk.capacity_bytes),
            str(disk.fragment_count),
            disk.path,
            disk.detail,
        )
        for disk in disks
    ]
    return Listing(columns, rows, "it has no disks")
