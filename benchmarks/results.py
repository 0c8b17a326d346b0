"""One figure, the table of all, and the file that programs read."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Result:
    """``ratio`` is value / what ``against`` did, so that higher is better for rates and lower for costs."""

    name: str
    value: float
    unit: str
    against: str = ""
    ratio: float | None = None


Benchmark = Callable[[Path], Iterator[Result]]

LATEST = Path(__file__).parent / "results" / "latest.json"


def alternate(rounds: int, *works: Callable[[], float]) -> list[float]:
    """The median of each work's own measure, the works taking turns so that noise hits all alike."""
    measured: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for values, work in zip(measured, works, strict=True):
            values.append(work())
    return [statistics.median(values) for values in measured]


def write_latest(results: list[Result]) -> None:
    """Figures of a partial run replace their namesakes; the others stay."""
    known: list[dict[str, object]] = json.loads(LATEST.read_text()) if LATEST.exists() else []
    fresh = {result.name for result in results}
    merged = [entry for entry in known if entry["name"] not in fresh] + [asdict(result) for result in results]
    LATEST.parent.mkdir(exist_ok=True)
    LATEST.write_text(json.dumps(sorted(merged, key=lambda entry: str(entry["name"])), indent=2) + "\n")
