"""The figures of a benchmark run, shown: a run is rarely whole, and what is missing must not look like a figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.plot import draw
from benchmarks.tables import BEGIN, END, Figures, tables, write_page


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """One size, two contenders of which one restores nothing, and one number of ranks."""
    entries = [
        ("peers_1gib_stall_memcpy", 0.1, "s", 1.0),
        ("peers_1gib_stall_raw", 1.25, "s", 12.5),
        ("peers_1gib_save_raw", 0.86, "GB/s", 1.0),
        ("peers_1gib_restore_raw", 1.5, "GB/s", 1.0),
        ("peers_1gib_save_cpu_raw", 0.4, "CPU s/GiB", None),
        ("growth_ranks_4_save", 12.0, "s", 2.5),
        ("save_cost_l1_staged_cpu", 0.71, "CPU s/GiB", None),
        ("save_cost_l1_staged_memory", 100 << 20, "bytes", 0.2),
        ("l1_save", 0.5, "GB/s", 0.9),
    ]
    names = ("name", "value", "unit", "ratio")
    path = tmp_path / "latest.json"
    path.write_text(json.dumps([dict(zip(names, entry, strict=True)) for entry in entries]))
    return Figures(path)


def test_what_was_not_measured_is_a_dash_or_left_out(figures: Figures) -> None:
    text = "\n".join(tables(figures))
    assert "| memcpy, warm | 100 ms | 1.00 | – | – | – | – | – | – |" in text
    assert "| raw write+fsync | 1,250 ms | 12.50 | 0.86 GB/s | 1.00 | 1.50 GB/s | 1.00 | 0.40 | – |" in text
    assert "| 4 | 12.0 s (2.50) | – | – | – |" in text
    assert "| SDRS L1 | 0.71 | 100 MiB | – | – |" in text
    assert text.count("| SDRS L1 |") == 1
    assert "4 GiB" not in text
    assert "tensors" not in text


def test_the_picture_is_drawn_from_what_there_is(figures: Figures, tmp_path: Path) -> None:
    draw(figures, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_tables_replace_those_of_the_run_before_and_nothing_else(figures: Figures, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(figures, page)
    first = page.read_text()
    assert first.startswith(f"before\n{BEGIN}\n")
    assert first.endswith(f"{END}\nafter\n")
    assert "old" not in first
    write_page(figures, page)
    assert page.read_text() == first
