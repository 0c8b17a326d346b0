"""Fault levels: what failure the data survives."""

from __future__ import annotations

from enum import IntEnum

from sdrs_core.errors import InvalidArgumentError


class Level(IntEnum):
    """NONE orders below L1, so that ``reached >= wanted`` reads as it should."""

    NONE = 0
    L1 = 1
    L2 = 2
    L3 = 3

    def __str__(self) -> str:
        return self.name


def parse_level(text: str | Level) -> Level:
    if isinstance(text, Level):
        return text
    try:
        level = Level[str(text).upper()]
    except KeyError:
        level = Level.NONE
    if level is Level.NONE:
        raise InvalidArgumentError(f"level {text!r} does not exist: use L1, L2 or L3")
    return level
