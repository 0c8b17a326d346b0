"""``python -m benchmarks [--only NAME]...``: run, print the table, write benchmarks/results/latest.json."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from benchmarks import (
    backup,
    catalog,
    codec,
    compression,
    costs,
    failover,
    growth,
    l1,
    l2,
    l3,
    l3_restore,
    peers,
    placement,
    repair,
    stall,
    startup,
    streams,
)
from benchmarks.results import LATEST, Benchmark, Result, write_latest

BENCHMARKS: dict[str, Benchmark] = {
    "l1_save": l1.l1_save,
    "l1_restore": l1.l1_restore,
    "l2_save": l2.l2_save,
    "l3_save": l3.l3_save,
    "l3_restore": l3_restore.l3_restore,
    "codec": codec.codec,
    "compression": compression.compression,
    "failover": failover.failover,
    "repair": repair.repair,
    "save_under_repair": repair.save_under_repair,
    "stall": stall.stall,
    "streams": streams.streams,
    "save_costs": costs.save_costs,
    "rss_bytes": l1.rss_bytes,
    "import_seconds": startup.import_seconds,
    "commits_per_second": catalog.commits_per_second,
    "ranks_1000": catalog.ranks_1000,
    "placement": placement.placement,
    "growth_ranks": growth.growth_ranks,
    "growth_tensors": growth.growth_tensors,
    "backup": backup.backup,
    **peers.BENCHMARKS,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=sorted(BENCHMARKS), action="append", help="run this one; may be repeated")
    only = parser.parse_args().only
    console = Console()
    results: list[Result] = []
    for name, benchmark in BENCHMARKS.items():
        if only and name not in only:
            continue
        # Not the temporary folder: it may be memory, and fsync would cost nothing.
        folder = Path(tempfile.mkdtemp(prefix=f".bench-{name}-", dir=Path.cwd()))
        try:
            with console.status(f"{name} ..."):
                results += benchmark(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    write_latest(results)
    console.print(_table(results))
    console.print(f"written to {LATEST}")


def _table(results: list[Result]) -> Table:
    # Names are what one looks for: they are never cut off, the rest may wrap.
    longest = max((len(result.name) for result in results), default=0)
    table = Table(Column("figure", min_width=longest), "value", "unit", "against", "ratio")
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        table.add_row(
            result.name,
            f"{result.value:,.3g}" if result.value < 1e6 else f"{result.value:,.0f}",
            result.unit,
            result.against,
            ratio,
        )
    return table


if __name__ == "__main__":
    main()
