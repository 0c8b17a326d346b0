"""What ``import sdrs`` costs a training script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results import Result, alternate

ROUNDS = 9


def import_seconds(folder: Path) -> Iterator[Result]:
    ours, theirs = alternate(ROUNDS, lambda: _import("sdrs"), lambda: _import("numpy"))
    yield Result("import_seconds", ours, "s", "import numpy", ours / theirs)


def _import(module: str) -> float:
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
