"""``sdrs pause`` and ``resume``: whether the cluster fails over by itself."""

from __future__ import annotations

import getpass
import socket

import click

from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_json, emit_note
from sdrs.cli.settings import Settings, Verb, pass_settings


@click.command(
    cls=Verb,
    examples="""
    sdrs pause --reason "the switch of rack 7 is being replaced"
    sdrs resume                      afterwards
    """,
)
@click.option("--reason", metavar="TEXT", default="", help="Shown in `sdrs status` for as long as it lasts.")
@pass_settings
def pause(settings: Settings, reason: str) -> None:
    """Pause automatic failover.

    Until `sdrs resume` no primary is promoted and no member replaced by itself; `switchover` and `failover` work.
    """
    words = reason.strip() or f"by {_who()}, who gave no reason"
    with open_cluster(settings) as cluster:
        cluster.pause(words)
    if settings.is_json:
        emit_json({"paused": True, "reason": words})
    else:
        emit_note(settings, "automatic failover is paused: nobody takes over for a lost node until `sdrs resume`")


@click.command(cls=Verb, examples="sdrs resume")
@pass_settings
def resume(settings: Settings) -> None:
    """Resume automatic failover; what was lost meanwhile is dealt with at once."""
    with open_cluster(settings) as cluster:
        cluster.resume()
    if settings.is_json:
        emit_json({"paused": False, "reason": ""})
    else:
        emit_note(settings, "automatic failover is on")


def _who() -> str:
    try:
        return f"{getpass.getuser()} on {socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"somebody on {socket.gethostname()}"
