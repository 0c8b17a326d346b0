"""What a field of a job file may hold: each reader takes the place of a value, and gives it or says what is wrong."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import check_name
from sdrs_core.levels import parse_level
from sdrs_scheduler.jobs.amounts import format_seconds, parse_duration, parse_size, parse_time
from sdrs_scheduler.jobs.yaml_places import Place, did_you_mean, one_of

Reader = Callable[[Place], Any]
# The name in the file -> the attribute that it becomes, and how it is read.
Table = Mapping[str, tuple[str, Reader]]
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

MAX_TEXT_CHARS = 32 << 10
MAX_LIST_ITEMS = 1000
MAX_PATTERN_CHARS = 1000
MAX_DURATION_SECONDS = 3650 * 86_400.0
MAX_MEMORY_BYTES = 1 << 50

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Set by the scheduler and its executors for each start: from a file they would be wrong on the next node.
_TAKEN_VARIABLES = frozenset(
    (
        *("SDRS_JOB_ID", "SDRS_JOB_NAME", "SDRS_ATTEMPT", "SDRS_RESUME_STEP", "SDRS_GRACE_SECONDS", "SDRS_URL"),
        *("SDRS_HISTORY", "SDRS_POOL", "SDRS_LEVEL", "SDRS_SAVE_INTERVAL_SECONDS"),
        *("SDRS_NODE", "SDRS_NODE_RANK", "SDRS_NODE_COUNT", "SDRS_HOSTFILE", "MASTER_ADDR", "MASTER_PORT"),
        *("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_MAX_RESTARTS"),
        "CUDA_VISIBLE_DEVICES",
    )
)


def section(table: Table, sections: Mapping[str, Table] | None = None) -> Callable[[Place], dict[str, Any]]:
    """A mapping with these fields; ``sections`` are those below it, for the hint where a field belongs."""

    def read(place: Place) -> dict[str, Any]:
        values = {}
        for name, key, value in place.fields(MAX_LIST_ITEMS):
            if name not in table:
                home = next((title for title, fields in (sections or {}).items() if name in fields), "")
                hint = f"it belongs under {home}" if home else did_you_mean(name, table)
                raise key.wrong(f"is not known here: {hint}")
            attribute, reader = table[name]
            values[attribute] = reader(_filled(value))
        return values

    return read


def _filled(place: Place) -> Place:
    if place.is_null:
        raise place.wrong("is empty: give a value or leave the field out")
    return place


def text(place: Place) -> str:
    """Any scalar, as it is written: a version 1.10 stays 1.10."""
    written = _filled(place).text
    if written is None:
        raise place.wrong(f"{place.words} is not text")
    if "\0" in written:
        raise place.wrong("holds a zero byte: no program can be given that")
    if len(written) > MAX_TEXT_CHARS:
        raise place.wrong(f"is longer than {MAX_TEXT_CHARS >> 10} KiB: put it into a script")
    return written


def whole(least: int, most: int) -> Callable[[Place], int]:
    def read(place: Place) -> int:
        written = text(place) if place.text is not None else ""
        if not _WHOLE.fullmatch(written):
            raise place.wrong(f"{place.words} is not a whole number: give {least} to {most}")
        if place.is_quoted:
            raise place.wrong(f"{place.words} is text: write {written} without quotes")
        if not least <= int(written) <= most:
            raise place.wrong(f"{written} is out of range: give {least} to {most}")
        return int(written)

    return read


def flag(place: Place) -> bool:
    value = _FLAGS.get((place.text or "").lower())
    if value is None or place.is_quoted:
        raise place.wrong(f"{place.words} is neither true nor false: give one of them")
    return value


def name(what: str) -> Callable[[Place], str]:
    def read(place: Place) -> str:
        try:
            return check_name(text(place), what)
        except InvalidArgumentError as error:
            if error.facts:  # from text(): it knows the line already
                raise
            raise place.wrong(error.message) from None

    return read


def choice(kind: type[E]) -> Callable[[Place], E]:
    return chosen({member.value: member for member in kind})


def chosen(known: Mapping[str, T]) -> Callable[[Place], T]:
    def read(place: Place) -> T:
        written = text(place)
        if written not in known:
            # All of a few; of many the nearest.
            hint = f"give {one_of(known)}" if len(known) <= 5 else did_you_mean(written, known)
            raise place.wrong(f"{place.words} does not exist: {hint}")
        return known[written]

    return read


def level(place: Place) -> str:
    try:
        return str(parse_level(text(place)))
    except InvalidArgumentError as error:
        if error.facts:
            raise
        raise place.wrong(f"{place.words} is not a level: give L1, L2 or L3") from None


def duration(least_seconds: float = 0.0, most_seconds: float = MAX_DURATION_SECONDS) -> Callable[[Place], float]:
    def read(place: Place) -> float:
        seconds = parse_duration(text(place))
        if seconds is None:
            raise place.wrong(f"{place.words} is not a duration: give 90s, 10m, 2h, 1d or plain seconds")
        if not least_seconds <= seconds <= most_seconds:
            allowed = f"{format_seconds(least_seconds)} to {format_seconds(most_seconds)}"
            raise place.wrong(f"{place.words} is out of range: give {allowed}")
        return seconds

    return read


def watch_time(place: Place) -> float:
    """A duration, or ``off``."""
    return 0.0 if place.text == "off" else duration()(place)


def size(place: Place) -> int:
    count = parse_size(text(place))
    if count is None:
        raise place.wrong(f"{place.words} is not a size: give 64GiB, 500MB or plain bytes")
    if not 0 < count <= MAX_MEMORY_BYTES:
        raise place.wrong(f"{place.words} is out of range: give 1 byte to 1 PiB")
    return count


def deadline(now_unix: float) -> Callable[[Place], float]:
    """A time with its zone, or a duration from now on."""

    def read(place: Place) -> float:
        written = text(place)
        seconds = parse_duration(written)
        if seconds is not None:
            return now_unix + duration(least_seconds=1)(place)
        time = parse_time(written)
        if time is None:
            raise place.wrong(f"{place.words} is no time: give 2026-12-01T18:00:00Z, or 12h or 3d from now on")
        if time.tzinfo is None:
            raise place.wrong(f"{place.words} has no time zone: end it with Z, or with +01:00")
        try:
            unix = time.timestamp()
        except (OverflowError, ValueError):
            unix = 0.0
        if unix <= now_unix:
            raise place.wrong(f"{place.words} is over already: give a time to come, or leave it out")
        return unix

    return read


def pattern(place: Place) -> str:
    """A regular expression that compiles."""
    written = text(place)
    if not written:
        raise place.wrong('is empty: give a regular expression, as "CUDA out of memory"')
    if len(written) > MAX_PATTERN_CHARS:
        raise place.wrong(f"is longer than {MAX_PATTERN_CHARS} characters: make it shorter")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later Python may read differently
            re.compile(written)
    except (re.error, OverflowError, RecursionError) as error:
        raise place.wrong(f"{place.words} is not a regular expression: {error}") from None
    return written


def command(place: Place) -> str | tuple[str, ...]:
    """A line for bash, or the words of a command."""
    if place.text is not None:
        line = text(place)
        if not line.strip():
            raise place.wrong("is empty: give what is to be run, as python train.py")
        return line
    words = tuple(map(text, place.items(MAX_LIST_ITEMS)))
    if not words or not words[0].strip():
        raise place.wrong("names no program: give its words, as [python, train.py]")
    return words


def variables(place: Place) -> dict[str, str]:
    values = {}
    for variable, key, value in place.fields(MAX_LIST_ITEMS):
        if not _VARIABLE.fullmatch(variable):
            raise key.wrong("is no name of a variable: use letters, digits and _, not first a digit")
        if variable in _TAKEN_VARIABLES:
            raise key.wrong("is set by the scheduler for each start: leave it out")
        values[variable] = text(value)
    return values


def listed(reader: Callable[[Place], T], most: int = MAX_LIST_ITEMS) -> Callable[[Place], tuple[T, ...]]:
    """A list without repetitions."""

    def read(place: Place) -> tuple[T, ...]:
        values: list[T] = []
        for item in place.items(most):
            value = reader(item)
            if value in values:
                raise item.wrong(f"{item.words} is listed twice: leave one out")
            values.append(value)
        return tuple(values)

    return read
