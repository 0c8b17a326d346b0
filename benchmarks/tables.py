"""The figures of the last run as tables: ``python -m benchmarks.tables`` writes them into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.costs import POOLS, WAYS
from benchmarks.growth import RANKS, TENSORS, TOTAL_BYTES
from benchmarks.peers import LABELS, SIZES
from benchmarks.results import LATEST

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
SIZE_LABELS = {"64mib": "64 MiB", "1gib": "1 GiB", "4gib": "4 GiB"}
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    unit: str
    ratio: float | None


class Figures:
    """What benchmarks/results/latest.json holds, by name. A figure that was not measured is None."""

    def __init__(self, path: Path = LATEST) -> None:
        entries = json.loads(path.read_text())
        self._figures = {entry["name"]: Figure(entry["value"], entry["unit"], entry["ratio"]) for entry in entries}

    def get(self, name: str) -> Figure | None:
        return self._figures.get(name)

    def value(self, name: str) -> float | None:
        figure = self._figures.get(name)
        return None if figure is None else figure.value

    def sizes(self) -> list[str]:
        """The sizes of states that were measured."""
        return [size for size in SIZES if f"peers_{size}_stall_raw" in self._figures]

    def counts(self, what: str, known: tuple[int, ...]) -> list[int]:
        """How finely the bytes were cut where growth was measured; ``what`` is ``ranks`` or ``tensors``."""
        return [count for count in known if f"growth_{what}_{count}_save" in self._figures]


def tables(figures: Figures) -> Iterator[str]:
    for size in figures.sizes():
        yield f"### A state of {SIZE_LABELS[size]}\n"
        yield from _peers(figures, size)
        yield ""
    if figures.get("save_cost_l1_staged_cpu"):
        yield "### What a save of 1 GiB costs, staged or streamed\n"
        yield from _costs(figures)
        yield ""
    cut = f"{TOTAL_BYTES >> 20} MiB"
    if counts := figures.counts("ranks", RANKS):
        yield f"### {cut} over more and more ranks, two copies\n"
        yield from _growth(figures, "ranks", counts, ["save", "save_cpu", "restore", "restore_cpu"], "raw")
        yield ""
    if counts := figures.counts("tensors", TENSORS):
        yield f"### {cut} in more and more tensors, two copies\n"
        yield from _growth(figures, "tensors", counts, ["stall", "save", "save_cpu", "restore", "restore_cpu"], "torch")


def _peers(figures: Figures, size: str) -> Iterator[str]:
    yield "| | stall | × memcpy | stored | × raw | restored | × raw | CPU s/GiB, save | restore |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, label in LABELS.items():
        stall, save, restore, save_cpu, restore_cpu = (
            figures.get(f"peers_{size}_{what}_{key}")
            for what in ("stall", "save", "restore", "save_cpu", "restore_cpu")
        )
        if stall is None:
            continue
        cells = [*_both(stall), *_both(save), *_both(restore), _text(save_cpu), _text(restore_cpu)]
        yield f"| {label} | {' | '.join(cells)} |"


def _costs(figures: Figures) -> Iterator[str]:
    yield f"| | {' | '.join(f'{way}: CPU s/GiB | most memory of a daemon' for way in WAYS)} |"
    yield f"|---|{'---|---|' * len(WAYS)}"
    for pool in POOLS:
        cells = (_text(figures.get(f"save_cost_{pool}_{way}_{what}")) for way in WAYS for what in ("cpu", "memory"))
        yield f"| {LABELS[f'sdrs_{pool}']} | {' | '.join(cells)} |"


def _growth(figures: Figures, what: str, counts: list[int], measures: list[str], peer: str) -> Iterator[str]:
    heads = [
        measure.replace("_cpu", ", CPU s") if "_cpu" in measure else f"{measure} (× {peer})" for measure in measures
    ]
    yield f"| {what} | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for count in counts:
        cells = []
        for measure in measures:
            figure = figures.get(f"growth_{what}_{count}_{measure}")
            value, ratio = _both(figure)
            cells.append(value if ratio == ABSENT else f"{value} ({ratio})")
        yield f"| {count:,} | {' | '.join(cells)} |"


def _both(figure: Figure | None) -> tuple[str, str]:
    return _text(figure), ABSENT if figure is None or figure.ratio is None else f"{figure.ratio:.2f}"


def _text(figure: Figure | None) -> str:
    if figure is None:
        return ABSENT
    if figure.unit == "s":
        return f"{figure.value * 1e3:,.0f} ms" if figure.value < 10 else f"{figure.value:,.1f} s"
    if figure.unit == "bytes":
        return f"{figure.value / (1 << 20):,.0f} MiB"
    return f"{figure.value:.2f}" if figure.unit.startswith("CPU") else f"{figure.value:.2f} {figure.unit}"


def write_page(figures: Figures, page: Path) -> None:
    """Puts the tables between the two marks of the page, and its picture, if there is one."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no {BEGIN} and {END}: put them where the tables are to be")
    picture = page.with_suffix(".png")
    shown = f"![The figures of the tables below]({picture.name})\n\n" if picture.exists() else ""
    text = shown + "\n".join(tables(figures)).strip()
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="the page with the two marks between which they go")
    page: Path = parser.parse_args().page
    write_page(Figures(), page)
    print(f"written to {page}")


if __name__ == "__main__":
    main()
