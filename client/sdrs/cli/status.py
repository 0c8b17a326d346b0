"""``sdrs status``: the whole cluster on one screen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NoReturn

import click

from sdrs.cli import failures
from sdrs.cli.amounts import format_age, format_bytes
from sdrs.cli.connection import find_url, open_cluster
from sdrs.cli.events import event_listing
from sdrs.cli.groups import group_listing
from sdrs.cli.health import Health, JobHealth, State, collect, health_record, is_degraded, state_of, warnings
from sdrs.cli.job_states import job_words
from sdrs.cli.nodes import node_listing, staging_words
from sdrs.cli.output import (
    Column,
    Listing,
    draw_facts,
    draw_listing,
    emit_json,
    make_console,
    plain_facts,
    plain_listing,
)
from sdrs.cli.pool_words import pool_listing
from sdrs.cli.repairs import progress_words
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.cluster import Group
from sdrs_core.errors import DeadlineExceededError, UnavailableError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sdrs import ClusterInfo

# Often enough to see a promotion happen.
_REFRESH_SECONDS = 0.5
# A cluster that is away is said to be: that is news too.
_WATCH_PATIENCE_SECONDS = 1.0
_JOBS_SHOWN = 20
_GROUPS_SHOWN = 20
_EVENTS_TITLE = "Last events (`sdrs history` has all)"


@click.command(
    cls=Verb,
    examples="""
    sdrs status
    sdrs status -w                          live, until Ctrl-C
    sdrs status -o json | jq .warnings
    """,
)
@click.option("-w", "--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.pass_context
@pass_settings
def status(settings: Settings, context: click.Context, watch: bool) -> None:
    """Show how the cluster is, and what is wrong.

    The state is healthy, degraded (a node down, a disk lost, a checkpoint damaged), or repairing: redundancy is lost
    and being rebuilt, with how far it is. Exits with 0 if healthy, 3 if not, 6 if unreachable. Paused failover, drains
    and a quota that is nearly full are warnings, not defects.
    """
    if watch and not settings.is_interactive:
        raise click.UsageError("-w needs a terminal and no -o json: call `sdrs status` again and again instead")
    url, _ = find_url(settings)
    if watch:
        _watch(settings, url)
    with open_cluster(settings) as cluster:
        health = collect(cluster, url)
    if settings.is_json:
        emit_json(health_record(health))
    elif settings.is_interactive:
        make_console(settings).print(_draw(health))
    else:
        click.echo("\n".join(_plain(health)))
    if is_degraded(health):
        context.exit(failures.DEGRADED)


def _watch(settings: Settings, url: str) -> NoReturn:
    """Until Ctrl-C. A cluster that goes away is shown as such and watched on: that is when one looks."""
    from rich.console import Group as Stack
    from rich.live import Live
    from rich.text import Text

    settings.timeout_seconds = min(settings.timeout_seconds, _WATCH_PATIENCE_SECONDS)
    shown: RenderableType = Text("asking …", style="bright_black")
    with Live(shown, console=make_console(settings), screen=True, auto_refresh=False) as live:
        while True:
            try:
                # Connected anew each time: that tells at once whether it is there, where a call would wait for it.
                with open_cluster(settings) as cluster:
                    shown = _draw(collect(cluster, url))
            except (UnavailableError, DeadlineExceededError) as error:
                shown = Stack(Text(f"cannot be reached: {error.message}\n", style="bold red"), shown)
            foot = Text(
                f"\n{time.strftime('%H:%M:%S')}, every {_REFRESH_SECONDS:g} s, Ctrl-C ends", style="bright_black"
            )
            live.update(Stack(shown, foot), refresh=True)
            time.sleep(_REFRESH_SECONDS)


def _facts(health: Health) -> dict[str, str]:
    # Not the disks' figures: nodes on one machine may share a file system, which would be counted more than once.
    stored_bytes = sum(info.used_bytes for info in health.pools)
    count = sum(info.checkpoint_count for info in health.pools)
    # Only where somebody schedules: many clusters only keep checkpoints.
    jobs = {"jobs": job_words(health.job_states)} if health.job_states else {}
    return {
        "cluster": health.info.id,
        "state": _state_words(health),
        "version": health.info.version,
        "controller": f"{health.url} (pid {health.info.controller_pid}, term {health.info.term})",
        "stored": f"{format_bytes(stored_bytes)} in {count} checkpoints",
        "saves": f"{health.info.pending_save_count} pending, {health.info.trash_count} in the trash",
        "staging": staging_words(health.nodes),
        "groups": _group_words(health),
        "automatic failover": f"paused: {health.info.paused_because}" if health.info.paused_because else "on",
        "repair": _repair_words(health.info),
        "unavailable": _unavailable_words(health.info.unavailable_count),
        "scrub": _scrub_words(health),
        **jobs,
    }


def _state_words(health: Health) -> str:
    state = state_of(health)
    return f"{state.value}: {progress_words(health.info.repair)}" if state is State.REPAIRING else state.value


def _scrub_words(health: Health) -> str:
    """How old the last look at all that is stored is."""
    if health.scrub is None:
        return "not known"
    now_unix_ms = int(time.time() * 1000)
    scrub = health.scrub
    ages = [
        f"{name} {format_age(unix_ms, now_unix_ms)}" if unix_ms else f"{name} never"
        for name, unix_ms in (("shallow", scrub.shallow_done_unix_ms), ("deep", scrub.deep_done_unix_ms))
    ]
    under_way = ["under way"] if scrub.scrub is not None and scrub.scrub.is_under_way else []
    return ", ".join([*under_way, *ages])


def _group_words(health: Health) -> str:
    words = [str(len(health.groups))]
    if health.troubled_groups:
        words.append(f"{len(health.troubled_groups)} degraded")
    if health.moved_groups:
        words.append(f"{len(health.moved_groups)} away from home")
    return ", ".join(words)


def _repair_words(info: ClusterInfo) -> str:
    repair = info.repair
    if repair.waiting_blobs:
        words = progress_words(repair)
        kinds = [(repair.moving_blobs, "moving"), (repair.mirroring_blobs, "mirroring")]
        told = ", ".join(f"{count} {kind}" for count, kind in kinds if count)
        words += f" ({told})" if told else ""
    elif repair.awaited_blobs:
        short = _count(repair.awaited_blobs, "blob")
        words = f"{short} with too little redundancy, made elsewhere if their node stays away"
    elif info.degraded_blob_count:
        short = _count(info.degraded_blob_count, "blob")
        words = f"{short} with too little redundancy, and nothing can be made of them now"
    else:
        words = "nothing to do"
    return f"{words}; {_count(repair.failed_blobs, 'blob')} failed" if repair.failed_blobs else words


def _unavailable_words(count: int) -> str:
    return f"{_count(count, 'checkpoint')} of which too little is in reach" if count else "none"


def _count(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _listings(health: Health) -> list[Listing]:
    listings = [node_listing(health.nodes), pool_listing(health.pools), _job_listing(health.jobs)]
    if health.troubled_groups:
        listings.append(_trouble_listing(health.troubled_groups))
    return listings


def _trouble_listing(groups: list[Group]) -> Listing:
    shown = group_listing(groups[:_GROUPS_SHOWN])
    if len(groups) <= _GROUPS_SHOWN:
        return shown
    more = (f"… {len(groups) - _GROUPS_SHOWN} more", *("" for _ in shown.columns[1:]))
    return Listing(shown.columns, [*shown.rows, more], shown.when_empty)


def _job_listing(jobs: list[JobHealth]) -> Listing:
    now_unix_ms = int(time.time() * 1000)
    columns = [
        Column("JOB"),
        Column("NEWEST", is_number=True),
        Column("LEVEL"),
        Column("SIZE", is_number=True),
        Column("AGE"),
        Column("ATTEMPT", is_number=True),
    ]
    rows = []
    for job in jobs[:_JOBS_SHOWN]:
        newest = job.newest
        if newest is None:
            rows.append((job.name, "none yet", "", "", "", str(job.attempt)))
        else:
            age = format_age(newest.committed_unix_ms, now_unix_ms)
            size = format_bytes(newest.size_bytes)
            level = f"{newest.level} degraded" if newest.degraded else str(newest.level)
            rows.append((job.name, f"step {newest.step}", level, size, age, str(job.attempt)))
    if len(jobs) > _JOBS_SHOWN:
        rows.append((f"… {len(jobs) - _JOBS_SHOWN} more", "", "", "", "", ""))
    return Listing(columns, rows, "no job has saved yet")


def _draw(health: Health) -> RenderableType:
    from rich.console import Group as Stack
    from rich.text import Text

    parts: list[RenderableType] = [draw_facts(_facts(health))]
    for listing in _listings(health):
        parts += [Text(""), draw_listing(listing)]
    style = "bold red" if is_degraded(health) else "yellow"
    notes = [Text(f"! {line}", style=style) for line in warnings(health)]
    parts += [Text("")] if notes else []
    parts += notes
    if health.events:
        parts += [Text(f"\n{_EVENTS_TITLE}", style="bold"), draw_listing(event_listing(health.events, with_age=True))]
    return Stack(*parts)


def _plain(health: Health) -> list[str]:
    lines = plain_facts(_facts(health))
    for listing in _listings(health):
        lines += ["", *plain_listing(listing)]
    notes = [f"warning: {line}" for line in warnings(health)]
    lines += [*([""] if notes else []), *notes]
    if health.events:
        lines += ["", _EVENTS_TITLE, *plain_listing(event_listing(health.events, with_age=True))]
    return lines
