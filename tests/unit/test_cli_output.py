"""Tables, plain columns and JSON."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from sdrs.cli.output import Column, Listing, draw_facts, draw_listing, emit_json, plain_facts, plain_listing

LISTING = Listing(
    columns=[Column("NODE"), Column("USED", is_number=True), Column("DETAIL", folds=True)],
    rows=[("node-1", "1.5 GiB", ""), ("node-10", "12 B", "[bold]near full[/bold]")],
    when_empty="no nodes",
)


def drawn(renderable: object, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_plain_columns_are_aligned_and_have_a_header() -> None:
    assert plain_listing(LISTING) == [
        "NODE        USED  DETAIL",
        "node-1   1.5 GiB  -",
        "node-10     12 B  [bold]near full[/bold]",
    ]


def test_plain_columns_never_cut_off_a_value() -> None:
    name = "x" * 500
    assert plain_listing(Listing([Column("JOB")], [(name,)], ""))[1] == name


def test_an_empty_listing_says_so() -> None:
    empty = Listing(LISTING.columns, [], "no nodes")
    assert plain_listing(empty) == ["no nodes"]
    assert drawn(draw_listing(empty)).strip() == "no nodes"


def test_plain_facts_are_aligned() -> None:
    assert plain_facts({"id": "7", "state": ""}) == ["id     7", "state  -"]


def test_names_are_not_read_as_markup_in_tables() -> None:
    assert "[bold]near full[/bold]" in drawn(draw_listing(LISTING))
    assert "[red]job" in drawn(draw_facts({"job": "[red]job"}))


def test_a_narrow_terminal_folds_the_column_that_may() -> None:
    text = drawn(draw_listing(LISTING), width=32)
    assert "node-10" in text
    assert max(len(line) for line in text.splitlines()) <= 32


def test_json_keeps_characters_readable(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json([{"job": "größe"}])
    text = capsys.readouterr().out
    assert "größe" in text
    assert json.loads(text) == [{"job": "größe"}]
