"""Durations, sizes and times as people write them in job files."""

from __future__ import annotations

import re
from datetime import datetime

_SECONDS_OF_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([smhdw]?)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([kmgtp]?)(i?)b?", re.ASCII | re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_duration(text: str) -> float | None:
    """Seconds; None: it is no duration."""
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _SECONDS_OF_UNIT[match[2]] if match else None


def parse_size(text: str) -> int | None:
    """Bytes; KiB, MiB ... count in 1024s, kB, MB ... in 1000s. None: it is no size."""
    match = _SIZE.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].lower()])


def parse_time(text: str) -> datetime | None:
    """ISO 8601; without a zone it has none here either. None: it is no time."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def format_seconds(seconds: float) -> str:
    """As a job file says it: ``10m``; what the largest unit divides."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS_OF_UNIT[unit] == 0:
            return f"{seconds / _SECONDS_OF_UNIT[unit]:g}{unit}"
    return f"{seconds:g}s"
