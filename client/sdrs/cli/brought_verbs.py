"""Verbs that packages above the SDK bring along, by entry points of the group ``sdrs.verbs``.

They are looked for only when a verb is not one of our own, and loaded only when they are used: finding them costs more
than most verbs take to start.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import click

from sdrs.cli.settings import Verb

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "sdrs.verbs"
_ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


@cache
def _brought() -> dict[str, EntryPoint]:
    from importlib import metadata  # slow to load

    return {found.name: found for found in metadata.entry_points(group=GROUP)}


def brought_names() -> list[str]:
    return sorted(_brought())


def brought_verb(name: str) -> click.Command | None:
    """None: nobody brings it. One that cannot be loaded says so when it is run, and does not spoil the help."""
    found = _brought().get(name)
    if found is None:
        return None
    try:
        verb: Any = found.load()
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        return _stand_in(name, f"it needs the package {package} (pip install 'sdrs[cli,server]')", error)
    except Exception as error:
        return _stand_in(name, f"{found.value} cannot be loaded ({type(error).__name__}: {error})", error)
    if not isinstance(verb, click.Command):
        return _stand_in(name, f"{found.value} is no command", None)
    return verb


def _stand_in(name: str, why: str, cause: Exception | None) -> click.Command:
    def refuse() -> None:
        raise click.ClickException(f"`sdrs {name}` does not work here: {why}") from cause

    return Verb(
        name,
        callback=refuse,
        help=f"Does not work here: {why}.",
        short_help="(does not work here)",
        context_settings=_ANYTHING,
    )
