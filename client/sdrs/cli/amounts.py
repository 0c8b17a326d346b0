"""Bytes, durations and times: how they are written and read on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import check_step

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SECONDS_OF_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+)([smhdw]?)\Z")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgtp]?)(i?)b?(?:/s)?\Z", re.IGNORECASE)
# The largest number that goes over the wire.
_MOST = (1 << 63) - 1
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_RATE_UNITS = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")


def format_bytes(count: float) -> str:
    size = float(count)
    for unit in _BYTE_UNITS:
        # 1023.96 would be rounded to 1024.0: that belongs to the next unit.
        if size < 1023.95 or unit == _BYTE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes everything")


def format_rate(bytes_per_second: float) -> str:
    """As networks and disks are sold: ``210 MB/s``."""
    rate = float(bytes_per_second)
    for unit in _RATE_UNITS:
        if rate < 999.5 or unit == _RATE_UNITS[-1]:
            return f"{rate:.1f} {unit}" if rate < 10 and unit != "B/s" else f"{rate:.0f} {unit}"
        rate /= 1000
    raise AssertionError("the last unit takes everything")


def format_duration(seconds: float) -> str:
    """Two units at most: ``45s``, ``3m 20s``, ``2h 5m``, ``6d 4h``."""
    whole = max(0, int(seconds))
    parts: list[tuple[int, str]] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if whole >= length or parts:
            parts.append((whole // length, unit))
            whole %= length
    return " ".join(f"{count}{unit}" for count, unit in parts[:2] if count) or "0s"


def format_milliseconds(count: int) -> str:
    """As short as it may be: ``420 ms``, ``2.4 s``, then as durations are."""
    if count < 1000:
        return f"{count} ms"
    return f"{count / 1000:.1f} s" if count < 60_000 else format_duration(count / 1000)


def format_time(unix_ms: int) -> str | None:
    """ISO 8601 in UTC, to the millisecond; None for a time that has not come."""
    if not unix_ms:
        return None
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_age(unix_ms: int, now_unix_ms: int) -> str:
    return f"{format_duration((now_unix_ms - unix_ms) / 1000)} ago" if unix_ms else "-"


def duration(text: str) -> int:
    """Seconds from ``90s 15m 12h 7d 2w``, or from plain seconds."""
    match = _DURATION.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration: use 90s, 15m, 12h, 7d or 2w")
    return _possible(int(match[1]) * _SECONDS_OF_UNIT[match[2] or "s"], text)


def size(text: str) -> int:
    """Bytes from ``500GiB``, ``200MB`` or a plain number; KiB, MiB ... count in 1024s, kB, MB ... in 1000s."""
    match = _SIZE.match(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not an amount of bytes: use 500GiB, 200MB or 0")
    unit = 1024 if match[3] else 1000
    try:
        count = int(float(match[1]) * unit ** _POWERS[match[2].lower()])
    except OverflowError:
        count = _MOST + 1
    return _possible(count, text)


def _possible(count: int, text: str) -> int:
    if count > _MOST:
        raise click.BadParameter(f"{text!r} is more than anything can be: use a smaller number")
    return count


def step_number(text: str) -> int:
    try:
        return check_step(int(text))
    except InvalidArgumentError as error:
        raise click.BadParameter(error.message) from None
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a step: a whole number from 0 on is expected") from None
