"""The figures of the last run as a picture: ``python -m benchmarks.plot [--plot docs/benchmarks.png]``.

It draws what benchmarks/results/latest.json holds; what was not measured leaves a gap.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.growth import RANKS, TENSORS, TOTAL_BYTES
from benchmarks.peers import GIB, LABELS, SIZES
from benchmarks.tables import SIZE_LABELS, Figures

PICTURE = Path(__file__).parents[1] / "docs" / "benchmarks.png"
SHADES = {"64mib": 0.35, "1gib": 0.65, "4gib": 1.0}
OURS, THEIRS = "#1f6f8b", "#b08d57"
_GROWTH_LINES = {
    "save": "until committed",
    "stall": "stall of save()",
    "restore": "restore",
    "save_cpu": "CPU of a save",
}


def draw(figures: Figures, path: Path) -> None:
    picture = Figure(figsize=(18, 11), layout="constrained")
    (stall, save, restore), (cpu, ranks, tensors) = picture.subplots(2, 3)
    _bars(stall, figures, "stall", "How long save() holds the job up: ms for each GiB", is_log=True)
    _bars(save, figures, "save", "Until it is stored, all copies: GB/s")
    _bars(restore, figures, "restore", "Restored, nothing cached: GB/s")
    if figures.sizes():
        restore.legend(loc="lower right", fontsize=9, title="state")
    _bars(cpu, figures, "save_cpu", "Processor time of a save, all processes: s for each GiB")
    cut = f"{TOTAL_BYTES >> 20} MiB, two copies"
    _lines(ranks, figures, "ranks", RANKS, ("save", "restore", "save_cpu"), f"{cut}, over more ranks: seconds")
    _lines(tensors, figures, "tensors", TENSORS, ("stall", "save", "restore"), f"{cut}, in more tensors: seconds")
    path.parent.mkdir(exist_ok=True)
    picture.savefig(path, dpi=110)


def _bars(axes: Axes, figures: Figures, measure: str, title: str, *, is_log: bool = False) -> None:
    """One bar for each contender and size; ours in a colour of their own, larger states darker."""
    sizes = figures.sizes()
    axes.set_title(title, fontsize=11)
    if not sizes:
        axes.set_axis_off()
        return
    keys = [key for key in LABELS if any(figures.get(f"peers_{size}_{measure}_{key}") for size in sizes)]
    height = 0.8 / len(sizes)
    for place, size in enumerate(sizes):
        values = [figures.value(f"peers_{size}_{measure}_{key}") for key in keys]
        # A stall grows with the state: only per GiB can sizes be compared.
        scale = 1e3 * GIB / SIZES[size] if measure == "stall" else 1.0
        bars = axes.barh(
            [index + (place - (len(sizes) - 1) / 2) * height for index in range(len(keys))],
            [math.nan if value is None else value * scale for value in values],
            height,
            alpha=SHADES[size],
            color=[OURS if key.startswith("sdrs") else THEIRS for key in keys],
            label=SIZE_LABELS[size],
        )
        axes.bar_label(bars, fmt=_number, padding=2, fontsize=7)
    axes.set_yticks(range(len(keys)), [LABELS[key] for key in keys])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    if is_log:
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis)


def _lines(
    axes: Axes, figures: Figures, what: str, known: tuple[int, ...], measures: Sequence[str], title: str
) -> None:
    counts = figures.counts(what, known)
    axes.set_title(title, fontsize=11)
    if not counts:
        axes.set_axis_off()  # a logarithmic scale of nothing cannot be drawn
        return
    for measure in measures:
        values = [figures.value(f"growth_{what}_{count}_{measure}") for count in counts]
        axes.plot(
            counts,
            [math.nan if value is None else value for value in values],
            marker="o",
            label=_GROWTH_LINES[measure],
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    _plain_ticks(axes.yaxis)
    axes.set_xlabel(what)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _plain_ticks(axis: Axis) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axis.set_minor_formatter(NullFormatter())


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("--plot", type=Path, default=PICTURE, help="the PNG to write")
    path: Path = parser.parse_args().plot
    draw(Figures(), path)
    print(f"drawn into {path}")


if __name__ == "__main__":
    main()
