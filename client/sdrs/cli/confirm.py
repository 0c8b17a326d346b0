"""What destroys asks first."""

from __future__ import annotations

import sys

import click

from sdrs.cli.failures import USAGE


class _NobodyToAskError(click.ClickException):
    exit_code = USAGE


def confirm(question: str, *, yes: bool, retype: str = "") -> None:
    """Returns if the user agrees, by --yes or in words; ``retype`` is the name that has to be written out.

    Without a terminal there is nobody to ask, and silence is not consent.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise _NobodyToAskError(f"{question} This asks first, and there is no terminal to ask on: pass --yes")
    if retype:
        answer = click.prompt(
            f"{question}\nType its name, {retype}, to go on", default="", show_default=False, err=True
        )
        agreed = answer.strip() == retype
    else:
        agreed = click.confirm(question + " Go on?", err=True)
    if not agreed:
        raise click.ClickException("nothing was done")
