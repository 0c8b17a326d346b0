"""``sdrs disk``: what lies on which disk, and how one is taken out of use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sdrs.cli import failures
from sdrs.cli.amounts import duration, format_bytes
from sdrs.cli.completion import complete_disk, complete_node
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_json, emit_listing, emit_note
from sdrs.cli.records import checkpoint_record, node_disk_record
from sdrs.cli.settings import Settings, VerbGroup, pass_settings, yes_option
from sdrs.cli.waiting_for_moves import wait_until_empty

if TYPE_CHECKING:
    from sdrs import Cluster
    from sdrs.upkeep import NodeDisk

# Of an id, where a person reads it; a beginning is enough to name a disk.
_ID_SHOWN = 12


@click.group(cls=VerbGroup, examples="sdrs disk list\nsdrs disk drain 3f2a --wait\nsdrs disk replace 3f2a")
def disk() -> None:
    """See the disks, and take them out of use: drained while they work, replaced when they are dead."""


@disk.command(
    "list",
    examples="""
    sdrs disk list
    sdrs disk list --node node-1 -o json | jq -r '.[] | select(.state != "ok") | .id'
    """,
)
@click.option("--node", "node_id", metavar="NODE", shell_complete=complete_node, help="Only those of this node.")
@pass_settings
def list_disks(settings: Settings, node_id: str | None) -> None:
    """List the disks, with what is on record there; also those that are on record and not there."""
    with open_cluster(settings) as cluster:
        found = cluster.disks(node_id)
    if settings.is_json:
        emit_json([node_disk_record(disk) for disk in found])
    else:
        emit_listing(settings, _listing(found))


@disk.command(
    "drain",
    examples="""
    sdrs disk drain 3f2a             it goes on by itself
    sdrs disk drain 3f2a --wait      and wait until nothing is on it
    sdrs disk drain 3f2a --cancel    it is used again
    """,
)
@click.argument("disk_id", metavar="DISK", shell_complete=complete_disk)
@click.option("--wait/--no-wait", default=False, help="Wait until it is done (no).")
@click.option("--wait-at-most", type=duration, metavar="TIME", help="Give up waiting after that, as 10m; exit 3.")
@click.option("--cancel", is_flag=True, help="End the drain: the disk is used again, and keeps what it has.")
@click.pass_context
@pass_settings
def drain(
    settings: Settings, context: click.Context, disk_id: str, wait: bool, wait_at_most: int | None, cancel: bool
) -> None:
    """Move all that a disk holds to other disks and nodes, while it still works.

    Nothing new comes to it, and it is read from until its data is moved. The drain is kept by the cluster: Ctrl-C ends
    the waiting only. DISK is its id, or the beginning of it. Refused (exit 4) if its node has no other disk to write
    on, and a pool would be left with too few nodes without it.
    """
    with open_cluster(settings) as cluster:
        found = cluster.drain_disk(disk_id, cancel)
        is_empty = not cancel and wait and _wait_for_drain(settings, cluster, found, wait_at_most)
        found = _looked_up(cluster, found)
    shown = f"disk {found.disk.id[:_ID_SHOWN]} of {found.node_id}"
    if settings.is_json:
        emit_json(node_disk_record(found) | {"drained": is_empty})
    elif cancel:
        emit_note(settings, f"{shown} is no longer drained: it is used again")
    elif is_empty:
        emit_note(settings, f"{shown} is drained: nothing is on it, it can be taken out")
    else:
        emit_note(settings, f"{shown} is being drained, {format_bytes(found.held_bytes)} are left")
    if wait and not cancel and not is_empty:
        context.exit(failures.DEGRADED)


def _wait_for_drain(settings: Settings, cluster: Cluster, found: NodeDisk, timeout_seconds: float | None) -> bool:
    def left() -> tuple[int, int]:
        now = _looked_up(cluster, found)
        return now.held_bytes, now.held_count

    def is_done() -> bool:
        # Said again, it is answered by a fresh look: the last survey may be of before the drain.
        return not cluster.drain_disk(found.disk.id).held_count

    title = f"draining {found.disk.id[:_ID_SHOWN]}"
    return wait_until_empty(settings, title, left, is_done, timeout_seconds=timeout_seconds)


def _looked_up(cluster: Cluster, found: NodeDisk) -> NodeDisk:
    """As it is now; with nothing on it, if it is neither there nor on record any more."""
    known = (disk for disk in cluster.disks(found.node_id) if disk.disk.id == found.disk.id)
    return next(known, None) or type(found)(found.node_id, found.disk, 0, 0, is_absent=True)


@disk.command(
    "replace",
    examples="""
    sdrs disk replace 3f2a                        it is dead, and will not come back
    sdrs disk replace 3f2a --accept-data-loss     and so is what cannot be brought back without it
    """,
)
@click.argument("disk_id", metavar="DISK", shell_complete=complete_disk)
@click.option("--accept-data-loss", is_flag=True, help="Give up the checkpoints that cannot be read without this disk.")
@yes_option
@pass_settings
def replace(settings: Settings, disk_id: str, accept_data_loss: bool, yes: bool) -> None:
    """Give up a disk that will not come back: what it held is made anew elsewhere, at once.

    A new disk needs no word: its node reports it, and it is used. Refused (exit 4) while the disk is there and works
    (drain it then), and while its node is down. Checkpoints that cannot be brought back without the disk are named,
    and given up only with --accept-data-loss. DISK is its id, or the beginning of it.
    """
    with open_cluster(settings) as cluster:
        question = f"This gives up disk {disk_id}: what is on it does not count any more, even if it comes back"
        if accept_data_loss:
            question += ", and gives up the checkpoints that cannot be read without it"
        confirm(f"{question}.", yes=yes)
        done = cluster.replace_disk(disk_id, accept_data_loss)
    if settings.is_json:
        lost = [checkpoint_record(save) for save in done.lost]
        emit_json({"id": disk_id, "replaced": True, "blob_count": done.blob_count, "lost": lost})
        return
    for save in done.lost:
        emit_note(settings, f"lost: {save.title} ({format_bytes(save.size_bytes)})")
    emit_note(
        settings, f"disk {disk_id} is given up: {done.blob_count} fragments are made anew, see `sdrs repair status`"
    )


def _listing(disks: Sequence[NodeDisk]) -> Listing:
    columns = [
        Column("DISK"),
        Column("NODE"),
        Column("STATE"),
        Column("USED", is_number=True),
        Column("CAPACITY", is_number=True),
        Column("HOLDS", is_number=True),
        Column("BYTES", is_number=True),
        Column("PATH", folds=True),
        Column("DETAIL", folds=True),
    ]
    rows = [
        (
            found.disk.id[:_ID_SHOWN],
            found.node_id,
            "absent" if found.is_absent else found.disk.state.value,
            "" if found.is_absent else format_bytes(found.disk.used_bytes),
            "" if found.is_absent else format_bytes(found.disk.capacity_bytes),
            str(found.held_count),
            format_bytes(found.held_bytes),
            found.disk.path,
            found.disk.detail,
        )
        for found in disks
    ]
    return Listing(columns, rows, "no node has told of a disk yet")
