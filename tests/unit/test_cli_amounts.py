"""Bytes, durations and times on the command line."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from sdrs.cli.amounts import (
    duration,
    format_age,
    format_bytes,
    format_duration,
    format_milliseconds,
    format_rate,
    format_time,
    size,
    step_number,
)
from sdrs_core.ids import MAX_STEP


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1048575, "1.0 MiB"),  # not "1024.0 KiB"
        (3 << 30, "3.0 GiB"),
        (1 << 70, "1024.0 EiB"),
    ],
)
def test_bytes_are_shown_in_the_unit_that_fits(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (200, "3m 20s"),
        (7500, "2h 5m"),
        (90061, "1d 1h"),
        (86400, "1d"),
    ],
)
def test_durations_are_shown_in_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (2440, "2.4 s"), (200_000, "3m 20s")]
)
def test_what_takes_no_time_is_shown_in_milliseconds(count: int, text: str) -> None:
    assert format_milliseconds(count) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), ("15m", 900), ("12h", 43200), ("7d", 604800), ("2w", 1209600)],
)
def test_durations_are_read_with_their_unit(text: str, seconds: int) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "1.5h", "7 d", "1y", "7dd", "٣d\n"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("10", 10),
        ("500GiB", 500 << 30),
        ("200MB", 200_000_000),
        ("1.5T", 1_500_000_000_000),
        ("64 kb", 64_000),
    ],
)
def test_sizes_are_read_with_their_unit(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "5 apples", "1.GiB", "٣GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not an amount of bytes"):
        size(text)


@pytest.mark.parametrize("read", [duration, size])
@pytest.mark.parametrize("text", [str(1 << 63), "9" * 400])
def test_a_number_that_no_message_can_carry_is_refused(read: Callable[[str], int], text: str) -> None:
    with pytest.raises(click.BadParameter, match="use a smaller number"):
        read(text)


@pytest.mark.parametrize(
    ("rate", "text"), [(0, "0 B/s"), (999, "999 B/s"), (1500, "1.5 kB/s"), (210e6, "210 MB/s"), (1.24e9, "1.2 GB/s")]
)
def test_rates_are_shown_in_the_units_of_networks(rate: float, text: str) -> None:
    assert format_rate(rate) == text


def test_steps_run_from_zero_to_the_largest() -> None:
    assert (step_number("0"), step_number(str(MAX_STEP))) == (0, MAX_STEP)


@pytest.mark.parametrize("text", ["-1", str(MAX_STEP + 1), "1.5", "latest", ""])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="step"):
        step_number(text)


def test_times_are_iso_8601_in_utc() -> None:
    assert format_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


def test_a_time_that_has_not_come_is_none() -> None:
    assert format_time(0) is None
    assert format_age(0, 1_700_000_000_000) == "-"
