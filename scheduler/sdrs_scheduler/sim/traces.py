"""Traces: tables of jobs that some cluster was asked to run, as CSV with a header.

Three kinds are known, and told apart by their headers:

- plain, our own: ``job_id,num_gpu,submit_time,duration[,user,priority]``, times in seconds, priority 0 to 100. Other
  columns are passed over.
- of Muri (it has ``iteration_time``): milliseconds; priority 0 or 1.
- of Chronus, which cut it from Philly (it has ``expect_time_list``): minutes; jobs with ``best_effort`` 1 may wait.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.jobs.spec import DEFAULT_PRIORITY, MAX_PRIORITY

_REQUIRED = ("job_id", "num_gpu", "submit_time", "duration")
_BEST_EFFORT_PRIORITY = 30
_RAISED_PRIORITY = 70
# Nobody has more, and a slip of the hand may not ask for all memory.
MAX_JOBS = 1_000_000


class TimeUnit(StrEnum):
    MILLISECONDS = "ms"
    SECONDS = "s"
    MINUTES = "m"

    @property
    def seconds(self) -> float:
        return {"ms": 0.001, "s": 1.0, "m": 60.0}[self.value]


class TraceKind(StrEnum):
    PLAIN = "plain"
    MURI = "muri"
    CHRONUS = "chronus"

    @property
    def unit(self) -> TimeUnit:
        return {
            TraceKind.PLAIN: TimeUnit.SECONDS,
            TraceKind.MURI: TimeUnit.MILLISECONDS,
            # Two weeks are 20,160 minutes, and 3 days, the longest that a job runs there, 4,320.
            TraceKind.CHRONUS: TimeUnit.MINUTES,
        }[self]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """``duration_seconds`` is what it needs undisturbed, on ``gpus`` GPUs."""

    id: str
    gpus: int
    submit_seconds: float
    duration_seconds: float
    user: str = ""
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs by the time of their submission, which begins at 0."""

    source: str
    kind: TraceKind
    unit: TimeUnit
    jobs: tuple[TraceJob, ...]
    # They asked for no GPU, and are left out.
    without_gpu_count: int = 0


def read_trace(path: Path, unit: TimeUnit | None = None) -> Trace:
    """All jobs of a file. InvalidArgumentError names the line that cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            kind = _kind(path, reader.fieldnames or ())
            used_unit = unit or kind.unit
            jobs = list(_jobs(path, reader, kind, used_unit))
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{path}: not text in UTF-8: a CSV file with a header is expected") from None
    except csv.Error as error:
        raise InvalidArgumentError(f"{path}: not a CSV file ({error}): commas between fields are expected") from None
    with_gpu = [job for job in jobs if job.gpus]
    if not with_gpu:
        raise InvalidArgumentError(f"{path}: no job in it asks for a GPU: add rows below the header")
    first = min(job.submit_seconds for job in with_gpu)
    # Stable: jobs of the same instant stay in the order of the file.
    with_gpu.sort(key=lambda job: job.submit_seconds)
    return Trace(
        source=str(path),
        kind=kind,
        unit=used_unit,
        jobs=tuple(
            TraceJob(job.id, job.gpus, job.submit_seconds - first, job.duration_seconds, job.user, job.priority)
            for job in with_gpu
        ),
        without_gpu_count=len(jobs) - len(with_gpu),
    )


def _kind(path: Path, columns: Sequence[str]) -> TraceKind:
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise InvalidArgumentError(
            f"{path}:1: the header lacks {', '.join(missing)}: traces begin with {','.join(_REQUIRED)}[,user,priority]"
        )
    if "expect_time_list" in columns:
        return TraceKind.CHRONUS
    return TraceKind.MURI if "iteration_time" in columns else TraceKind.PLAIN


def _jobs(path: Path, reader: csv.DictReader[str], kind: TraceKind, unit: TimeUnit) -> Iterator[TraceJob]:
    seen: set[str] = set()
    for row in reader:
        where = f"{path}:{reader.line_num}"
        job_id = (row["job_id"] or "").strip()
        if not job_id or job_id in seen:
            what = f'"{job_id}" was there before' if job_id else "is empty"
            raise InvalidArgumentError(f"{where}: job_id: {what}: each job needs an id of its own")
        if len(seen) == MAX_JOBS:
            raise InvalidArgumentError(f"{where}: more than {MAX_JOBS} jobs: cut the trace")
        seen.add(job_id)
        yield TraceJob(
            id=job_id,
            gpus=_whole(where, row, "num_gpu", 0),
            submit_seconds=_number(where, row, "submit_time", can_be_zero=True) * unit.seconds,
            duration_seconds=_number(where, row, "duration", can_be_zero=False) * unit.seconds,
            user=(row.get("user") or "").strip(),
            priority=_priority(where, row, kind),
        )


def _priority(where: str, row: Mapping[str, str | None], kind: TraceKind) -> int:
    if kind is TraceKind.CHRONUS:
        return _BEST_EFFORT_PRIORITY if _whole(where, row, "best_effort", 0, 1, 0) else DEFAULT_PRIORITY
    if kind is TraceKind.MURI:
        return _RAISED_PRIORITY if _whole(where, row, "priority", 0, 1, 0) else DEFAULT_PRIORITY
    return _whole(where, row, "priority", 0, MAX_PRIORITY, DEFAULT_PRIORITY)


def _whole(
    where: str, row: Mapping[str, str | None], name: str, least: int, most: int = 1_000_000, default: int | None = None
) -> int:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    # isdecimal: int() also takes "1_000" and " 7".
    if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= most:
        raise InvalidArgumentError(f'{where}: {name}: "{text}" is not a whole number from {least} to {most}')
    return int(text)


def _number(where: str, row: Mapping[str, str | None], name: str, *, can_be_zero: bool) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and not can_be_zero):
        least = "from 0 on" if can_be_zero else "above 0"
        raise InvalidArgumentError(f'{where}: {name}: "{text}" is not a number {least}')
    return value
