"""The options that every verb takes, before or after its name."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

DEFAULT_TIMEOUT_SECONDS = 10.0


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


@dataclass(slots=True)
class Settings:
    """One invocation's global options, filled in while click parses."""

    url: str = ""
    output: OutputFormat = OutputFormat.TABLE
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    verbosity: int = 0
    color: bool = True

    @property
    def is_json(self) -> bool:
        return self.output is OutputFormat.JSON

    @property
    def is_interactive(self) -> bool:
        """Whether a person looks at the answer: tables may be drawn and fitted to the width."""
        return not self.is_json and sys.stdout.isatty()

    @property
    def shows_progress(self) -> bool:
        """Progress goes to stderr, so that it never mixes with the answer."""
        return not self.is_json and sys.stderr.isatty()


def settings_from_environment() -> Settings:
    # https://no-color.org: any value that is not empty counts.
    return Settings(color=not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


def settings_of(context: click.Context) -> Settings:
    return context.ensure_object(Settings)


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _given(context: click.Context, parameter: click.Parameter) -> bool:
    # A verb's own default must not undo what was said before the verb.
    return context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT


def _remember_url(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if _given(context, parameter):
        settings_of(context).url = value or ""


def _remember_output(context: click.Context, parameter: click.Parameter, value: str) -> None:
    if _given(context, parameter):
        settings_of(context).output = OutputFormat(value)


def _remember_timeout(context: click.Context, parameter: click.Parameter, value: float) -> None:
    if _given(context, parameter):
        settings_of(context).timeout_seconds = value


def _add_verbosity(context: click.Context, parameter: click.Parameter, value: int) -> None:
    settings_of(context).verbosity += value


def _drop_color(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    settings = settings_of(context)
    settings.color = settings.color and not value
    if not settings.color:
        context.color = False


def global_options() -> list[click.Parameter]:
    formats = click.Choice([member.value for member in OutputFormat])
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            expose_value=False,
            callback=_remember_url,
            help="The cluster, as sdrs://host:port. Otherwise SDRS_URL, or the one that `sdrs up` left running.",
        ),
        click.Option(
            ["-o", "--output"],
            type=formats,
            default=OutputFormat.TABLE.value,
            expose_value=False,
            # First, so that a complaint about another option already has the right shape.
            is_eager=True,
            callback=_remember_output,
            help="Tables for people, JSON for programs.",
        ),
        click.Option(
            ["--timeout"],
            type=click.FloatRange(min=0, min_open=True),
            default=DEFAULT_TIMEOUT_SECONDS,
            metavar="SECONDS",
            expose_value=False,
            callback=_remember_timeout,
            help=f"How long to wait for a cluster that does not answer ({DEFAULT_TIMEOUT_SECONDS:g}).",
        ),
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_add_verbosity,
            help="Say more; -vv shows tracebacks.",
        ),
        click.Option(["--no-color"], is_flag=True, expose_value=False, callback=_drop_color, help="No colours."),
    ]


_NEGATIVE_NUMBER = re.compile(r"-\d+\Z")


class Verb(click.Command):
    """A command that also takes the global options, listed apart from its own; ``examples`` close its help."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self._global_names = {parameter.name for parameter in global_options()}
        self.params.extend(global_options())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if _NEGATIVE_NUMBER.match(error.option_name):
                raise click.UsageError(f"{error.option_name} is negative: steps and counts start at 0", ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        everywhere: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                (everywhere if parameter.name in self._global_names else own).append(record)
        for title, records in (("Options", own), ("Options of every verb", everywhere)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


class VerbGroup(click.Group):
    """A group whose members are verbs; the global options are accepted after its name too."""

    command_class = Verb

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(global_options())

    def list_commands(self, ctx: click.Context) -> list[str]:
        # In the order in which they are needed, not by name.
        return list(self.commands)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self.examples)


VerbGroup.group_class = VerbGroup

F = TypeVar("F", bound=Callable[..., Any])


def dir_option(words: str) -> Callable[[F], F]:
    kind = click.Path(path_type=Path, file_okay=False, resolve_path=True)
    return click.option("--dir", "directory", type=kind, metavar="DIR", help=words)


def yes_option(function: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)
