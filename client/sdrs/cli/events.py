"""``sdrs history``: what happened to the cluster, and for how long anybody was kept waiting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sdrs.cli.amounts import format_age, format_milliseconds, format_time
from sdrs.cli.completion import complete_group, complete_node
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_json, emit_listing
from sdrs.cli.records import event_record
from sdrs.cli.settings import Settings, Verb, pass_settings

if TYPE_CHECKING:
    from sdrs import Event

_DEFAULT_LIMIT = 50
_MOST = 100_000


@click.command(
    cls=Verb,
    examples="""
    sdrs history
    sdrs history --group fast:node-1 --limit 10
    sdrs history --node node-2 -o json
    """,
)
@click.option("--group", metavar="GROUP", shell_complete=complete_group, help="Only what happened to this group.")
@click.option("--node", metavar="NODE", shell_complete=complete_node, help="Only what happened to this node.")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=_DEFAULT_LIMIT,
    metavar="N",
    help=f"At most so many ({_DEFAULT_LIMIT}).",
)
@pass_settings
def history(settings: Settings, group: str | None, node: str | None, limit: int) -> None:
    """Tell what happened: nodes lost and back, primaries promoted, members replaced, repairs; newest first.

    TOOK is the time from the first sign of trouble to the change.
    """
    with open_cluster(settings) as cluster:
        events = cluster.history(group, node, limit)
    if settings.is_json:
        emit_json([event_record(event) for event in events])
    else:
        emit_listing(settings, event_listing(events))


def event_listing(events: Sequence[Event], *, with_age: bool = False) -> Listing:
    """``with_age``: how long ago, for a screen that is looked at now; else when, to be kept."""
    now_unix_ms = int(time.time() * 1000)
    columns = [
        Column("AGE" if with_age else "TIME"),
        Column("EVENT"),
        Column("GROUP"),
        Column("NODE"),
        Column("EPOCH", is_number=True),
        Column("TOOK", is_number=True),
        Column("WHAT", folds=True),
    ]
    rows = [
        (
            format_age(event.unix_ms, now_unix_ms) if with_age else format_time(event.unix_ms) or "",
            event.kind,
            event.group_id or "",
            event.node_id or "",
            str(event.epoch or ""),
            format_milliseconds(event.duration_ms) if event.duration_ms else "",
            event.text,
        )
        for event in events
    ]
    return Listing(columns, rows, "nothing happened yet")
