"""The results of a simulation, or of a sweep, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sdrs_core.errors import InvalidArgumentError, UnsupportedError
from sdrs_scheduler.sim.report import Report
from sdrs_scheduler.sim.sweeps import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")
# What GPU time went into: what counts in the colour that our figures have everywhere.
_PARTS = {"useful": "#1f6f8b", "saving": "#8fb8c7", "restoring": "#c9b48f", "lost": "#a8443a"}
_HOUR = 3600.0


def check_plot(path: Path) -> None:
    """Before a simulation of minutes, that its picture can be drawn."""
    if find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib: pip install 'sdrs[bench]', or leave --plot out")
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidArgumentError(f"{path}: pictures end in {', '.join(_SUFFIXES)}: name it like that")
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"{path}: the folder {path.absolute().parent} does not exist: create it first")


def draw(results: Sequence[Result], title: str, path: Path) -> None:
    # No pyplot: it would look for a display.
    from matplotlib.figure import Figure

    picture = Figure(figsize=(13, 4.2), layout="constrained")
    picture.suptitle(title, fontsize=11)
    completion, averages, hours = picture.subplots(1, 3)
    _draw_completion(completion, results)
    _draw_averages(averages, results)
    _draw_hours(hours, results)
    picture.savefig(path, dpi=80)


def _draw_completion(axes: Axes, results: Sequence[Result]) -> None:
    for result in results:
        times = result.completion_seconds
        if times:
            shares = [(index + 1) / len(times) for index in range(len(times))]
            axes.plot([max(1.0, time) / _HOUR for time in times], shares, label=result.variant.label, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_title("jobs done within so many hours", fontsize=10)
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_averages(axes: Axes, results: Sequence[Result]) -> None:
    places = range(len(results))
    averages = [result.report.average_completion / _HOUR for result in results]
    waits = [result.report.average_wait / _HOUR for result in results]
    bars = axes.bar(places, averages, 0.7, color=_PARTS["useful"], label="completion")
    axes.bar(places, waits, 0.35, color=_PARTS["restoring"], label="of that, waiting")
    axes.bar_label(bars, fmt="%.2f", fontsize=7)
    _name_bars(axes, results)
    axes.set_title("average, hours", fontsize=10)
    axes.legend(fontsize=8)


def _draw_hours(axes: Axes, results: Sequence[Result]) -> None:
    """Without what is useful, which is the same for all and would dwarf the rest."""
    bottoms = [0.0] * len(results)
    for part in ("saving", "restoring", "lost"):
        heights = [_gpu_hours(result.report, part) for result in results]
        axes.bar(range(len(results)), heights, 0.7, bottom=bottoms, color=_PARTS[part], label=part)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, result in enumerate(results):
        axes.annotate(f"{result.report.goodput:.1%}", (place, bottoms[place]), ha="center", va="bottom", fontsize=7)
    axes.set_ylim(0, 1.12 * max(1.0, *bottoms))
    _name_bars(axes, results)
    axes.set_title("GPU-hours that are not useful; goodput", fontsize=10)
    axes.legend(fontsize=8)


def _gpu_hours(report: Report, part: str) -> float:
    return {
        "saving": report.saving_gpu_hours,
        "restoring": report.restoring_gpu_hours,
        "lost": report.lost_gpu_hours,
    }[part]


def _name_bars(axes: Axes, results: Sequence[Result]) -> None:
    axes.set_xticks(range(len(results)), [result.variant.label for result in results], fontsize=8)
