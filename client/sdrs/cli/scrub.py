"""``sdrs scrub``: look at all that is stored, and replace what is bad."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from sdrs.cli import failures
from sdrs.cli.amounts import format_age, format_bytes, format_duration, format_time
from sdrs.cli.completion import complete_job
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_facts, emit_json, emit_note, emit_warning
from sdrs.cli.progress import stage_bar
from sdrs.cli.records import Record
from sdrs.cli.settings import Settings, VerbGroup, pass_settings
from sdrs_core.errors import UnavailableError

if TYPE_CHECKING:
    from sdrs import Cluster
    from sdrs.scrubs import Scrub, ScrubState

_POLL_SECONDS = 0.5


@click.group(cls=VerbGroup, examples="sdrs scrub start --deep --wait\nsdrs scrub status\nsdrs scrub stop")
def scrub() -> None:
    """Look at all that is stored: what is bad or missing is replaced from what is good.

    The cluster does so by itself, every so often; this is for when it should be now.
    """


@scrub.command(
    "start",
    examples="""
    sdrs scrub start                     is everything there?
    sdrs scrub start --deep --wait       every stored byte, until it is done
    sdrs scrub start --deep --job llm-7b
    """,
)
@click.option("--deep", is_flag=True, help="Read every block, and compute parity anew; otherwise names and sizes.")
@click.option("--job", metavar="JOB", shell_complete=complete_job, help="Only this job's checkpoints.")
@click.option("--wait", is_flag=True, help="Until it is done.")
@click.pass_context
@pass_settings
def start(settings: Settings, context: click.Context, deep: bool, job: str | None, wait: bool) -> None:
    """Start a scrub, or join one that is the same.

    While another one is under way it is refused (exit 4). With --wait it exits with 1 if a checkpoint is damaged, 3 if
    something was bad or missing and is replaced, or could not be looked at, or it was stopped.
    """
    with open_cluster(settings) as cluster:
        found = cluster.start_scrub(deep=deep, job=job)
        if wait:
            found = _wait(settings, cluster, found)
    if settings.is_json:
        emit_json(scrub_record(found))
    elif not wait:
        emit_note(settings, f"a {_title(found)} is under way: `sdrs scrub status` tells how far it is")
    else:
        _tell(settings, found)
    if wait:
        context.exit(_exit_code(found))


@scrub.command("stop", examples="sdrs scrub stop")
@pass_settings
def stop(settings: Settings) -> None:
    """End the scrub that is under way, and tell what it has looked at.

    What it found stands. The next one begins anew; by itself it does so an interval later, as after one that is done.
    """
    with open_cluster(settings) as cluster:
        found = cluster.stop_scrub()
    if settings.is_json:
        emit_json(scrub_record(found))
        return
    if found.is_under_way:
        emit_note(settings, f"the {_title(found)} ends as soon as the nodes that are asked have answered")
    elif not found.is_stopped:
        emit_note(settings, f"no scrub is under way: the last one, a {_title(found)}, is done")
    _tell(settings, found)


@scrub.command("status", examples="sdrs scrub status\nsdrs scrub status -o json | jq .scrub.bad_fragments")
@pass_settings
def status(settings: Settings) -> None:
    """Tell how far the scrub under way is, or what the last one found."""
    with open_cluster(settings) as cluster:
        state = cluster.scrub_status()
    if settings.is_json:
        emit_json(_state_record(state))
        return
    now_unix_ms = int(time.time() * 1000)
    emit_facts(
        settings,
        {
            "last shallow scrub": _when(state.shallow_done_unix_ms, now_unix_ms),
            "last deep scrub": _when(state.deep_done_unix_ms, now_unix_ms),
        },
    )
    if state.scrub:
        emit_note(settings, "")
        _tell(settings, state.scrub)


def _wait(settings: Settings, cluster: Cluster, begun: Scrub) -> Scrub:
    with stage_bar(settings, _title(begun)) as advance:
        while True:
            found = cluster.scrub_status().scrub
            if found is None or found.id != begun.id:
                raise UnavailableError("another scrub began since this one ended: see what happened with sdrs history")
            if not found.is_under_way:
                return found
            advance(_amounts(found), found.checked_checkpoints, found.total_checkpoints)
            time.sleep(_POLL_SECONDS)


def _exit_code(found: Scrub) -> int:
    if found.damaged_checkpoints:
        return failures.FAILED
    has_findings = found.bad_fragments or found.missing_fragments or found.undecided_fragments
    return failures.DEGRADED if has_findings or found.is_stopped else 0


def _title(found: Scrub) -> str:
    return f"{found.depth} scrub of " + (f'job "{found.job}"' if found.job else "all checkpoints")


def _amounts(found: Scrub) -> str:
    speed = f", {format_bytes(found.bytes_per_second)}/s" if found.bytes_per_second else ""
    return f"{found.checked_fragments} fragments, {format_bytes(found.checked_bytes)} read{speed}"


def _when(unix_ms: int, now_unix_ms: int) -> str:
    return format_age(unix_ms, now_unix_ms) if unix_ms else "never"


def _tell(settings: Settings, found: Scrub) -> None:
    now_unix_ms = int(time.time() * 1000)
    if found.is_under_way:
        state = f"under way since {format_duration((now_unix_ms - found.started_unix_ms) / 1000)}"
    else:
        took = format_duration((found.ended_unix_ms - found.started_unix_ms) / 1000)
        ended = "stopped" if found.is_stopped else "done"
        state = f"{ended} {format_age(found.ended_unix_ms, now_unix_ms)}, in {took}"
    emit_facts(
        settings,
        {
            "scrub": f"{_title(found)} (by {found.trigger})",
            "state": state,
            "checkpoints": f"{found.checked_checkpoints} of {found.total_checkpoints}",
            "looked at": _amounts(found),
            "bad": str(found.bad_fragments),
            "missing": str(found.missing_fragments),
            "made again": str(found.repaired_fragments),
            "undecided": str(found.undecided_fragments),
            "on no record": str(found.unknown_fragments),
            "damaged checkpoints": str(found.damaged_checkpoints),
        },
    )
    for problem in found.problems:
        emit_warning(settings, problem)


def scrub_record(found: Scrub) -> Record:
    """What programs read: names here are a promise."""
    return {
        "id": found.id,
        "depth": str(found.depth),
        "job": found.job,
        "trigger": found.trigger,
        "state": "under_way" if found.is_under_way else "stopped" if found.is_stopped else "done",
        "started": format_time(found.started_unix_ms),
        "ended": format_time(found.ended_unix_ms),
        "checked_checkpoints": found.checked_checkpoints,
        "total_checkpoints": found.total_checkpoints,
        "checked_fragments": found.checked_fragments,
        "checked_bytes": found.checked_bytes,
        "bytes_per_second": found.bytes_per_second,
        "bad_fragments": found.bad_fragments,
        "missing_fragments": found.missing_fragments,
        "repaired_fragments": found.repaired_fragments,
        "undecided_fragments": found.undecided_fragments,
        "unknown_fragments": found.unknown_fragments,
        "damaged_checkpoints": found.damaged_checkpoints,
        "problems": list(found.problems),
    }


def _state_record(state: ScrubState) -> Record:
    return {
        "scrub": scrub_record(state.scrub) if state.scrub else None,
        "shallow_done": format_time(state.shallow_done_unix_ms),
        "deep_done": format_time(state.deep_done_unix_ms),
    }
