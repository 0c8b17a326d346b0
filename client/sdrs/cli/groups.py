"""``sdrs group``: primaries and replicas, and the verbs that move them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sdrs.cli.amounts import duration, format_bytes
from sdrs.cli.completion import complete_group, complete_node, complete_pool
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.events import event_listing
from sdrs.cli.output import Column, Listing, emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.records import Record, checkpoint_record, event_record, group_record
from sdrs.cli.settings import Settings, Verb, VerbGroup, pass_settings, yes_option
from sdrs_core.cluster import Group, NodeState

if TYPE_CHECKING:
    from sdrs import GroupInfo


@click.group(cls=VerbGroup, examples="sdrs group list\nsdrs group show fast:node-1")
def group() -> None:
    """See the groups: who is primary, who replicates, what is wrong."""


@group.command(
    "list",
    examples="sdrs group list\nsdrs group list --pool fast -o json | jq -r '.[] | select(.problem != \"\") | .id'",
)
@click.option("--pool", metavar="NAME", shell_complete=complete_pool, help="Only those of this pool.")
@pass_settings
def list_groups(settings: Settings, pool: str | None) -> None:
    """List the groups with their primaries."""
    with open_cluster(settings) as cluster:
        groups = cluster.groups(pool)
    if settings.is_json:
        emit_json([group_record(group) for group in groups])
    else:
        emit_listing(settings, group_listing(groups))


@group.command("show", examples="sdrs group show fast:node-1\nsdrs group show fast:node-1 -o json | jq .nodes[0].pid")
@click.argument("group_id", metavar="GROUP", shell_complete=complete_group)
@pass_settings
def show_group(settings: Settings, group_id: str) -> None:
    """Show one group: its members, the epoch each has seen, and what happened to it."""
    with open_cluster(settings) as cluster:
        found = cluster.group(group_id)
    if settings.is_json:
        emit_json(
            group_record(found.group)
            | {"nodes": _member_records(found), "events": [event_record(event) for event in found.events]}
        )
        return
    facts = {
        "group": found.group.id,
        "pool": found.group.pool,
        "epoch": str(found.group.epoch),
        "primary": found.group.primary,
        "at home on": ", ".join(found.group.home),
        "problem": found.group.problem or "none",
    }
    emit_facts(settings, facts)
    emit_note(settings, "")
    emit_listing(settings, _member_listing(found))
    emit_note(settings, "")
    emit_listing(settings, event_listing(found.events))


@click.command(
    cls=Verb,
    examples="""
    sdrs switchover fast:node-1
    sdrs switchover fast:node-1 --to node-2 --drain 5m
    """,
)
@click.argument("group_id", metavar="GROUP", shell_complete=complete_group)
@click.option("--to", metavar="NODE", shell_complete=complete_node, help="The new primary (the best other member).")
@click.option(
    "--drain", type=duration, default="30s", metavar="TIME", help="How long saves under way are waited for (30s)."
)
@pass_settings
def switchover(settings: Settings, group_id: str, to: str | None, drain: int) -> None:
    """Move a group's primary as planned: drain, then move. No save fails.

    Saves that are not done when the drain time is over go on at the new primary. Refused (exit 4) if the group or its
    new primary is not fit for it.
    """
    with open_cluster(settings) as cluster:
        _emit_moved(settings, cluster.switchover(group_id, to, drain))


@click.command(
    cls=Verb,
    examples="""
    sdrs failover fast:node-1
    sdrs failover fast:node-1 --to node-2
    sdrs failover single:node-1 --accept-data-loss
    """,
)
@click.argument("group_id", metavar="GROUP", shell_complete=complete_group)
@click.option("--to", metavar="NODE", shell_complete=complete_node, help="The new primary (the best other member).")
@click.option(
    "--accept-data-loss", is_flag=True, help="Give up checkpoints on nodes of this group that have no live copy left."
)
@yes_option
@pass_settings
def failover(settings: Settings, group_id: str, to: str | None, accept_data_loss: bool, yes: bool) -> None:
    """Move a group's primary by force, now, without waiting for anybody.

    Dead nodes are failed over by themselves: this is for what the cluster cannot decide. Refused (exit 4) if data would
    be lost, unless --accept-data-loss says so in so many words; what is lost is listed. `sdrs ckpt undelete` brings it
    back within the grace period.
    """
    with open_cluster(settings) as cluster:
        if accept_data_loss and not yes:
            count = cluster.info().unavailable_count
            known = f"{count} checkpoints of this cluster have" if count != 1 else "one checkpoint of this cluster has"
            confirm(
                f"This gives up the checkpoints on nodes of group {group_id} that have no live copy left, even if "
                f"their nodes come back ({known} none now).",
                yes=yes,
                retype=group_id,
            )
        outcome = cluster.failover(group_id, to, accept_data_loss)
    if settings.is_json:
        emit_json(group_record(outcome.group) | {"lost": [checkpoint_record(save) for save in outcome.lost]})
        return
    _emit_moved(settings, outcome.group)
    for save in outcome.lost:
        emit_note(settings, f"lost: {save.title} ({format_bytes(save.size_bytes)})")
    if accept_data_loss and not outcome.lost:
        emit_note(settings, "nothing was lost")


def _emit_moved(settings: Settings, moved: Group) -> None:
    if settings.is_json:
        emit_json(group_record(moved))
        return
    emit_note(settings, f"{moved.primary} is the primary of {moved.id} (epoch {moved.epoch})")
    if moved.problem:
        emit_note(settings, f"{moved.id}: {moved.problem}")


def group_listing(groups: Sequence[Group]) -> Listing:
    columns = [
        Column("GROUP"),
        Column("POOL"),
        Column("EPOCH", is_number=True),
        Column("PRIMARY"),
        Column("MEMBERS"),
        Column("PROBLEM", folds=True),
    ]
    rows = [(g.id, g.pool, str(g.epoch), g.primary, ", ".join(g.members), g.problem) for g in groups]
    return Listing(columns, rows, "no groups")


def _member_listing(found: GroupInfo) -> Listing:
    columns = [
        Column("MEMBER"),
        Column("ROLE"),
        Column("STATE"),
        Column("ADDRESS"),
        Column("PID", is_number=True),
        Column("EPOCH SEEN", is_number=True),
    ]
    rows = [
        (record["id"], record["role"], record["state"], record["address"], str(record["pid"]), str(record["epoch"]))
        for record in _member_records(found)
    ]
    return Listing(columns, rows, "it has no members")


def _member_records(found: GroupInfo) -> list[Record]:
    """In the order of the members. ``epoch`` is the one that the member is known to have persisted, 0 for none."""
    nodes = {node.id: node for node in found.nodes}
    epochs = dict(zip(found.group.members, found.member_epochs, strict=False))
    return [
        {
            "id": member,
            "role": "primary" if member == found.group.primary else "replica",
            "state": nodes[member].state.value if member in nodes else NodeState.DOWN.value,
            "address": nodes[member].endpoints.grpc if member in nodes else "",
            "pid": nodes[member].pid if member in nodes else 0,
            "epoch": epochs.get(member, 0),
        }
        for member in found.group.members
    ]
