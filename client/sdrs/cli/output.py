"""How answers look: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sdrs.cli.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# What a word means is the same in every table, so its colour is too.
_STYLES = {
    "up": "green",
    "ok": "green",
    "healthy": "green",
    "committed": "green",
    "down": "bold red",
    "failed": "bold red",
    "fail": "bold red",
    "full": "bold red",
    "damaged": "bold red",
    "near_full": "yellow",
    "draining": "yellow",
    "repairing": "yellow",
    "degraded": "yellow",
    "warn": "yellow",
    "pending": "cyan",
    "set_aside": "bright_black",
    "deleted": "bright_black",
    "aborted": "bright_black",
    "condemned": "bright_black",
    "info": "bright_black",
}


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    is_number: bool = False
    # The one that gives way when the terminal is narrow.
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """One table: its rows as text, and the words to say when there are none."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    when_empty: str


def make_console(settings: Settings, *, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, no_color=not settings.color, highlight=False, soft_wrap=False)


def emit_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def emit_listing(settings: Settings, listing: Listing) -> None:
    if settings.is_interactive:
        make_console(settings).print(draw_listing(listing))
    else:
        click.echo("\n".join(plain_listing(listing)))


def emit_facts(settings: Settings, facts: Mapping[str, str]) -> None:
    """One thing, as names and values below each other."""
    if settings.is_interactive:
        make_console(settings).print(draw_facts(facts))
    else:
        click.echo("\n".join(plain_facts(facts)))


def emit_note(settings: Settings, text: str) -> None:
    """What a person wants to know and a program does not."""
    if not settings.is_json:
        click.echo(text, color=None if settings.color else False)


def emit_warning(settings: Settings, text: str) -> None:
    if settings.is_json:
        click.echo(json.dumps({"warning": {"message": text}}, ensure_ascii=False), err=True)
        return
    color = None if settings.color else False
    click.echo(click.style("sdrs: warning:", fg="yellow", bold=True) + f" {text}", err=True, color=color)


@contextmanager
def spinner(settings: Settings) -> Iterator[Callable[[str], None]]:
    """Yields the function to call with what is waited for now."""
    if not settings.shows_progress:
        yield lambda text: None
        return
    with make_console(settings, stderr=True).status("") as status:
        yield lambda text: status.update(text)


def plain_listing(listing: Listing) -> list[str]:
    """Aligned columns under a header, nothing cut off: what `awk` and `column` expect."""
    if not listing.rows:
        return [listing.when_empty]
    lines = [[column.title for column in listing.columns], *([cell or "-" for cell in row] for row in listing.rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(listing.columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(line, widths, listing.columns, strict=True)
        ).rstrip()
        for line in lines
    ]


def plain_facts(facts: Mapping[str, str]) -> list[str]:
    width = max((len(name) for name in facts), default=0)
    return [f"{name.ljust(width)}  {value or '-'}".rstrip() for name, value in facts.items()]


def draw_listing(listing: Listing) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    if not listing.rows:
        return Text(listing.when_empty, style="bright_black")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in listing.columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
        )
    for row in listing.rows:
        table.add_row(*(styled(cell) for cell in row))
    return table


def draw_facts(facts: Mapping[str, str]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(Text(name, style="bright_black"), styled(value))
    return grid


def styled(cell: str) -> Any:
    """A cell with the colour of its word; job and path names are never read as markup."""
    from rich.text import Text

    return Text(cell or "-", style=_STYLES.get(cell, "" if cell else "bright_black"))
