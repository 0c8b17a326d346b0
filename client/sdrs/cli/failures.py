"""Errors to words on stderr and to exit codes: the one place.

0 done, 1 failed, 2 usage, 3 degraded or partial, 4 refused as unsafe, 5 not allowed, 6 unreachable; 130 after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import click

from sdrs.cli.main import INTERRUPTED
from sdrs.cli.settings import Settings
from sdrs_core.errors import SdrsError

FAILED = 1
USAGE = 2
DEGRADED = 3

# What click raises for a group alone, since 8.2; before, it printed the help itself.
_NO_VERB: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())


def report(error: BaseException, settings: Settings) -> int:
    """Tell the user what went wrong; the exit code that stands for it."""
    if settings.verbosity >= 2:
        traceback.print_exception(error)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        if error.__cause__ is None and sys.stderr.isatty():
            click.echo(err=True)  # out of a prompt's line; elsewhere click has done it
        return INTERRUPTED
    if isinstance(error, click.UsageError):
        return _report_usage(error, settings)
    if isinstance(error, SdrsError):
        _tell(error.reason, error.message, error.facts, settings)
        return error.exit_code
    if isinstance(error, click.ClickException):
        _tell("USAGE" if error.exit_code == USAGE else "FAILED", error.format_message(), {}, settings)
        return error.exit_code
    if isinstance(error, OSError):
        _tell("OS_ERROR", _describe(error), {}, settings)
        return FAILED
    message = (
        f"this is a defect in SDRS ({type(error).__name__}: {error}): run it again with -vv and report what it prints"
    )
    _tell("INTERNAL", message, {}, settings)
    return FAILED


def _report_usage(error: click.UsageError, settings: Settings) -> int:
    if isinstance(error, _NO_VERB) and error.ctx is not None:
        if settings.is_json:
            _tell("USAGE", f"a verb is missing: see {error.ctx.command_path} --help", {}, settings)
        else:
            click.echo(error.ctx.get_help(), err=True)
        return USAGE
    hint = ""
    if error.ctx is not None and not settings.is_json:
        hint = f"\n{error.ctx.get_usage()}\nMore: {error.ctx.command_path} --help"
    # click lists choices one below the other.
    message = " ".join(error.format_message().split()).rstrip(".")
    _tell("USAGE", message + hint, {}, settings)
    return USAGE


def _describe(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename is not None else what


def _tell(reason: str, message: str, facts: dict[str, str], settings: Settings) -> None:
    if settings.is_json:
        text = json.dumps({"error": {"reason": reason, "message": message, "facts": facts}}, ensure_ascii=False)
        click.echo(text, err=True)
        return
    color = None if settings.color else False
    click.echo(click.style("sdrs: error:", fg="red", bold=True) + f" {message}", err=True, color=color)


def silence_stdout() -> None:
    """The reader went away (``sdrs ckpt list … | head``): what Python still flushes at exit goes nowhere."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
